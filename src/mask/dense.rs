use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::mask::check::AttnShape;
use crate::mask::{AttentionMask, Part};

/// A mask as tensors that broadcast to `(b, h, s_q, s_kv)`, for backends that need one.
#[derive(Debug, Clone)]
pub(crate) struct DenseMask {
    /// u8, 1 = attend.
    pub keep: Option<Tensor>,
    /// Finite numbers in the dtype of the scores.
    pub bias: Option<Tensor>,
}

impl AttentionMask {
    /// Builds the tensors for `call`. The last `always` keys, beyond `call.s_kv`, are seen by every query.
    pub(crate) fn dense(&self, call: AttnShape, always: usize, dtype: DType, device: &Device) -> Result<DenseMask> {
        let mut dense = DenseMask { keep: None, bias: None };
        let starts = self.query_starts(call);
        // A single query that stands at the last key sees all that a band without a left edge could hide.
        let needed = |band: &Band| band.left.is_some() || call.s_q > 1 || starts.len() > 1;
        if let Some(band) = Band::of(&self.parts).filter(needed) {
            dense.keep(band.keep(call, &starts, device)?)?;
        }
        for part in &self.parts {
            if let Part::Distances { slopes, symmetric } = part {
                dense.bias(distances(slopes, *symmetric, call, &starts)?.to_dtype(dtype)?.to_device(device)?)?;
            }
            part.add_to(&mut dense, call, dtype, device)?;
        }
        if always > 0 {
            dense.keep = dense.keep.map(|keep| with_ones(&keep, call.s_kv, always)).transpose()?;
            dense.bias = dense.bias.map(|bias| with_zeros(&bias, call.s_kv, always)).transpose()?;
        }
        Ok(dense)
    }
}

impl AttentionMask {
    /// How many places the tensors of [`dense`](Self::dense) have, at most.
    pub(crate) fn dense_elements(&self, call: AttnShape, always: usize) -> usize {
        let AttnShape { b, h, s_q, s_kv } = call;
        let rows = if self.parts.iter().any(|part| matches!(part, Part::Starts(_))) { b } else { 1 };
        let dims = |part: &Part| match part {
            Part::Keep(mask) | Part::Drop(mask) => match *mask.dims() {
                [b, s_kv] => [b, 1, 1, s_kv],
                [b, s_q, s_kv] => [b, 1, s_q, s_kv],
                _ => last_four(mask.dims()),
            },
            Part::Additive(mask) => last_four(mask.dims()),
            Part::Lengths(_) => [b, 1, 1, s_kv],
            Part::QueryLengths(_) | Part::Padding(_) | Part::Segments { .. } => [b, 1, s_q, s_kv],
            Part::Causal | Part::Window { .. } => [rows, 1, s_q, s_kv],
            Part::Distances { .. } => [rows, h, s_q, s_kv],
            Part::Starts(_) => [0; 4],
        };
        let all = self.parts.iter().map(dims).reduce(|a, b| std::array::from_fn(|i| a[i].max(b[i])));
        all.map_or(0, |[b, h, s_q, s_kv]| b * h * s_q * (s_kv + always))
    }
}

/// The dimensions of a tensor with ones before them.
fn last_four(dims: &[usize]) -> [usize; 4] {
    std::array::from_fn(|i| (i + dims.len()).checked_sub(4).map_or(1, |i| dims[i]))
}

impl DenseMask {
    fn keep(&mut self, keep: Tensor) -> Result<()> {
        self.keep = Some(match self.keep.take() {
            Some(other) => other.broadcast_mul(&keep)?,
            None => keep,
        });
        Ok(())
    }

    fn bias(&mut self, bias: Tensor) -> Result<()> {
        self.bias = Some(match self.bias.take() {
            Some(other) => other.broadcast_add(&bias)?,
            None => bias,
        });
        Ok(())
    }
}

