//! Masks that are tensors: booleans (`keep`, `exclude`), and numbers that are added to the scores.

use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::{DenseMask, lowest_finite};
use crate::mask::lowered::LoweredMask;
use crate::mask::shape::{AttnShape, check_integers, comparable};
use crate::mask::term::{MaskCall, MaskTerm, Part};
use crate::tensor::{check_allocation, element_count};

/// The dimensions of a mask tensor.
///
/// The constructor of the mask names them, because a shape alone does not: `(n, n)` could be the keys of `n` sequences
/// or one pattern for `n` queries, and three dimensions could leave out the batch or the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaskDims {
    /// `(b|1, h|1, s_q|1, s_kv|1)`: those of the scores.
    Scores,
    /// `(b|1, s_kv)`: the keys of each sequence.
    Keys,
    /// `(s_q, s_kv)`: one pattern for all sequences and heads.
    Pattern,
}

/// The meaning of a nonzero element of a boolean mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polarity {
    /// The key is visible.
    Keep,
    /// The key is hidden.
    Exclude,
}

impl Polarity {
    /// The name of the kind of mask.
    fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Exclude => "exclude",
        }
    }
}

/// A tensor of booleans.
#[derive(Debug, Clone)]
pub(crate) struct Boolean {
    mask: MaskTensor,
    polarity: Polarity,
}

impl Boolean {
    pub(crate) fn new(mask: &Tensor, polarity: Polarity, dims: MaskDims) -> Result<Self> {
        check_integers(&format!("{} mask", polarity.name()), mask)?;
        Ok(Self { mask: MaskTensor::new(polarity.name(), &comparable(mask)?, dims)?, polarity })
    }
}

impl MaskTerm for Boolean {
    fn check(&self, shape: AttnShape) -> Result<()> {
        self.mask.check(shape)
    }

    fn dense(&self, _: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        // Compared before it is moved: not every device has every dtype.
        let mask = self.mask.compact()?;
        let keep = match self.polarity {
            Polarity::Keep => mask.ne(0f64)?,
            Polarity::Exclude => mask.eq(0f64)?,
        };
        Ok(DenseMask::keep(keep.to_device(device)?))
    }

    fn dense_dims(&self, _: &MaskCall) -> [usize; 4] {
        self.mask.dims4()
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        Ok(Some(Arc::new(Self { mask: self.mask.select(part)?, polarity: self.polarity })))
    }

    fn adds_to_scores(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("{}{:?}", self.mask.name(), self.mask.given_dims())
    }
}

/// A floating tensor that is added to the scores.
#[derive(Debug, Clone)]
pub(crate) struct Additive(MaskTensor);

impl Additive {
    pub(crate) fn new(mask: &Tensor, dims: MaskDims) -> Result<Self> {
        if !matches!(mask.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("additive mask", mask.dtype(), "f16, bf16, f32 or f64 (for booleans use `keep`)"));
        }
        Ok(Self(MaskTensor::new("additive", mask, dims)?))
    }
}

impl MaskTerm for Additive {
    fn check(&self, shape: AttnShape) -> Result<()> {
        self.0.check(shape)
    }

    fn dense(&self, _: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        let mask = &self.0.compact()?;
        // Which keys are hidden has no derivative. Not `gt`, which would hide a NaN.
        let keep = mask.detach().le(lowest_finite(mask.dtype()))?.eq(0f64)?;
        let numbers = match (mask.dtype(), dtype) {
            (DType::F64, DType::F32) => in_range_of_f32(mask, &keep)?,
            _ => mask.clone(),
        };
        let bias = keep.where_cond(&numbers, &mask.zeros_like()?)?.to_dtype(dtype)?;
        Ok(DenseMask { keep: Some(keep.to_device(device)?), bias: Some(bias.to_device(device)?) })
    }

    fn dense_dims(&self, _: &MaskCall) -> [usize; 4] {
        self.0.dims4()
    }

    /// One tensor instead of two: kernels hide the keys whose bias is at or below the lowest finite f32.
    fn lower(&self, lowered: &mut LoweredMask, _: &MaskCall, device: &Device) -> Result<()> {
        let mask = self.0.compact()?;
        let bias = match mask.dtype() {
            DType::F32 => mask,
            dtype => {
                let keep = mask.le(lowest_finite(dtype))?.eq(0f64)?;
                let mask = if dtype == DType::F64 { in_range_of_f32(&mask, &keep)? } else { mask };
                let hidden = Tensor::full(f32::MIN, mask.shape(), mask.device())?;
                keep.where_cond(&mask.to_dtype(DType::F32)?, &hidden)?
            }
        };
        lowered.bias.push(bias.to_device(device)?);
        Ok(())
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        Ok(Some(Arc::new(Self(self.0.select(part)?))))
    }

    fn tracks_gradient(&self) -> bool {
        self.0.tensor.track_op()
    }

    fn describe(&self) -> String {
        format!("{}{:?}", self.0.name(), self.0.given_dims())
    }
}

