//! A weight per token of the vocabulary, for queries without a model (`SparseStaticEmbedding`).

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::checkpoint::WeightSource;
use candle_attention::{Error, Result};
use candle_core::{DType, Device};
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::folder::{ModelFolder, TokenizerConfig};
use crate::sparse::vector::SparseVector;
use crate::text::options::EncodeOptions;
use crate::text::tokenizer::{Text, Tokenizer};

/// A weight for each token of the vocabulary. A text has the weights of its tokens, each once.
#[derive(Debug, Clone)]
pub(crate) struct StaticWeights {
    pub tokenizer: Tokenizer,
    pub weights: Vec<f32>,
}

/// `config.json` of the module.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    /// A file of weights by token; its name is all that counts.
    path: Option<String>,
    /// Whether training leaves them as they are.
    frozen: IgnoredAny,
}

/// The most tokens of a vocabulary, as the largest published ones have fewer than 2^20.
const MAX_TOKENS: usize = 1 << 24;

impl StaticWeights {
    /// Reads the module in `path`: tokenizer, and `model.safetensors` with `weight` `(vocabulary)`, or `idf.json` with
    /// weights by token, which may also be at the top of the model.
    pub fn load(folder: ModelFolder, path: &Path) -> Result<Self> {
        let stated = TokenizerConfig::load(folder, path)?.max_length().unwrap_or(usize::MAX);
        let tokenizer = Tokenizer::load(folder, &path.join("tokenizer.json"), stated, false)?.without_special_tokens();
        let config: Config = folder.json_or_default(&path.join("config.json"))?;
        let is_json = config.path.is_some_and(|path| path.ends_with(".json"));
        let weights = if is_json || !folder.holds(&path.join("model.safetensors"))? {
            let own = path.join("idf.json");
            let file = if folder.holds(&own)? { own } else { folder.path.join("idf.json") };
            by_token(folder, &file, &tokenizer)?
        } else {
            let source = folder.checkpoint(path)?.at("", DType::F32, &Device::Cpu);
            match source.shape("weight")?.as_deref() {
                Some([size]) if (1..=MAX_TOKENS).contains(size) => source.get("weight", &[*size])?.to_vec1()?,
                other => {
                    let found = format!("has shape {:?}", other.unwrap_or_default());
                    let expected = format!("[vocabulary], at most {MAX_TOKENS}");
                    return Err(Error::Tensor { name: source.full_name("weight"), found, expected });
                }
            }
        };
        match weights.iter().position(|weight| !weight.is_finite()) {
            Some(id) => Err(Error::NotFinite { what: format!("the weight of token {id} in {}", path.display()) }),
            None => Ok(Self { tokenizer, weights }),
        }
    }

    /// The vector of each text after `prompt`. Special tokens are not added; a text without tokens has no entry.
    pub fn encode(
        &self,
        texts: &[&str],
        prompt: &str,
        options: &EncodeOptions,
        max_active_dims: Option<usize>,
    ) -> Result<Vec<SparseVector>> {
        let tokenizer = match options.max_length {
            Some(most) => &self.tokenizer.with_max_length(most)?,
            None => &self.tokenizer,
        };
        options.in_windows(texts, |window| {
            let window: Vec<Text> = window.iter().map(|text| Text::One(text)).collect();
            let tokens = tokenizer.encode(&window, prompt)?.into_iter();
            tokens.map(|tokens| Ok((self.vector(tokens.ids, max_active_dims)?, tokens.truncated))).collect()
        })
    }

    fn vector(&self, mut ids: Vec<u32>, max_active_dims: Option<usize>) -> Result<SparseVector> {
        ids.sort_unstable();
        ids.dedup();
        if let Some(id) = ids.last().filter(|id| **id as usize >= self.weights.len()) {
            let expected = format!("less than {}, the number of weights", self.weights.len());
            return Err(self.tokenizer.unknown_id(*id, expected));
        }
        let entries = ids.into_iter().map(|id| (id, self.weights[id as usize]));
        Ok(SparseVector::from_entries(entries.filter(|(_, weight)| *weight != 0.0).collect(), max_active_dims))
    }
}

/// The weights of a file `{"token": weight}`; 0 for tokens that it lacks.
fn by_token(folder: ModelFolder, file: &Path, tokenizer: &Tokenizer) -> Result<Vec<f32>> {
    let stated: BTreeMap<String, Value> = folder.json(file)?;
    let mut weights = vec![0.0; tokenizer.vocabulary_size()];
    for (token, weight) in stated {
        let place = tokenizer.id(&token).and_then(|id| weights.get_mut(id as usize));
        match (place, weight.as_f64()) {
            (Some(place), Some(weight)) => *place = weight as f32,
            (None, _) => return Err(Error::file(file, format!("the tokenizer has no token `{token}`"))),
            (_, None) => {
                return Err(Error::file(file, format!("the weight of `{token}` is {weight}, expected a number")));
            }
        }
    }
    Ok(weights)
}
