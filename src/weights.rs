//! The weights of an attention layer as plain tensors, in the orders in which checkpoints store them.
//!
//! Every published layout is read into [`AttentionWeights`], every layer is made of them, and every layout is written
//! from them, so a new layout needs nothing but its names. Fused query-key-value matrices keep the row order of the
//! checkpoint here, as data ([`FusedOrder`]): reordering them while reading would detach variables from the layer that
//! learns from them, and would copy matrices that are already in order.

mod latent;
mod low_rank;
mod parameters;

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::setters;
pub use latent::LatentWeights;
pub use low_rank::LowRankChange;
pub use parameters::Parameters;
pub(crate) use parameters::{
    BIAS_KV, COMPRESSOR, CONTEXT_NORM, CONTEXT_NORM_PARTS, FACTORS, GLOBAL_PARTS, HeadKind, LAMBDAS, LIMITS,
    LOGIT_SCALE, NORM_PARTS, NORMS, OUTPUT_GROUPS, Parameter, Presence, SCORE, SINKS, VALUE_CONVOLUTION,
};

/// The weights of a linear layer `y = x Wᵀ + b`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LinearWeights {
    /// `W`, `(out, in)`.
    pub weight: Tensor,
    /// `b`, `(out)`.
    pub bias: Option<Tensor>,
}

impl LinearWeights {
    /// Weights of `weight` `(out, in)` and `bias` `(out)`.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }

    /// Whether a gradient of the weights is asked for.
    pub fn tracks_gradient(&self) -> bool {
        self.weight.track_op() || self.bias.as_ref().is_some_and(Tensor::track_op)
    }

    /// The weight, and the bias if there is one.
    pub(crate) fn to_tensors(&self) -> Vec<Tensor> {
        [Some(&self.weight), self.bias.as_ref()].into_iter().flatten().cloned().collect()
    }

    /// Outputs `start .. start + len`: views, which follow the weights if they change.
    pub fn narrow(&self, start: usize, len: usize) -> Result<Self> {
        let bias = self.bias.as_ref().map(|bias| bias.narrow(0, start, len)).transpose()?;
        Ok(Self { weight: self.weight.narrow(0, start, len)?, bias })
    }

    /// Consecutive blocks of so many outputs each, as views.
    pub fn split(&self, rows: [usize; 3]) -> Result<[Self; 3]> {
        let [q, k, v] = rows;
        Ok([self.narrow(0, q)?, self.narrow(q, k)?, self.narrow(q + k, v)?])
    }

    /// Layers of the same input as one: their outputs one after the other. The bias is dropped unless all have one.
    pub fn concat(parts: &[&Self]) -> Result<Self> {
        // candle cannot concatenate empty tensors, such as those of a layer without heads.
        if parts.iter().all(|part| part.weight.elem_count() == 0) {
            return Ok(parts[0].clone());
        }
        let weights: Vec<&Tensor> = parts.iter().map(|part| &part.weight).collect();
        let biases: Vec<&Tensor> = parts.iter().filter_map(|part| part.bias.as_ref()).collect();
        let bias = if biases.len() == parts.len() { Some(Tensor::cat(&biases, 0)?) } else { None };
        Ok(Self { weight: Tensor::cat(&weights, 0)?, bias })
    }

    /// Queries, keys and values as one, with the outputs in `order`: the inverse of
    /// [`in_block_order`](Self::in_block_order). `h_kv` is the number of key-value heads.
    pub fn fuse([q, k, v]: [&Self; 3], order: FusedOrder, h_kv: usize) -> Result<Self> {
        let groups = match order {
            FusedOrder::Blocks => 1,
            FusedOrder::Grouped => h_kv,
            FusedOrder::FourBlocks => 4,
        };
        if groups == 1 || q.weight.elem_count() == 0 {
            return Self::concat(&[q, k, v]);
        }
        let parts = if order == FusedOrder::FourBlocks { [q, v, k] } else { [q, k, v] };
        Self::interleave(&parts, groups)
    }

    /// Layers of the same input as one, cut into `groups` each: the first group of outputs of each layer, then the
    /// second group. The bias is dropped unless all have one.
    fn interleave(parts: &[&Self], groups: usize) -> Result<Self> {
        let weights: Vec<&Tensor> = parts.iter().map(|part| &part.weight).collect();
        let biases: Option<Vec<&Tensor>> = parts.iter().map(|part| part.bias.as_ref()).collect();
        Ok(Self {
            weight: interleave(&weights, groups)?,
            bias: biases.map(|biases| interleave(&biases, groups)).transpose()?,
        })
    }