impl Part {
    /// Compares and casts where the mask lies, then moves the result: not every device has every dtype.
    fn add_to(&self, dense: &mut DenseMask, call: AttnShape, dtype: DType, device: &Device) -> Result<()> {
        let AttnShape { b, s_q, s_kv, .. } = call;
        match self {
            Self::Keep(mask) => dense.keep(to_4d(&mask.ne(0f64)?.to_device(device)?)?),
            Self::Drop(mask) => dense.keep(to_4d(&mask.eq(0f64)?.to_device(device)?)?),
            Self::Additive(mask) => {
                // On the values, not on their gradient: which keys are hidden is no function one could derive.
                // Not `gt`: a NaN is to be seen in the result.
                let keep = mask.detach().le(lowest_finite(mask.dtype()))?.eq(0f64)?;
                let bias = keep.where_cond(mask, &mask.zeros_like()?)?.to_dtype(dtype)?;
                dense.keep(left_pad_dims(&keep.to_device(device)?)?)?;
                dense.bias(left_pad_dims(&bias.to_device(device)?)?)
            }
            // Full rows hide nothing: the common case of one text, or of texts of one length.
            Self::Lengths(rows) if rows.iter().all(|&n| n == s_kv) => Ok(()),
            Self::Lengths(rows) => {
                let keep: Vec<u8> = rows.iter().flat_map(|&n| (0..s_kv).map(move |j| u8::from(j < n))).collect();
                dense.keep(Tensor::from_vec(keep, (b, 1, 1, s_kv), device)?)
            }
            Self::QueryLengths(rows) => {
                let queries = rows.iter().flatten();
                let keep: Vec<u8> = queries.flat_map(|&n| (0..s_kv).map(move |j| u8::from(j < n))).collect();
                dense.keep(Tensor::from_vec(keep, (b, 1, s_q, s_kv), device)?)
            }
            Self::Padding(rows) if rows.iter().all(|&n| n == s_kv) => Ok(()),
            Self::Padding(rows) => {
                let tokens = |n: usize| (0..s_q).flat_map(move |i| (0..s_kv).map(move |j| u8::from(i < n && j < n)));
                let keep: Vec<u8> = rows.iter().flat_map(|&n| tokens(n)).collect();
                dense.keep(Tensor::from_vec(keep, (b, 1, s_q, s_kv), device)?)
            }
            // Built elsewhere, from all parts together.
            Self::Causal | Self::Window { .. } | Self::Distances { .. } | Self::Starts(_) => Ok(()),
            Self::Segments { queries, keys } => {
                let ids = |ids: &Tensor| ids.to_dtype(DType::I64)?.to_device(device);
                let (queries, keys) = (ids(queries)?.reshape((b, 1, s_q, 1))?, ids(keys)?.reshape((b, 1, 1, s_kv))?);
                dense.keep(queries.broadcast_eq(&keys)?)
            }
        }
    }
}

/// Causal masks and windows together: query `i` sees keys `i + offset - left ..= i + offset + right`.
pub(super) struct Band {
    pub left: Option<usize>,
    pub right: Option<usize>,
}

impl Band {
    /// The narrowest of all, `None` if there is none.
    pub(super) fn of(parts: &[Part]) -> Option<Self> {
        let mut band = Self { left: None, right: None };
        let mut any = false;
        let narrower = |a: Option<usize>, b: Option<usize>| a.into_iter().chain(b).min();
        for part in parts {
            let (left, right) = match part {
                Part::Causal => (None, Some(0)),
                Part::Window { left, right } => (*left, *right),
                _ => continue,
            };
            any = true;
            band = Self { left: narrower(band.left, left), right: narrower(band.right, right) };
        }
        any.then_some(band)
    }

