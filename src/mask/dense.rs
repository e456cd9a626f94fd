//! Masks as tensors that broadcast to the scores.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::shape::AttnShape;
use crate::tensor::{check_allocation, element_count, select, try_reserve};

/// A mask as tensors that broadcast to `(b, h, s_q, s_kv)`, both 4-D. An absent tensor hides nothing or adds nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct DenseMask {
    /// u8, 1 = visible.
    pub keep: Option<Tensor>,
    /// Finite values to be added to the scores, in their dtype.
    pub bias: Option<Tensor>,
}

impl DenseMask {
    /// A mask that only hides keys.
    pub(crate) fn keep(keep: Tensor) -> Self {
        Self { keep: Some(keep), bias: None }
    }

    /// A mask that only adds to the scores.
    pub(crate) fn bias(bias: Tensor) -> Self {
        Self { keep: None, bias: Some(bias) }
    }

    /// A mask under which query `i` of sequence `b` sees the keys `range(b, i)`. `sequences` or `queries` of 1 stand
    /// for all of them.
    pub(crate) fn ranges(
        [sequences, queries, s_kv]: [usize; 3],
        device: &Device,
        range: impl Fn(usize, usize) -> Range<usize>,
    ) -> Result<Self> {
        let size = element_count("a mask", &[sequences, queries, s_kv])?;
        let mut keep = Vec::new();
        try_reserve("a mask", &mut keep, size)?;
        keep.resize(size, 0u8);
        let each = (0..sequences).flat_map(|b| (0..queries).map(move |i| (b, i)));
        for ((b, i), row) in each.zip(keep.chunks_mut(s_kv.max(1))) {
            let Range { start, end } = range(b, i);
            if start < end {
                row[start..end].fill(1);
            }
        }
        Ok(Self::keep(Tensor::from_vec(keep, (sequences, 1, queries, s_kv), device)?))
    }

    /// The mask that both masks make together: a key is visible if both keep it, and biases add up.
    pub(crate) fn and(self, other: Self) -> Result<Self> {
        let keep = match (self.keep, other.keep) {
            // Both are 0 or 1.
            (Some(a), Some(b)) => Some(a.broadcast_mul(&b)?),
            (a, b) => a.or(b),
        };
        let bias = match (self.bias, other.bias) {
            (Some(a), Some(b)) => Some(a.broadcast_add(&b)?),
            (a, b) => a.or(b),
        };
        Ok(Self { keep, bias })
    }

    /// The mask with `appended` more keys after the `s_kv` ones, visible to every query.
    pub(crate) fn append_visible(self, s_kv: usize, appended: usize) -> Result<Self> {
        if appended == 0 {
            return Ok(self);
        }
        Ok(Self {
            keep: self.keep.map(|keep| append(&keep, 1.0, s_kv, appended)).transpose()?,
            bias: self.bias.map(|bias| append(&bias, 0.0, s_kv, appended)).transpose()?,
        })
    }
}

/// `(b|1, h|1, s_q|1, s_kv|1)` → `(b|1, h|1, s_q|1, s_kv + appended)`, the appended elements being `value`.
fn append(mask: &Tensor, value: f32, s_kv: usize, appended: usize) -> Result<Tensor> {
    let mut dims = mask.dims().to_vec();
    dims[3] = s_kv;
    let mask = mask.broadcast_as(&dims[..])?.contiguous()?;
    dims[3] = appended;
    let more = Tensor::full(value, dims, mask.device())?.to_dtype(mask.dtype())?;
    Ok(Tensor::cat(&[mask, more], 3)?)
}

/// The lowest finite value of a floating dtype, which Hugging Face writes into masks to hide a key.
pub(crate) fn lowest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => -65504.0,
        // Written exactly: f32's would round to -inf in bf16.
        DType::BF16 => -3.389_531_389_251_535_5e38,
        DType::F64 => f64::MIN,
        _ => f64::from(f32::MIN),
    }
}

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

/// A mask tensor with the dimensions of the scores.
#[derive(Debug, Clone)]
pub(crate) struct MaskTensor {
    /// `(b|1, h|1, s_q|1, s_kv|1)`.
    pub tensor: Tensor,
    dims: MaskDims,
    /// The kind of mask that it belongs to: `keep`, `exclude` or `additive`.
    kind: &'static str,
}

impl MaskTensor {
    /// Adds the dimensions that `tensor` leaves out; differentiable.
    pub(crate) fn new(kind: &'static str, tensor: &Tensor, dims: MaskDims) -> Result<Self> {
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
            (MaskDims::Keys, _) => {
                let expected = format!("2 dimensions (b, s_kv); `{kind}` takes (b, h, s_q, s_kv)");
                return Err(Error::shape(format!("{kind}_keys mask"), tensor.dims(), expected));
            }
            (MaskDims::Pattern, _) => {
                let expected = format!("2 dimensions (s_q, s_kv); `{kind}` takes (b, h, s_q, s_kv)");
                return Err(Error::shape(format!("{kind}_pattern mask"), tensor.dims(), expected));
            }
        };
        Ok(Self { tensor, dims, kind })
    }

    /// The name of the constructor.
    pub(crate) fn name(&self) -> String {
        let suffix = match self.dims {
            MaskDims::Scores => "",
            MaskDims::Keys => "_keys",
            MaskDims::Pattern => "_pattern",
        };
        format!("{}{suffix}", self.kind)
    }

    /// The dimensions as they were given to the constructor.
    pub(crate) fn given_dims(&self) -> Vec<usize> {
        let [b, h, s_q, s_kv] = self.dims4();
        match self.dims {
            MaskDims::Scores => vec![b, h, s_q, s_kv],
            MaskDims::Keys => vec![b, s_kv],
            MaskDims::Pattern => vec![s_q, s_kv],
        }
    }

    /// The dimensions of [`tensor`](Self::tensor).
    pub(crate) fn dims4(&self) -> [usize; 4] {
        std::array::from_fn(|i| self.tensor.dims()[i])
    }

    /// Checks the dimensions against the call.
    pub(crate) fn check(&self, shape: AttnShape) -> Result<()> {
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
    pub(crate) fn compact(&self) -> Result<Tensor> {
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

    /// The mask of these queries.
    pub(crate) fn of_queries(&self, queries: Range<usize>) -> Result<Self> {
        self.cut(2, |tensor| Ok(tensor.narrow(2, queries.start, queries.len())?))
    }

    /// The mask of these heads, in this order.
    pub(crate) fn of_heads(&self, heads: &[usize]) -> Result<Self> {
        self.cut(1, |tensor| select(tensor, heads, 1))
    }

    /// Applies `cut` to the tensor unless it shares the dimension.
    fn cut(&self, dim: usize, cut: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let shared = self.tensor.dim(dim)? == 1;
        let tensor = if shared { self.tensor.clone() } else { cut(&self.tensor)? };
        Ok(Self { tensor, ..self.clone() })
    }
}