    /// Queries and the gate as one: per head the outputs of its query, then those of its gate.
    pub fn with_gate(&self, gate: &Self, heads: usize) -> Result<Self> {
        if self.weight.elem_count() == 0 { Ok(self.clone()) } else { Self::interleave(&[self, gate], heads) }
    }

    /// The inverse of [`with_gate`](Self::with_gate): the queries, which have `query_rows` outputs, and the gate.
    /// Differentiable.
    fn query_and_gate(&self, heads: usize, query_rows: usize) -> Result<[Self; 2]> {
        let rows = self.weight.dim(0)?;
        if rows == 0 && query_rows == 0 {
            return Ok([self.clone(), self.clone()]);
        }
        if heads == 0 || !rows.is_multiple_of(heads) || !query_rows.is_multiple_of(heads) || rows <= query_rows {
            let expected = format!("{heads} blocks of equal size, with {query_rows} rows of queries in all");
            return Err(Error::shape("the weight of queries and gate", self.weight.dims(), expected));
        }
        let (both, query) = (rows / heads, query_rows / heads);
        let of_each_head = |t: &Tensor, start: usize, len: usize| -> Result<Tensor> {
            let rest = &t.dims()[1..];
            let by_head = t.reshape([&[heads, both], rest].concat())?; // (heads, rows per head, …)
            let part = by_head.narrow(1, start, len)?.contiguous()?;
            Ok(part.reshape([&[heads * len], rest].concat())?)
        };
        let part = |start: usize, len: usize| -> Result<Self> {
            let bias = self.bias.as_ref().map(|bias| of_each_head(bias, start, len)).transpose()?;
            Ok(Self { weight: of_each_head(&self.weight, start, len)?, bias })
        };
        Ok([part(0, query)?, part(query, both - query)?])
    }

    /// All queries, then all keys, then all values, of a fused matrix whose outputs are in `order`. Differentiable.
    ///
    /// `rows` are the numbers of outputs of queries, keys and values, `h_kv` is the number of key-value heads.
    pub fn in_block_order(&self, order: FusedOrder, rows: [usize; 3], h_kv: usize) -> Result<Self> {
        let [q, k, v] = rows;
        if self.weight.dims().first() != Some(&(q + k + v)) {
            let expected = format!("({}, in)", q + k + v);
            return Err(Error::shape("the fused q, k, v weight", self.weight.dims(), expected));
        }
        if order == FusedOrder::FourBlocks && (q != k || q != v || !q.is_multiple_of(4)) {
            let expected = "as many keys and values as queries, a multiple of 4";
            return Err(Error::shape("the fused q, k, v weight", self.weight.dims(), expected));
        }
        let ordered = |t: &Tensor| deinterleave(t, order, rows, h_kv);
        Ok(Self { weight: ordered(&self.weight)?, bias: self.bias.as_ref().map(ordered).transpose()? })
    }
}

/// Tensors `(rows_i, …)` cut into `groups` each → `(rows, …)`: the first group of each tensor, then the second group.
fn interleave(tensors: &[&Tensor], groups: usize) -> Result<Tensor> {
    let rest = &tensors[0].dims()[1..];
    let group = |t: &&Tensor| t.reshape([&[groups, t.dims()[0] / groups], rest].concat()); // (groups, rows per group, …)
    let all = Tensor::cat(&tensors.iter().map(group).collect::<candle_core::Result<Vec<_>>>()?, 1)?;
    Ok(all.reshape([&[all.dims()[0] * all.dims()[1]], rest].concat())?)
}

/// The inverse of [`interleave`]: the queries, keys and values of a fused `(rows, …)` as consecutive blocks.
fn deinterleave(t: &Tensor, order: FusedOrder, rows: [usize; 3], h_kv: usize) -> Result<Tensor> {
    let rest = &t.dims()[1..];
    let (groups, starts) = match order {
        FusedOrder::Blocks => return Ok(t.clone()),
        // A layer without heads has no rows to reorder, and no group to count them by.
        _ if t.elem_count() == 0 => return Ok(t.clone()),
        FusedOrder::Grouped => {
            let (q, k) = (rows[0] / h_kv, rows[1] / h_kv);
            (h_kv, [0, q, q + k])
        }
        // Queries, values, keys.
        FusedOrder::FourBlocks => (4, [0, rows[0] / 2, rows[0] / 4]),
    };
    let grouped = t.reshape([&[groups, rows.iter().sum::<usize>() / groups], rest].concat())?; // (groups, rows per group, …)
    let part = |i: usize| {
        let part = grouped.narrow(1, starts[i], rows[i] / groups)?;
        part.contiguous()?.reshape([&[rows[i]], rest].concat())
    };
    Ok(Tensor::cat(&[part(0)?, part(1)?, part(2)?], 0)?)
}