/// Numbers in f64 that give the same softmax in f32, where their own may be infinite, or hide a key.
///
/// A constant of a row changes no softmax. So the largest visible number of each row is brought into ±1e30, and what
/// is lower than -1e38 then, whose weight is 0 beside it, becomes -1e38: sums of three such masks are finite.
fn in_range_of_f32(mask: &Tensor, keep: &Tensor) -> Result<Tensor> {
    const MAX: f64 = 1e30;
    const LOWEST: f64 = -1e38;
    let numbers = mask.detach();
    let finite = (keep * numbers.abs()?.le(f64::MAX)?)?;
    let none = Tensor::full(f64::NEG_INFINITY, mask.shape(), mask.device())?;
    let largest = finite.where_cond(&numbers, &none)?.max_keepdim(D::Minus1)?;
    let mask = mask.broadcast_sub(&largest)?.broadcast_add(&largest.clamp(-MAX, MAX)?)?;
    // Not `maximum`, which would replace a NaN.
    let lower = mask.detach().le(LOWEST)?;
    Ok(lower.where_cond(&Tensor::full(LOWEST, mask.shape(), mask.device())?, &mask)?)
}

/// A mask tensor with the dimensions of the scores.
#[derive(Debug, Clone)]
struct MaskTensor {
    /// `(b|1, h|1, s_q|1, s_kv|1)`.
    tensor: Tensor,
    dims: MaskDims,
    /// The kind of mask that it belongs to: `keep`, `exclude` or `additive`.
    kind: &'static str,
}

impl MaskTensor {
    /// Adds the dimensions that `tensor` leaves out; differentiable.
    fn new(kind: &'static str, tensor: &Tensor, dims: MaskDims) -> Result<Self> {
        let tensor = match (dims, tensor.rank()) {
            (MaskDims::Scores, 4) => tensor.clone(),
            (MaskDims::Keys, 2) => tensor.unsqueeze(1)?.unsqueeze(1)?,
            (MaskDims::Pattern, 2) => tensor.unsqueeze(0)?.unsqueeze(0)?,
            (MaskDims::Scores, rank) => {
                let fewer = match rank {
                    2 => format!("; `{kind}_keys` takes (b, s_kv), `{kind}_pattern` takes (s_q, s_kv)"),
                    3 => "; (b, s_q, s_kv) becomes that by `unsqueeze(1)`, (h, s_q, s_kv) by `unsqueeze(0)`".into(),
                    _ => String::new(),
                };
                let expected = format!("4 dimensions (b, h, s_q, s_kv), each of its size or 1{fewer}");
                return Err(Error::shape(format!("{kind} mask"), tensor.dims(), expected));
            }
            (dims, _) => {
                let (name, shape) =
                    if dims == MaskDims::Keys { ("keys", "(b, s_kv)") } else { ("pattern", "(s_q, s_kv)") };
                let expected = format!("2 dimensions {shape}; `{kind}` takes (b, h, s_q, s_kv)");
                return Err(Error::shape(format!("{kind}_{name} mask"), tensor.dims(), expected));
            }
        };
        Ok(Self { tensor, dims, kind })
    }

    /// The name of the constructor.
    fn name(&self) -> String {
        let suffix = match self.dims {
            MaskDims::Scores => "",
            MaskDims::Keys => "_keys",
            MaskDims::Pattern => "_pattern",
        };
        format!("{}{suffix}", self.kind)
    }

    /// The dimensions as they were given to the constructor.
    fn given_dims(&self) -> Vec<usize> {
        let [b, h, s_q, s_kv] = self.dims4();
        match self.dims {
            MaskDims::Scores => vec![b, h, s_q, s_kv],
            MaskDims::Keys => vec![b, s_kv],
            MaskDims::Pattern => vec![s_q, s_kv],
        }
    }

    /// The dimensions of [`tensor`](Self::tensor).
    fn dims4(&self) -> [usize; 4] {
        std::array::from_fn(|i| self.tensor.dims()[i])
    }

    /// Checks the dimensions against the call.
    fn check(&self, shape: AttnShape) -> Result<()> {
        let (found, want) = (self.dims4(), shape.dims());
        let fits = |dim: usize| found[dim] == want[dim];
        let shared = |dim: usize| found[dim] == 1;
        let (fits, expected) = match self.dims {
            MaskDims::Scores => {
                let all = (0..4).all(|dim| fits(dim) || shared(dim));
                (all, format!("{want:?}, or 1 in place of a size: (b, h, s_q, s_kv)"))
            }
            MaskDims::Keys => (
                (fits(0) || shared(0)) && fits(3),
                format!("{:?}, or {:?} for all sequences: (b, s_kv)", [shape.b, shape.s_kv], [1, shape.s_kv]),
            ),
            MaskDims::Pattern => (fits(2) && fits(3), format!("{:?}: (s_q, s_kv)", [shape.s_q, shape.s_kv])),
        };
        if fits {
            return Ok(());
        }
        Err(Error::shape(format!("{} mask", self.name()), &self.given_dims(), expected))
    }

    /// The tensor with one element in place of a dimension that repeats one (as `broadcast_as` makes it), so that an
    /// operation on it costs no more than the memory that the mask has. A tensor that tracks a gradient is left as it
    /// is.
    fn compact(&self) -> Result<Tensor> {
        let mut tensor = self.tensor.clone();
        if !tensor.track_op() {
            for dim in 0..tensor.rank() {
                if tensor.stride()[dim] == 0 && tensor.dims()[dim] > 1 {
                    tensor = tensor.narrow(dim, 0, 1)?;
                }
            }
        }
        check_allocation::<f64>("a mask", element_count(&format!("{} mask", self.name()), tensor.dims())?)?;
        Ok(tensor)
    }

    /// The mask of a part of a call, which is this one if all share it.
    fn select(&self, part: &Part) -> Result<Self> {
        let is_shared = self.tensor.dim(part.dim([1, 2]))? == 1;
        let tensor = if is_shared { self.tensor.clone() } else { part.select(&self.tensor, [1, 2])? };
        Ok(Self { tensor, ..self.clone() })
    }
}