    /// `starts`: where query 0 stands, for all rows or for each.
    fn keep(&self, call: AttnShape, starts: &[i64], device: &Device) -> Result<Tensor> {
        let AttnShape { s_q, s_kv, .. } = call;
        let mut keep = vec![0u8; starts.len() * s_q * s_kv];
        let positions = starts.iter().flat_map(|start| (0..s_q as i64).map(move |i| start + i));
        for (position, row) in positions.zip(keep.chunks_mut(s_kv.max(1))) {
            let limit = |reach: Option<usize>, none: usize| reach.map_or(none, |n| n.min(s_q + s_kv)) as i64;
            let from = (position - limit(self.left, s_q + s_kv)).clamp(0, s_kv as i64) as usize;
            let to = (position + limit(self.right, s_q + s_kv) + 1).clamp(0, s_kv as i64) as usize;
            if from < to {
                row[from..to].fill(1);
            }
        }
        Ok(Tensor::from_vec(keep, (starts.len(), 1, s_q, s_kv), device)?)
    }
}

impl AttentionMask {
    /// The key at which query 0 stands: one for all rows, or one for each.
    pub(super) fn query_starts(&self, call: AttnShape) -> Vec<i64> {
        let stated = self.parts.iter().find_map(|part| match part {
            Part::Starts(starts) => Some(starts.clone()),
            _ => None,
        });
        stated.unwrap_or_else(|| vec![call.s_kv as i64 - call.s_q as i64])
    }
}

/// `-slope · distance`, `(rows, h, s_q, s_kv)`.
pub(super) fn distances(slopes: &[f64], symmetric: bool, call: AttnShape, starts: &[i64]) -> Result<Tensor> {
    let AttnShape { s_q, s_kv, .. } = call;
    let positions = starts.iter().flat_map(|start| (0..s_q as i64).map(move |i| start + i));
    let distance = |before: i64| -(if symmetric { before.abs() } else { before }) as f64;
    let distances: Vec<f64> = positions.flat_map(|p| (0..s_kv as i64).map(move |j| distance(p - j))).collect();
    let distances = Tensor::from_vec(distances, (starts.len(), 1, s_q, s_kv), &Device::Cpu)?;
    Ok(distances.broadcast_mul(&Tensor::new(slopes, &Device::Cpu)?.reshape((1, slopes.len(), 1, 1))?)?)
}

/// `(b, s_kv)` → `(b, 1, 1, s_kv)`, `(b, s_q, s_kv)` → `(b, 1, s_q, s_kv)`.
pub(super) fn to_4d(mask: &Tensor) -> Result<Tensor> {
    Ok(match mask.rank() {
        2 => mask.unsqueeze(1)?.unsqueeze(1)?,
        3 => mask.unsqueeze(1)?,
        _ => mask.clone(),
    })
}

/// Puts ones before the shape until it has four dimensions, as broadcasting reads it.
pub(super) fn left_pad_dims(mask: &Tensor) -> Result<Tensor> {
    let mut dims = vec![1; 4 - mask.rank()];
    dims.extend_from_slice(mask.dims());
    Ok(mask.reshape(dims)?)
}

fn with_ones(keep: &Tensor, s_kv: usize, always: usize) -> Result<Tensor> {
    let (keep, shape) = widened(keep, s_kv, always)?;
    Ok(Tensor::cat(&[keep.clone(), Tensor::ones(shape, keep.dtype(), keep.device())?], 3)?)
}

fn with_zeros(bias: &Tensor, s_kv: usize, always: usize) -> Result<Tensor> {
    let (bias, shape) = widened(bias, s_kv, always)?;
    Ok(Tensor::cat(&[bias.clone(), Tensor::zeros(shape, bias.dtype(), bias.device())?], 3)?)
}

/// The mask with its last dimension broadcast to `s_kv`, and the shape of what is to follow it.
fn widened(mask: &Tensor, s_kv: usize, always: usize) -> Result<(Tensor, Vec<usize>)> {
    let mut dims = mask.dims().to_vec();
    dims[3] = s_kv;
    let mask = mask.broadcast_as(dims.clone())?.contiguous()?;
    dims[3] = always;
    Ok((mask, dims))
}

/// The lowest finite number of a floating dtype.
pub(crate) fn lowest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        // Written exactly: f32's would round to -inf in bf16.
        DType::BF16 => -3.389_531_389_251_535_5e38,
        DType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}