/// The order of the rows of queries, keys and values in a fused matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusedOrder {
    /// All queries, all keys, all values.
    Blocks,
    /// Per key-value head: its query heads, its key head, its value head. With as many key-value heads as query heads
    /// that is query, key, value per head; with a single key-value head it equals [`Blocks`](Self::Blocks).
    Grouped,
    /// Four blocks, each with a quarter of the queries, then of the values, then of the keys (CodeGen).
    FourBlocks,
}

/// The weights of the query, key and value projections.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum QkvWeights {
    /// Three layers: query, key, value.
    Split(Box<[LinearWeights; 3]>),
    /// One layer with all queries, all keys and all values.
    Packed(LinearWeights),
    /// One layer with its rows in another order.
    Ordered(LinearWeights, FusedOrder),
    /// One weight with its rows in another order, and three biases.
    OrderedSplitBias {
        /// `(q + k + v rows, in)`.
        weight: Tensor,
        /// The biases of query, key and value.
        biases: [Option<Tensor>; 3],
        /// The order of the rows of `weight`.
        order: FusedOrder,
    },
    /// Three layers, of which the first has the queries and the gate of the output: per head the rows of its query,
    /// then those of its gate (Qwen3-Next).
    GatedQuery {
        /// Query and gate, key, value.
        parts: Box<[LinearWeights; 3]>,
        /// The number of query heads.
        heads: usize,
    },
    /// Two layers: query, and key. The keys are the values, too
    /// ([`KeyValueSource::KeysAsValues`](crate::KeyValueSource)).
    KeysAsValues(Box<[LinearWeights; 2]>),
    /// The query alone, of a layer with the keys and values of another one
    /// ([`KeyValueSource::Shared`](crate::KeyValueSource)).
    Query(LinearWeights),
    /// The projections of latent attention.
    Latent(Box<LatentWeights>),
}

impl QkvWeights {
    /// Whether a gradient of the weights is asked for.
    pub fn tracks_gradient(&self) -> bool {
        match self {
            Self::Split(parts) | Self::GatedQuery { parts, .. } => parts.iter().any(LinearWeights::tracks_gradient),
            Self::Packed(all) | Self::Ordered(all, _) => all.tracks_gradient(),
            Self::OrderedSplitBias { weight, biases, .. } => {
                weight.track_op() || biases.iter().flatten().any(Tensor::track_op)
            }
            Self::KeysAsValues(parts) => parts.iter().any(LinearWeights::tracks_gradient),
            Self::Query(q) => q.tracks_gradient(),
            Self::Latent(weights) => weights.tracks_gradient(),
        }
    }

    /// Whether query, key and value have a bias; of latent attention, the first projections.
    pub fn has_biases(&self) -> [bool; 3] {
        match self {
            Self::Split(parts) | Self::GatedQuery { parts, .. } => [0, 1, 2].map(|i| parts[i].bias.is_some()),
            Self::Packed(all) | Self::Ordered(all, _) => [all.bias.is_some(); 3],
            Self::OrderedSplitBias { biases, .. } => [0, 1, 2].map(|i| biases[i].is_some()),
            Self::KeysAsValues(parts) => [0, 1, 1].map(|i| parts[i].bias.is_some()),
            Self::Query(q) => [q.bias.is_some(), false, false],
            Self::Latent(weights) => {
                let [q, kv] = weights.has_biases();
                [q, kv, kv]
            }
        }
    }

    /// Whether the rows have to be reordered before use.
    pub fn needs_reordering(&self) -> bool {
        matches!(self, Self::Ordered(..) | Self::OrderedSplitBias { .. } | Self::GatedQuery { .. })
    }

    /// The single layer of queries, keys and values with its rows in block order; `None` if they are stored apart.
    ///
    /// `rows` are the numbers of outputs of queries, keys and values, `h_kv` is the number of key-value heads.
    pub fn packed(&self, rows: [usize; 3], h_kv: usize) -> Result<Option<LinearWeights>> {
        match self {
            Self::Split(_)
            | Self::OrderedSplitBias { .. }
            | Self::GatedQuery { .. }
            | Self::KeysAsValues(_)
            | Self::Query(_)
            | Self::Latent(_) => Ok(None),
            Self::Packed(all) => Ok(Some(all.clone())),
            Self::Ordered(all, order) => all.in_block_order(*order, rows, h_kv).map(Some),
        }
    }

