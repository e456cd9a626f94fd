//! Segments: packed sequences that do not see each other.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::lowered::LoweredMask;
use crate::mask::shape::{AttnShape, check_integers, comparable};
use crate::mask::term::{MaskCall, MaskTerm, Part};
use crate::tensor::{check_allocation, check_shape, element_count};

/// The keys with a query's own segment id are visible: ids of queries `(b, s_q)` and of keys `(b, s_kv)`.
#[derive(Debug, Clone)]
pub(crate) struct Segments {
    queries: Tensor,
    keys: Tensor,
}

impl Segments {
    pub(crate) fn new(queries: &Tensor, keys: &Tensor) -> Result<Self> {
        for (name, ids) in [("segments of queries", queries), ("segments of keys", keys)] {
            check_integers(name, ids)?;
            ensure!(ids.rank() == 2, Error::shape(name, ids.dims(), "(b, s)"));
        }
        Ok(Self { queries: comparable(queries)?, keys: comparable(keys)? })
    }
}

impl MaskTerm for Segments {
    fn check(&self, AttnShape { b, s_q, s_kv, .. }: AttnShape) -> Result<()> {
        for (name, ids, want) in
            [("segments of queries", &self.queries, [b, s_q]), ("segments of keys", &self.keys, [b, s_kv])]
        {
            check_shape(name, ids, &want)?;
        }
        Ok(())
    }

    fn dense(&self, call: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        let AttnShape { b, s_q, s_kv, .. } = call.shape;
        let ids = |ids: &Tensor| ids.to_dtype(DType::I64)?.to_device(device);
        let queries = ids(&self.queries)?.reshape((b, 1, s_q, 1))?;
        Ok(DenseMask::keep(queries.broadcast_eq(&ids(&self.keys)?.reshape((b, 1, 1, s_kv))?)?))
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        let AttnShape { b, s_q, s_kv, .. } = call.shape;
        [b, 1, s_q, s_kv]
    }

    /// The ids themselves: kernels compare them, and no `(b, 1, s_q, s_kv)` tensor is made.
    fn lower(&self, lowered: &mut LoweredMask, _: &MaskCall, device: &Device) -> Result<()> {
        let ids = |ids: &Tensor| {
            check_allocation::<i64>("segment ids", element_count("segment ids", ids.dims())?)?;
            Ok::<_, Error>(ids.to_device(device)?.to_dtype(DType::I64)?.contiguous()?)
        };
        lowered.segments.push([ids(&self.queries)?, ids(&self.keys)?]);
        Ok(())
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let queries = match part {
            Part::Queries(queries) => self.queries.narrow(1, queries.start, queries.len())?,
            Part::Heads(_) => self.queries.clone(),
        };
        Ok(Some(Arc::new(Self { queries, keys: self.keys.clone() })))
    }

    fn adds_to_scores(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("segments({:?}, {:?})", self.queries.dims(), self.keys.dims())
    }
}
