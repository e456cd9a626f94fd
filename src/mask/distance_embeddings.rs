//! Embeddings of distances as tensors.

use std::sync::Arc;

use candle_core::Tensor;

use crate::error::Result;
use crate::tensor::select;

/// Embeddings of the distances of a call, projected per head: `c2p` like keys, for products with queries, and `p2c` like
/// queries, for products with keys.
#[derive(Debug, Clone)]
pub(crate) struct DistanceEmbeddings {
    /// `(count, h · d)`.
    pub c2p: Option<Tensor>,
    /// `(count, h · d)`.
    pub p2c: Option<Tensor>,
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

    /// The embeddings of these heads of `h`, in this order.
    pub(crate) fn of_heads(&self, heads: &[usize], h: usize) -> Result<Self> {
        let of_heads = |values: &Option<Tensor>| -> Result<Option<Tensor>> {
            let Some(values) = values else { return Ok(None) };
            let (count, width) = values.dims2()?;
            let selected = select(&values.reshape((count, h, width / h))?, heads, 1)?;
            Ok(Some(selected.reshape((count, heads.len() * (width / h)))?))
        };
        Ok(Self { c2p: of_heads(&self.c2p)?, p2c: of_heads(&self.p2c)?, ..self.clone() })
    }

    /// Whether a gradient flows into the embeddings.
    pub(crate) fn tracks_gradient(&self) -> bool {
        [&self.c2p, &self.p2c].into_iter().flatten().any(Tensor::track_op)
    }
}
