//! Learned biases by distance (T5), perhaps times a factor of the query (WavLM).

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::{DenseMask, lowest_finite};
use crate::mask::kinds::{Additive, MaskDims};
use crate::mask::lowered::{DistanceTable, LoweredMask};
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm, Part};
use crate::tensor::{bias_from_table, check_shape, element_count, select, with_f32_slice};

/// A bias per head and distance is added to the scores. The distance of a key after the query is positive. As in an
/// additive tensor, `-inf` and the lowest finite value hide the key.
#[derive(Debug, Clone)]
pub(crate) struct RelativeBias {
    /// `(distances, h)`.
    pub table: Tensor,
    /// The distance of row 0.
    pub first: i64,
    /// `(b, h, s_q, 1)`: a factor for each query.
    pub factors: Option<Tensor>,
}

impl RelativeBias {
    /// The bias `(sequences, h, s_q, s_kv)`, where query 0 of each sequence stands at the key `starts[i]`.
    /// Differentiable.
    pub(crate) fn tensor(&self, starts: &[i64], s_q: usize, s_kv: usize) -> Result<Tensor> {
        element_count("a relative bias", &[starts.len(), s_q, s_kv, self.table.dim(1)?])?;
        let positions = starts.iter().flat_map(|start| (0..s_q as i64).map(move |i| start + i));
        let rows = positions.flat_map(|p| (0..s_kv as i64).map(move |j| (j - p - self.first) as u32));
        bias_from_table(&self.table, rows.collect(), [starts.len(), s_q, s_kv])
    }

    fn additive(&self, call: &MaskCall) -> Result<Additive> {
        let bias = self.tensor(&call.starts, call.shape.s_q, call.shape.s_kv)?;
        let bias = match &self.factors {
            Some(factors) => bias.broadcast_mul(&factors.to_dtype(bias.dtype())?)?,
            None => bias,
        };
        Additive::new(&bias, MaskDims::Scores)
    }
}

impl MaskTerm for RelativeBias {
    fn check(&self, shape: AttnShape) -> Result<()> {
        let AttnShape { b, h, s_q, .. } = shape;
        if let Some(factors) = &self.factors {
            check_shape("the factors on biases by distance", factors, &[b, h, s_q, 1])?;
        }
        match self.table.dims() {
            [_, h] if *h == shape.h => Ok(()),
            dims => Err(Error::shape("the biases by distance", dims, format!("(distances, {}), the heads", shape.h))),
        }
    }

    fn dense(&self, call: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        self.additive(call)?.dense(call, dtype, device)
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        let AttnShape { b, h, s_q, s_kv } = call.shape;
        [if self.factors.is_some() { b } else { call.starts.len() }, h, s_q, s_kv]
    }

    fn lower(&self, lowered: &mut LoweredMask, call: &MaskCall, device: &Device) -> Result<()> {
        // A bias that hides a key in f64 is no number of f32.
        if !lowered.is_for_cpu_kernel || self.table.dtype() == DType::F64 {
            return self.additive(call)?.lower(lowered, call, device);
        }
        let (distances, h) = self.table.dims2()?;
        // f32 holds no lower value than the lowest of the dtype, which hides the key.
        let lowest = lowest_finite(self.table.dtype()) as f32;
        let values = with_f32_slice(&self.table.t()?, |biases| {
            let values: Vec<f32> = biases.iter().map(|bias| if *bias <= lowest { f32::MIN } else { *bias }).collect();
            values
        })?;
        debug_assert_eq!(values.len(), h * distances);
        let factors = self.factors.as_ref().map(|factors| factors.to_dtype(DType::F32)).transpose()?;
        lowered.tables.push(DistanceTable { values, first: self.first, distances, factors });
        Ok(())
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let factors = self.factors.as_ref().map(|factors| part.select(factors, [1, 2])).transpose()?;
        let table = match part {
            Part::Queries(_) => self.table.clone(),
            Part::Heads(heads) => select(&self.table, heads, 1)?,
        };
        Ok(Some(Arc::new(Self { table, factors, ..*self })))
    }

    fn depends_on_position(&self) -> bool {
        true
    }

    fn biases_by_distance(&self) -> Option<&Tensor> {
        Some(&self.table).filter(|table| self.factors.is_none() && table.dtype() != DType::F64)
    }

    fn tracks_gradient(&self) -> bool {
        self.table.track_op() || self.factors.as_ref().is_some_and(Tensor::track_op)
    }

    fn describe(&self) -> String {
        format!("relative bias({:?})", self.table.dims())
    }
}
