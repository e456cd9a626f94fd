//! Reads the norms of queries and keys.

use candle_core::Tensor;

use crate::checkpoint::source::WeightSource;
use crate::config::{AttentionConfig, NormOver};
use crate::error::{Error, Result};
use crate::families::layout::QK_NORMS;
use crate::weights::NormWeights;

/// Reads the norms if there are any. Their formula comes from the configuration, which must have one then.
pub(crate) fn read_norms(source: &dyn WeightSource, config: &AttentionConfig) -> Result<Option<[NormWeights; 2]>> {
    let present = |name: &str| source.contains(&format!("{name}.weight")) || source.contains(&per_head(name, 0));
    let found = QK_NORMS.iter().find(|names| names.iter().any(|name| present(name)));
    let norm = match (&config.qk_norm, found) {
        (None, None) => return Ok(None),
        (Some(norm), Some(_)) => norm,
        (None, Some([q, _])) => {
            let allowed = format!("set: the checkpoint holds `{}`", source.full_name(q));
            return Err(Error::config("qk_norm", "none", allowed));
        }
        (Some(_), None) => {
            let name = source.full_name(&format!("{}.weight", QK_NORMS[0][0]));
            return Err(Error::MissingTensor { name, why: "the configuration sets qk_norm".to_string() });
        }
    };
    let [q, k] = *found.unwrap_or(&QK_NORMS[0]);
    let read = |name: &str, heads: usize| {
        let d = config.resolved_head_dim();
        let one = |name: &str| match (norm.over, source.shape(name)?.as_deref()) {
            (NormOver::Head, Some(&[all])) if all == heads * d && all != d => {
                let allowed =
                    format!("all heads: `{}` has {all} elements, {heads} heads of {d}", source.full_name(name));
                Err(Error::config("qk_norm.over", "one head", allowed))
            }
            (NormOver::AllHeads, Some(&[one])) if one == d && one != heads * d => {
                let allowed = format!("one head: `{}` has {one} elements, a head's", source.full_name(name));
                Err(Error::config("qk_norm.over", "all heads", allowed))
            }
            (NormOver::AllHeads, _) => source.get(name, &[heads * d]),
            (NormOver::Head, Some([_, _])) => source.get(name, &[heads, d]),
            (NormOver::Head, _) => source.get(name, &[d]),
        };
        if source.contains(&per_head(name, 0)) {
            let weights = (0..heads).map(|head| source.get(&per_head(name, head), &[d])).collect::<Result<Vec<_>>>()?;
            if weights.iter().any(Tensor::track_op) {
                let expected = "fixed weights: norms of a module for each head cannot be trained yet".to_string();
                return Err(Error::Tensor {
                    name: source.full_name(&per_head(name, 0)),
                    found: "is a variable".into(),
                    expected,
                });
            }
            return Ok(NormWeights { weight: Tensor::stack(&weights, 0)?, bias: None });
        }
        let bias = format!("{name}.bias");
        let bias = source.contains(&bias).then(|| one(&bias)).transpose()?;
        Ok::<_, Error>(NormWeights { weight: one(&format!("{name}.weight"))?, bias })
    };
    Ok(Some([read(q, config.num_attention_heads)?, read(k, config.resolved_num_key_value_heads())?]))
}

/// The weight of one head, in StableLM's modules of a norm per head.
fn per_head(name: &str, head: usize) -> String {
    format!("{name}.norms.{head}.weight")
}
