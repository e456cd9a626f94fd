//! Linear biases by distance (ALiBi).

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::lowered::TermStructure;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm, Part};
use crate::ops::expected_factor;
use crate::tensor::{element_count, try_reserve};

/// `-slopes[h] · distance` is added to the scores ([ALiBi, Press 2022](https://arxiv.org/abs/2108.12409)). The distance
/// of a key after the query is negative, or, if `symmetric`, positive too.
#[derive(Debug, Clone)]
pub(crate) struct Distances {
    pub slopes: Vec<f64>,
    pub symmetric: bool,
}

impl MaskTerm for Distances {
    fn check(&self, shape: AttnShape) -> Result<()> {
        if self.slopes.len() != shape.h {
            let expected = format!("{}, the number of heads", shape.h);
            return Err(Error::value("the number of slopes", self.slopes.len(), expected));
        }
        let slopes = self.slopes.iter().enumerate();
        match slopes.filter_map(|(i, slope)| Some((i, slope, expected_factor(*slope)?))).next() {
            Some((i, slope, expected)) => Err(Error::value(format!("slopes[{i}]"), slope, expected)),
            None => Ok(()),
        }
    }

    fn dense(&self, MaskCall { shape, starts, .. }: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        let AttnShape { s_q, s_kv, .. } = *shape;
        let size = element_count("the distances", &[starts.len(), s_q, s_kv])?;
        let mut distances = Vec::new();
        try_reserve("the distances", &mut distances, size)?;
        let positions = starts.iter().flat_map(|start| (0..s_q as i64).map(move |i| start + i));
        let negated = |distance: i64| -(if self.symmetric { distance.abs() } else { distance }) as f64;
        distances.extend(positions.flat_map(|p| (0..s_kv as i64).map(move |j| negated(p - j))));
        let distances = Tensor::from_vec(distances, (starts.len(), 1, s_q, s_kv), &Device::Cpu)?;
        let slopes = Tensor::new(&self.slopes[..], &Device::Cpu)?.reshape((1, self.slopes.len(), 1, 1))?;
        let bias = distances.broadcast_mul(&slopes)?.to_dtype(dtype)?.to_device(device)?;
        Ok(DenseMask { keep: None, bias: Some(bias) })
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        let AttnShape { h, s_q, s_kv, .. } = call.shape;
        [call.starts.len(), h, s_q, s_kv]
    }

    fn structure(&self) -> Option<TermStructure<'_>> {
        Some(TermStructure::Distances { slopes: &self.slopes, symmetric: self.symmetric })
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let slopes = match part {
            Part::Queries(_) => self.slopes.clone(),
            Part::Heads(heads) => heads.iter().map(|&h| self.slopes[h]).collect(),
        };
        Ok(Some(Arc::new(Self { slopes, symmetric: self.symmetric })))
    }

    fn describe(&self) -> String {
        format!("distances({} heads)", self.slopes.len())
    }
}
