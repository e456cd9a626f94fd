//! DeBERTa's comparison of queries and keys with distances.

use std::sync::{Arc, OnceLock};

use candle_core::{D, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::transform::normalise;
use crate::config::{AttentionConfig, NormKind, NormOver, QkNorm};
use crate::error::{Error, Result};
use crate::ops::{Linear, Qkv, accumulate_dtype};
use crate::position::{Disentangled, Position};
use crate::tensor::same_dtype_and_device;
use crate::weights::DisentangledWeights;

/// The embeddings of distances and what they are projected by.
#[derive(Debug, Clone)]
pub(crate) struct DistanceEmbeddings {
    weights: DisentangledWeights,
    key: Option<Linear>,
    query: Option<Linear>,
    /// The projected embeddings, made when first needed, if they cannot change.
    projected: Arc<OnceLock<[Option<Tensor>; 2]>>,
}

impl DistanceEmbeddings {
    /// Checks that the weights are what the configuration asks for.
    pub fn new(config: &AttentionConfig, weights: Option<DisentangledWeights>, like: &Tensor) -> Result<Option<Self>> {
        let (asked, weights) = match (&config.position, weights) {
            (Position::Disentangled(asked), Some(weights)) => (asked, weights),
            (Position::Disentangled(_), None) => {
                let why = "the configuration asks for disentangled attention".to_string();
                return Err(Error::MissingTensor { name: "rel_embeddings.weight".to_string(), why });
            }
            (_, Some(_)) => {
                return Err(Error::config("position", &config.position, "disentangled: there are its weights"));
            }
            (_, None) => return Ok(None),
        };
        let Some(embeddings) = &weights.embeddings else {
            let why = "the configuration asks for disentangled attention; embeddings that layers share are given as a \
                       weight";
            return Err(Error::MissingTensor { name: "rel_embeddings.weight".to_string(), why: why.to_string() });
        };
        let want = [asked.embeddings(), config.hidden_size];
        if embeddings.dims() != want {
            return Err(Error::shape("rel_embeddings", embeddings.dims(), format!("{want:?}")));
        }
        same_dtype_and_device("rel_embeddings", embeddings, like)?;
        let rows = config.num_attention_heads * config.head_dim();
        let own = |name: &str, needed: bool, weights: &Option<_>| match (needed && !asked.share_att_key, weights) {
            (false, None) => Ok(None),
            (true, Some(weights)) => Linear::new(name, Clone::clone(weights), rows, config.hidden_size).map(Some),
            (true, None) => {
                let why = "the configuration asks for it in disentangled attention".to_string();
                Err(Error::MissingTensor { name: name.to_string(), why })
            }
            (false, Some(_)) => Err(Error::config("share_att_key", true, format!("false: there is a {name}"))),
        };
        match (asked.norm_eps, &weights.norm) {
            (None, Some(_)) => return Err(Error::config("norm_rel_ebd", "none", "layer_norm: there is a norm")),
            (Some(_), None) => return Err(Error::config("norm_rel_ebd", "layer_norm", "none: there is no norm")),
            (_, norm) => {
                let parts = norm.iter().flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten();
                for part in parts {
                    if part.dims() != [config.hidden_size] {
                        let want = format!("[{}]", config.hidden_size);
                        return Err(Error::shape("the norm of rel_embeddings", part.dims(), want));
                    }
                    same_dtype_and_device("the norm of rel_embeddings", part, like)?;
                }
            }
        }
        Ok(Some(Self {
            key: own("position key projection", asked.c2p, &weights.key)?,
            query: own("position query projection", asked.p2c, &weights.query)?,
            weights,
            projected: Arc::default(),
        }))
    }

    pub fn weights(&self) -> &DisentangledWeights {
        &self.weights
    }

    pub fn tracks_gradient(&self) -> bool {
        let DisentangledWeights { embeddings, norm, .. } = &self.weights;
        let norm = norm.iter().flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten();
        let tracked = embeddings.iter().chain(norm).any(Tensor::track_op);
        tracked || [&self.key, &self.query].into_iter().flatten().any(Linear::tracks_gradient)
    }

    /// The embeddings as keys `(embeddings, h · d)`, for `c2p`, and as queries, for `p2c`.
    fn projected(&self, asked: &Disentangled, qkv: &Qkv) -> Result<[Option<Tensor>; 2]> {
        let fixed = !self.tracks_gradient() && !qkv.tracks_gradient();
        if let Some(projected) = self.projected.get().filter(|_| fixed) {
            return Ok(projected.clone());
        }
        let dtype = accumulate_dtype(qkv.weight());
        let Some(embeddings) = &self.weights.embeddings else { return Ok([None, None]) };
        let mut embeddings = embeddings.to_dtype(dtype)?.unsqueeze(0)?;
        if let (Some(eps), Some(weights)) = (asked.norm_eps, &self.weights.norm) {
            let norm = QkNorm { kind: NormKind::Layer, over: NormOver::Head, eps };
            embeddings = normalise(&embeddings.unsqueeze(2)?, &norm, weights)?.squeeze(2)?;
        }
        // `shared`: the layer's own projection of queries (0) or keys (1).
        let project = |needed: bool, own: &Option<Linear>, shared: usize| -> Result<Option<Tensor>> {
            Ok(match (needed, own) {
                (false, _) => None,
                (true, Some(own)) => Some(own.forward(&embeddings, dtype)?.squeeze(0)?),
                (true, None) => Some(qkv.part(shared)?.forward(&embeddings, dtype)?.squeeze(0)?),
            })
        };
        let projected = [project(asked.c2p, &self.key, 1)?, project(asked.p2c, &self.query, 0)?];
        Ok(match fixed {
            true => self.projected.get_or_init(|| projected).clone(),
            false => projected,
        })
    }
}

impl MultiHeadAttention {
    /// What distances add to the scores of q `(b, s_q, h, d)` and k `(b, s_kv, h, d)`: `(b, h, s_q, s_kv)`. The last query
    /// stands at the last key.
    pub(crate) fn distance_scores(&self, q: &Tensor, k: &Tensor) -> Result<Option<Tensor>> {
        let (Position::Disentangled(asked), Some(distances)) = (&self.config.position, &self.distances) else {
            return Ok(None);
        };
        let (s_q, s_kv) = (q.dim(1)? as i64, k.dim(1)? as i64);
        let start = s_kv - s_q;
        let [keys, queries] = distances.projected(asked, &self.qkv)?;
        // For each distance once, in the order in which the other side meets them; the first is there for `skewed`.
        let c2p = match keys {
            // Query i meets key j at `j - i` places, from the last query's first key on.
            Some(keys) => {
                let rows = (0..s_q + s_kv).map(|c| asked.row(start - (c - s_q)));
                Some(compared(q, &keys, rows.collect(), s_kv as usize)?)
            }
            None => None,
        };
        let p2c = match queries {
            Some(queries) => {
                let rows = (0..s_q + s_kv).map(|c| asked.row(start + (c - s_kv)));
                Some(compared(k, &queries, rows.collect(), s_q as usize)?.transpose(2, 3)?)
            }
            None => None,
        };
        let sum = match (c2p, p2c) {
            (Some(c2p), Some(p2c)) => (c2p + p2c)?,
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return Ok(None),
        };
        Ok(Some((sum * self.config.scale())?))
    }
}

/// Every token of xs `(b, s, h, d)` against the embeddings `(embeddings, h · d)` of its distances to the `others` tokens,
/// `(b, h, s, others)`: token `i` meets token `j` at `rows[s + j - i]`. Differentiable.
fn compared(xs: &Tensor, embeddings: &Tensor, rows: Vec<u32>, others: usize) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let n = rows.len();
    let dtype = embeddings.dtype();
    let rows = Tensor::from_vec(rows, n, xs.device())?;
    let embeddings = embeddings.index_select(&rows, 0)?.reshape((n, h, d))?.permute((1, 2, 0))?; // (h, d, n)
    let xs = xs.to_dtype(dtype)?.permute((2, 0, 1, 3))?.contiguous()?.reshape((h, b * s, d))?;
    let scores = xs.matmul(&embeddings.contiguous()?)?; // (h, b · s, n)
    // Each row starts one place before the one above it: with rows of one number less, a rectangle.
    let skewed = scores.reshape((h, b, s * n))?.narrow(D::Minus1, s, s * (n - 1))?.reshape((h, b, s, n - 1))?;
    Ok(skewed.narrow(D::Minus1, 0, others)?.transpose(0, 1)?)
}
