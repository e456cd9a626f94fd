use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::kernels::cpu::{Distances, Lengths};
use crate::mask::dense::{Band, left_pad_dims, lowest_finite, to_4d};
use crate::mask::lowered::LoweredMask;
use crate::mask::{AttentionMask, Part};

impl AttentionMask {
    /// The mask's structure, its tensors brought to a device.
    pub(crate) fn lower(&self, device: &Device) -> Result<LoweredMask> {
        let mut lowered = LoweredMask::default();
        if let Some(Band { left, right }) = Band::of(&self.parts) {
            lowered.structure.narrow_window(left, right);
        }
        let there = |mask: &Tensor| mask.to_device(device);
        for part in &self.parts {
            match part {
                Part::Keep(mask) => lowered.keep.push(to_4d(&there(mask)?.ne(0f64)?)?),
                Part::Drop(mask) => lowered.keep.push(to_4d(&there(mask)?.eq(0f64)?)?),
                Part::Additive(mask) => {
                    let mask = there(mask)?;
                    let mask = match mask.dtype() {
                        DType::F32 => mask,
                        dtype => {
                            let hidden = mask.le(lowest_finite(dtype))?;
                            let mask = mask.to_dtype(DType::F32)?;
                            hidden.where_cond(&Tensor::full(f32::MIN, mask.shape(), device)?, &mask)?
                        }
                    };
                    lowered.bias.push(left_pad_dims(&mask)?);
                }
                Part::Lengths(rows) => lowered.structure.lengths.push(Lengths::PerSequence(rows.clone())),
                Part::QueryLengths(rows) => lowered.structure.lengths.push(Lengths::PerQuery(rows.clone())),
                Part::Distances { slopes, symmetric } => {
                    let slopes = slopes.iter().map(|slope| *slope as f32).collect();
                    lowered.structure.distances.push(Distances { slopes, symmetric: *symmetric });
                }
                Part::Padding(rows) => lowered.structure.lengths.push(Lengths::Padding(rows.clone())),
                Part::Starts(starts) => lowered.structure.starts = Some(starts.clone()),
                Part::Causal | Part::Window { .. } => {}
                Part::Segments { queries, keys } => {
                    let ids = |ids: &Tensor| there(ids)?.to_dtype(DType::I64)?.contiguous();
                    lowered.segments.push([ids(queries)?, ids(keys)?]);
                }
            }
        }
        Ok(lowered)
    }

    /// Whether a gradient would have to flow into the mask.
    pub(crate) fn tracks_gradient(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Additive(mask) if mask.track_op()))
    }
}
