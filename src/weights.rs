//! The weights of an attention layer as plain tensors, and the reordering of fused rows.

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::error::{Error, Result};

/// A projection as plain tensors.
#[derive(Debug, Clone)]
pub struct LinearWeights {
    /// `(out, in)`.
    pub weight: Tensor,
    /// `(out)`.
    pub bias: Option<Tensor>,
}

/// The input projections as plain tensors.
#[derive(Debug, Clone)]
pub enum QkvWeights {
    /// Query, key, value.
    Split(Box<[LinearWeights; 3]>),
    /// The rows of query, key and value in one.
    Packed(LinearWeights),
    /// In one, in another order of rows.
    Ordered(LinearWeights, FusedOrder),
    /// One weight in another order of rows, and biases of query, key and value in their own.
    OrderedSplitBias {
        /// The rows of query, key and value.
        weight: Tensor,
        /// Those of query, key and value.
        biases: [Option<Tensor>; 3],
        /// The order of the rows.
        order: FusedOrder,
    },
}

impl QkvWeights {
    pub(crate) fn tracks_gradient(&self) -> bool {
        let dense = |dense: &LinearWeights| dense.weight.track_op() || dense.bias.iter().any(Tensor::track_op);
        match self {
            Self::Split(parts) => parts.iter().any(dense),
            Self::Packed(all) | Self::Ordered(all, _) => dense(all),
            Self::OrderedSplitBias { weight, biases, .. } => {
                weight.track_op() || biases.iter().flatten().any(Tensor::track_op)
            }
        }
    }
}

/// The weights of a position scheme by name, such as T5's `relative_attention_bias.weight` `(num_buckets, h)`. Schemes
/// without weights have none. The documentation of each scheme in [`position`](crate::position) lists its names and shapes.
#[derive(Debug, Clone, Default)]
pub struct PositionWeights(BTreeMap<String, Tensor>);

impl PositionWeights {
    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Adds or replaces a tensor.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.0.insert(name.into(), tensor);
    }

    /// Whether there are no weights.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All names and tensors, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// The tensor of this name, which a layer that was built has.
    pub(crate) fn require(&self, name: &str) -> Result<&Tensor> {
        let why = || "the position scheme of the layer needs it".to_string();
        self.get(name).ok_or_else(|| Error::MissingTensor { name: name.to_string(), why: why() })
    }
}

/// All weights of one attention layer, whatever layout they came from.
///
/// A tensor that is a variable stays connected to it: what is here is a view, so a layer made of these learns.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// `(h · d, query_size)`, `(h_kv · d, key_size)`, `(h_kv · d_v, value_size)`.
    pub qkv: QkvWeights,
    /// `(output_size, h · d_v)`.
    pub o: LinearWeights,
    /// One more key and value that every query sees, `(h_kv · d)` and `(h_kv · d_v)`.
    pub bias_kv: Option<[Tensor; 2]>,
    /// The vector of additive scoring, `(h, d)`.
    pub score: Option<Tensor>,
    /// The norms of queries and keys.
    pub qk_norm: Option<[NormWeights; 2]>,
    /// A score a head that takes part in the softmax without a value, `(h)`.
    pub sinks: Option<Tensor>,
    /// The weights of the position scheme.
    pub position: PositionWeights,
}

/// The parameters of a norm of queries or keys: `(d)`, the same for every head; `(heads, d)`, one for each; or
/// `(heads · d)`, over all heads.
#[derive(Debug, Clone)]
pub struct NormWeights {
    /// The factors.
    pub weight: Tensor,
    /// What is added after them.
    pub bias: Option<Tensor>,
}

/// In which order a fused weight has the rows of queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FusedOrder {
    /// All queries, all keys, all values.
    Blocks,
    /// For each key-value head: its query heads, the key, the value. With as many key-value heads as query heads that is
    /// query, key, value of each head; with a single one it is [`Blocks`](Self::Blocks).
    Grouped,
    /// Four blocks, each with its share of queries, values, keys, in this order (CodeGen).
    FourBlocks,
}

/// The projections with their rows in order, if they are stored in another. Differentiable. `rows`: how many of each.
pub(crate) fn in_order(weights: &QkvWeights, rows: [usize; 3], h_kv: usize) -> Result<Option<QkvWeights>> {
    Ok(match weights {
        QkvWeights::Split(_) | QkvWeights::Packed(_) => None,
        QkvWeights::Ordered(all, order) => Some(QkvWeights::Packed(in_blocks(all, *order, rows, h_kv)?)),
        QkvWeights::OrderedSplitBias { weight, biases, order } => {
            let all = in_blocks(&LinearWeights { weight: weight.clone(), bias: None }, *order, rows, h_kv)?;
            let part = |i: usize| {
                let weight = all.weight.narrow(0, rows[..i].iter().sum(), rows[i])?;
                Ok::<_, Error>(LinearWeights { weight, bias: biases[i].clone() })
            };
            Some(QkvWeights::Split(Box::new([part(0)?, part(1)?, part(2)?])))
        }
    })
}

/// The rows of query, key and value one after the other.
fn in_blocks(dense: &LinearWeights, order: FusedOrder, rows: [usize; 3], h_kv: usize) -> Result<LinearWeights> {
    let [q, k, v] = rows;
    if dense.weight.dims().first() != Some(&(q + k + v)) {
        let expected = format!("({}, in)", q + k + v);
        return Err(Error::shape("fused q, k, v weight", dense.weight.dims(), expected));
    }
    let ordered = |t: &Tensor| {
        let mut rest = t.dims().to_vec();
        rest.remove(0);
        let shaped = |dims: &[usize]| t.reshape([dims, &rest].concat());
        let flat = |t: Tensor, rows: usize| t.contiguous()?.reshape([&[rows], &rest[..]].concat());
        let (parts, axis, starts) = match order {
            FusedOrder::Blocks => return Ok(t.clone()),
            FusedOrder::Grouped => {
                let (q, k, v) = (q / h_kv, k / h_kv, v / h_kv);
                (shaped(&[h_kv, q + k + v])?, 1, [(0, q), (q, k), (q + k, v)])
            }
            // Queries, values, keys.
            FusedOrder::FourBlocks => {
                let part = q / 4;
                (shaped(&[4, 3 * part])?, 1, [(0, part), (2 * part, part), (part, part)])
            }
        };
        let part = |i: usize| flat(parts.narrow(axis, starts[i].0, starts[i].1)?, rows[i]);
        Ok::<_, Error>(Tensor::cat(&[part(0)?, part(1)?, part(2)?], 0)?)
    };
    if order == FusedOrder::FourBlocks && (q != k || q != v || !q.is_multiple_of(4)) {
        return Err(Error::shape("fused q, k, v", dense.weight.dims(), "as many keys and values as queries, in fours"));
    }
    Ok(LinearWeights { weight: ordered(&dense.weight)?, bias: dense.bias.as_ref().map(ordered).transpose()? })
}
