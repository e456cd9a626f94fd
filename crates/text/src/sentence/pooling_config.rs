//! The configuration of a pooling module, of any version of sentence-transformers.

use std::collections::BTreeMap;

use candle_attention::{Error, Result};

use crate::heads::pooling::PoolingMode;

/// `config.json` of a pooling module.
#[derive(serde::Deserialize)]
pub(crate) struct PoolingConfig {
    pooling_mode: Option<OneOrMore>,
    #[serde(default = "yes")]
    /// Whether the tokens of a prompt count.
    pub include_prompt: bool,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// The most pooling modes: each makes an embedding longer by the width of the model. Six modes exist.
const MAX_POOLING_MODES: usize = 16;

fn yes() -> bool {
    true
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(PoolingMode),
    More(Vec<PoolingMode>),
}

/// The boolean keys of earlier versions, in the order in which their vectors are concatenated.
const POOLING_KEYS: [(&str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", PoolingMode::Cls),
    ("pooling_mode_max_tokens", PoolingMode::Max),
    ("pooling_mode_mean_tokens", PoolingMode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", PoolingMode::WeightedMean),
    ("pooling_mode_lasttoken", PoolingMode::LastToken),
];

impl PoolingConfig {
    /// The modes, in the order in which their vectors are concatenated.
    pub fn modes(&self) -> Result<Vec<PoolingMode>> {
        let modes = match &self.pooling_mode {
            Some(OneOrMore::One(mode)) => vec![*mode],
            Some(OneOrMore::More(modes)) => modes.clone(),
            None => {
                let mut modes = Vec::new();
                for (key, mode) in POOLING_KEYS {
                    match self.others.get(key) {
                        Some(serde_json::Value::Bool(true)) => modes.push(mode),
                        None | Some(serde_json::Value::Bool(false) | serde_json::Value::Null) => {}
                        Some(other) => return Err(Error::config(key, other, "true or false")),
                    }
                }
                if modes.is_empty() { vec![PoolingMode::Mean] } else { modes }
            }
        };
        match modes.len() > MAX_POOLING_MODES {
            true => {
                let found = format!("{} modes", modes.len());
                Err(Error::config("pooling_mode", found, format!("at most {MAX_POOLING_MODES}")))
            }
            false => Ok(modes),
        }
    }
}
