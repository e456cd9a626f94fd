//! Scores of queries and keys with embeddings of their distance (DeBERTa, Shaw, Transformer-XL).

use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::kinds::{Additive, MaskDims};
use crate::mask::lowered::{DistanceTable, LoweredMask};
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm, Part};
use crate::tensor::{bias_from_table, select, with_f32_slice};

/// The products of queries and keys with embeddings of their distance are added to the scores.
///
/// Unlike other terms it depends on the queries and keys of the call: it holds the same tensors. Products with keys
/// need as many key-value heads as query heads. All sequences of a call start alike.
#[derive(Debug, Clone)]
pub(crate) struct DistanceProducts {
    /// `(b, s_q, h, d)`.
    pub q: Tensor,
    /// `(b, s_kv, h_kv, d)`.
    pub k: Tensor,
    pub embeddings: DistanceEmbeddings,
    /// The factor on the scores, and so on the products.
    pub scale: f64,
}

impl DistanceProducts {
    /// The products `(b, h, s_q, s_kv)`; differentiable.
    fn additive(&self, call: &MaskCall) -> Result<Additive> {
        let AttnShape { b, h, s_q, s_kv } = call.shape;
        let start = call.start(0);
        let (queries, keys) = (s_q as i64, s_kv as i64);
        // Each distance only once, in the order in which the other side meets it; the first is only for the skew.
        let mut terms = Vec::new();
        if let Some(c2p) = &self.embeddings.c2p {
            // Query i meets key j at `j - i` tokens, from the last query and the first key on.
            let rows = (0..queries + keys).map(|c| self.embeddings.index(c - queries - start));
            terms.push(skewed_scores(&self.q, c2p, rows.collect(), s_kv)?);
        }
        if let Some(p2c) = &self.embeddings.p2c {
            let rows = (0..queries + keys).map(|c| self.embeddings.index(keys - c - start));
            terms.push(skewed_scores(&self.k, p2c, rows.collect(), s_q)?.transpose(2, 3)?);
        }
        let sum = match terms.as_slice() {
            [] => Tensor::zeros((b, h, s_q, s_kv), DType::F32, self.q.device())?,
            [only] => only.clone(),
            [c2p, p2c, ..] => (c2p + p2c)?,
        };
        let sum = match &self.embeddings.bias {
            Some(bias) => sum.broadcast_add(&self.embeddings.bias_of(bias, start, s_q, s_kv)?)?,
            None => sum,
        };
        Additive::new(&(sum * self.scale)?, MaskDims::Scores)
    }
}

impl MaskTerm for DistanceProducts {
    fn check(&self, AttnShape { b, h, s_q, s_kv }: AttnShape) -> Result<()> {
        let sides = [("the queries", &self.q, s_q, true), ("the keys", &self.k, s_kv, self.embeddings.p2c.is_some())];
        for (name, tensor, s, is_read) in sides {
            if is_read && tensor.dims().get(..3) != Some(&[b, s, h]) {
                let name = format!("{name} that distances are compared with");
                return Err(Error::shape(name, tensor.dims(), format!("({b}, {s}, {h}, d)")));
            }
        }
        Ok(())
    }

    fn dense(&self, call: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        self.additive(call)?.dense(call, dtype, device)
    }

    fn lower(&self, lowered: &mut LoweredMask, call: &MaskCall, device: &Device) -> Result<()> {
        if !lowered.is_for_cpu_kernel || lowered.embeddings.is_some() {
            return self.additive(call)?.lower(lowered, call, device);
        }
        self.embeddings.lower(self.scale, lowered)
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let mut selected = Self { q: part.select(&self.q, [2, 1])?, ..self.clone() };
        if let Part::Heads(heads) = part {
            selected.embeddings = self.embeddings.select_heads(heads, self.q.dim(2)?)?;
            if self.embeddings.p2c.is_some() {
                selected.k = select(&self.k, heads, 2)?;
            }
        }
        Ok(Some(Arc::new(selected)))
    }

    fn depends_on_position(&self) -> bool {
        true
    }

    fn distance_embeddings(&self) -> [usize; 2] {
        let of = |values: &Option<Tensor>| values.as_ref().map_or(0, |_| self.embeddings.count);
        [of(&self.embeddings.c2p), of(&self.embeddings.p2c)]
    }

    fn tracks_gradient(&self) -> bool {
        self.q.track_op() || self.k.track_op() || self.embeddings.tracks_gradient()
    }

    fn describe(&self) -> String {
        format!("products with distances({} embeddings)", self.embeddings.count)
    }
}