    /// Query, key and value as three layers: views where the rows are in block order. Differentiable.
    ///
    /// `rows` and `h_kv` as for [`packed`](Self::packed).
    ///
    /// # Errors
    /// They are those of latent attention, which has no such layers.
    pub fn split(&self, rows: [usize; 3], h_kv: usize) -> Result<[LinearWeights; 3]> {
        match self {
            Self::Split(parts) => Ok(*parts.clone()),
            Self::Packed(all) => all.split(rows),
            Self::Ordered(all, order) => all.in_block_order(*order, rows, h_kv)?.split(rows),
            Self::OrderedSplitBias { weight, biases, order } => {
                let weights = LinearWeights::new(weight.clone(), None).in_block_order(*order, rows, h_kv)?;
                let mut parts = weights.split(rows)?;
                for (part, bias) in parts.iter_mut().zip(biases) {
                    part.bias.clone_from(bias);
                }
                Ok(parts)
            }
            Self::Latent(_) => {
                let expected = "projections of queries, keys and values";
                Err(Error::value("the weights of a layer", "those of latent attention", expected))
            }
            Self::GatedQuery { parts, heads } => {
                let [both, k, v] = *parts.clone();
                let [q, _] = both.query_and_gate(*heads, rows[0])?;
                Ok([q, k, v])
            }
            Self::KeysAsValues(parts) => {
                let [q, k] = &**parts;
                Ok([q.clone(), k.clone(), k.clone()])
            }
            Self::Query(q) => {
                let none = LinearWeights { weight: q.weight.narrow(0, 0, 0)?, bias: None };
                Ok([q.clone(), none.clone(), none])
            }
        }
    }

    /// The gate of the output, if it is stored with the queries. Differentiable. `query_rows` is the number of outputs
    /// of queries.
    pub fn gate(&self, query_rows: usize) -> Result<Option<LinearWeights>> {
        let Self::GatedQuery { parts, heads } = self else { return Ok(None) };
        let [_, gate] = parts[0].query_and_gate(*heads, query_rows)?;
        Ok(Some(gate))
    }
}

/// The parameters of the norm of queries, keys, values or the context: `(d)`, shared by all heads; `(heads, d)`, one
/// per head, but not of the context; or `(heads · d)`, over all heads together.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NormWeights {
    /// The scale.
    pub weight: Tensor,
    /// The shift, added after the scale; the shape of `weight`.
    pub bias: Option<Tensor>,
}

impl NormWeights {
    /// Parameters of `weight` and `bias`, of the same shape.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight, bias }
    }
}

/// All weights of one attention layer, whatever layout they came from.
///
/// A tensor that is a variable stays connected to it: a layer made of these weights learns.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AttentionWeights {
    /// Query `(h · d, query_size)`, key `(h_kv · d, key_size)` and value `(h_kv · d_v, value_size)`.
    pub qkv: QkvWeights,
    /// The output projection, `(output_size, h · d_v)`.
    pub o: LinearWeights,
    /// The projection of the gate, `(h · d_v, query_size)` or `(h, query_size)`, if it is not stored with the queries.
    pub gate: Option<LinearWeights>,
    /// The tensors beside the projections, by name.
    pub parameters: Parameters,
    /// The weights of the position scheme, by name.
    pub position: Parameters,
}

impl AttentionWeights {
    /// The weights of a layer that has nothing beside its four projections.
    pub fn new(qkv: QkvWeights, o: LinearWeights) -> Self {
        let (parameters, position) = Default::default();
        Self { qkv, o, gate: None, parameters, position }
    }

    /// Adds a tensor beside the projections, by one of the names of [`Parameters`].
    #[must_use]
    pub fn with_parameter(mut self, name: &str, tensor: Tensor) -> Self {
        self.parameters.insert(name, tensor);
        self
    }

    /// Adds a norm of queries, keys, values or the context, by one of the names of [`Parameters`].
    #[must_use]
    pub fn with_norm(mut self, name: &str, norm: NormWeights) -> Self {
        self.parameters.insert_norm(name, norm);
        self
    }

    setters! {
        /// Sets the projection of the gate.
        with_gate, gate: LinearWeights = Some(gate);
        /// Sets the weights of the position scheme.
        with_position, position: Parameters = position;
    }
}