/// The products of every token of xs `(b, s, h, d)` with the embeddings `(embeddings, h · d)` of its distances to
/// `others` tokens: `(b, h, s, others)`. Token `i` meets token `j` at `rows[s + j - i]`. Differentiable.
fn skewed_scores(xs: &Tensor, embeddings: &Tensor, rows: Vec<u32>, others: usize) -> Result<Tensor> {
    let (b, s, h, d) = xs.dims4()?;
    let n = rows.len();
    let dtype = embeddings.dtype();
    let rows = Tensor::from_vec(rows, n, xs.device())?;
    let embeddings = embeddings.index_select(&rows, 0)?.reshape((n, h, d))?.permute((1, 2, 0))?; // (h, d, n)
    let xs = xs.to_dtype(dtype)?.permute((2, 0, 1, 3))?.contiguous()?.reshape((h, b * s, d))?;
    let scores = xs.matmul(&embeddings.contiguous()?)?; // (h, b · s, n)
    // Each row starts one element before the row above it: with one element less per row, that is a rectangle.
    let skewed = scores.reshape((h, b, s * n))?.narrow(D::Minus1, s, s * (n - 1))?.reshape((h, b, s, n - 1))?;
    Ok(skewed.narrow(D::Minus1, 0, others)?.transpose(0, 1)?)
}

/// Embeddings of the distances of a call, projected per head: `c2p` like keys, for products with queries, and `p2c`
/// like queries, for products with keys.
#[derive(Debug, Clone)]
pub(crate) struct DistanceEmbeddings {
    /// `(count, h · d)`.
    pub c2p: Option<Tensor>,
    /// `(count, h · d)`.
    pub p2c: Option<Tensor>,
    /// `(count, h)`: products of embeddings with a vector per head, the same for all queries and keys.
    pub bias: Option<Tensor>,
    /// The number of embeddings.
    pub count: usize,
    /// The embedding of each distance from `first` on, never rising. The distance of a key after the query is positive.
    pub indices: Arc<[u32]>,
    pub first: i64,
}

impl DistanceEmbeddings {
    /// The embedding of a distance; that of the nearest one that there is.
    pub(crate) fn index(&self, distance: i64) -> u32 {
        let last = self.indices.len() as i64 - 1;
        self.indices[(distance - self.first).clamp(0, last) as usize]
    }

    /// Adds the embeddings to what the CPU kernel reads. `scale` is the factor on the scores.
    pub(crate) fn lower(&self, scale: f64, lowered: &mut LoweredMask) -> Result<()> {
        if let Some(bias) = &self.bias {
            let by_embedding = with_f32_slice(&bias.t()?, |biases| {
                let by_distance = |biases: &[f32]| {
                    self.indices.iter().map(|&e| (f64::from(biases[e as usize]) * scale) as f32).collect::<Vec<_>>()
                };
                biases.chunks_exact(self.count.max(1)).flat_map(by_distance).collect()
            })?;
            let (first, distances) = (self.first, self.indices.len());
            lowered.tables.push(DistanceTable { values: by_embedding, first, distances, factors: None });
        }
        lowered.embeddings = Some(self.clone());
        Ok(())
    }

    /// `bias` of each query and key `(1, h, s_q, s_kv)`, where query 0 stands at the key `start`. Differentiable.
    fn bias_of(&self, bias: &Tensor, start: i64, s_q: usize, s_kv: usize) -> Result<Tensor> {
        let place = |i: usize| (0..s_kv as i64).map(move |j| self.index(j - start - i as i64));
        bias_from_table(bias, (0..s_q).flat_map(place).collect(), [1, s_q, s_kv])
    }

    /// The embeddings of these heads of `h`, in this order.
    pub(crate) fn select_heads(&self, heads: &[usize], h: usize) -> Result<Self> {
        let select_each = |values: &Option<Tensor>| -> Result<Option<Tensor>> {
            let Some(values) = values else { return Ok(None) };
            let (count, width) = values.dims2()?;
            let selected = select(&values.reshape((count, h, width / h))?, heads, 1)?;
            Ok(Some(selected.reshape((count, heads.len() * (width / h)))?))
        };
        let bias = self.bias.as_ref().map(|bias| select(bias, heads, 1)).transpose()?;
        Ok(Self { c2p: select_each(&self.c2p)?, p2c: select_each(&self.p2c)?, bias, ..self.clone() })
    }

    /// Whether a gradient flows into the embeddings.
    pub(crate) fn tracks_gradient(&self) -> bool {
        [&self.c2p, &self.p2c, &self.bias].into_iter().flatten().any(Tensor::track_op)
    }
}
