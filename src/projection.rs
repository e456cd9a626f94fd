//! The input and output projections: `y = x Wᵀ + b`, dense or with query, key and value packed in one matrix.

use candle_core::{D, DType, Tensor};

use crate::checkpoint::{DenseWeights, QkvWeights};
use crate::error::{Error, Result};
use crate::sdpa::same_dtype_and_device;

/// `y = x Wᵀ + b` with W `(out, in)`.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Dense {
    /// Checks that the weight is `(out, in)` and the bias `(out)`, of one dtype and on one device.
    pub(crate) fn new(name: &str, weights: DenseWeights, out: usize, input: usize) -> Result<Self> {
        let DenseWeights { weight, bias } = weights;
        let check = |what: &str, tensor: &Tensor, want: &[usize]| match tensor.dims() == want {
            true => Ok(()),
            false => Err(Error::shape(format!("{name} {what}"), tensor.dims(), format!("{want:?}"))),
        };
        check("weight", &weight, &[out, input])?;
        if let Some(bias) = &bias {
            check("bias", bias, &[out])?;
            same_dtype_and_device(&format!("{name} bias"), bias, &weight)?;
        }
        Ok(Self { weight, bias })
    }

    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// xs `(b, s, in)` → `(b, s, out)` in `dtype`.
    pub(crate) fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        let (b, s, input) = xs.dims3()?;
        // Rounding to a half type once, after the bias, as a fused addmm does.
        let wide = accumulate_in(&self.weight);
        let xs = xs.to_dtype(wide)?.contiguous()?.reshape((b * s, input))?;
        let ys = xs.matmul(&self.weight.to_dtype(wide)?.t()?)?;
        let ys = match &self.bias {
            Some(bias) => ys.broadcast_add(&bias.to_dtype(wide)?)?,
            None => ys,
        };
        Ok(ys.to_dtype(dtype)?.reshape((b, s, self.weight.dim(0)?))?)
    }

    pub(crate) fn tracks_gradient(&self) -> bool {
        self.weight.track_op() || self.bias.as_ref().is_some_and(Tensor::track_op)
    }

    /// Rows `start .. start + len` of the projection.
    fn rows(&self, start: usize, len: usize) -> Result<Self> {
        let bias = self.bias.as_ref().map(|bias| bias.narrow(0, start, len)).transpose()?;
        Ok(Self { weight: self.weight.narrow(0, start, len)?, bias })
    }
}

/// The dtype in which products are summed, and in which queries, keys and values are kept: on the CPU f32 for half
/// types, which its matmul would round at every step; GPUs accumulate in f32 by themselves.
pub(crate) fn accumulate_in(weight: &Tensor) -> DType {
    match weight.dtype() {
        DType::F16 | DType::BF16 if weight.device().is_cpu() => DType::F32,
        dtype => dtype,
    }
}

/// The projections of queries, keys and values.
#[derive(Debug, Clone)]
pub(crate) enum Qkv {
    Split(Box<[Dense; 3]>),
    Packed { all: Dense, rows: [usize; 3] },
}

const NAMES: [&str; 3] = ["q_proj", "k_proj", "v_proj"];

impl Qkv {
    /// `rows`: the outputs of q, k, v; `inputs`: their inputs.
    pub(crate) fn new(weights: QkvWeights, rows: [usize; 3], inputs: [usize; 3]) -> Result<Self> {
        Ok(match weights {
            QkvWeights::Split(dense) => {
                let [q, k, v] = *dense;
                let dense = |i: usize, weights| Dense::new(NAMES[i], weights, rows[i], inputs[i]);
                let all = [dense(0, q)?, dense(1, k)?, dense(2, v)?];
                for (dense, name) in all.iter().zip(NAMES) {
                    same_dtype_and_device(&format!("{name} weight"), &dense.weight, &all[0].weight)?;
                }
                Self::Split(Box::new(all))
            }
            QkvWeights::Packed(all) => {
                Self::Packed { all: Dense::new("packed q, k, v", all, rows.iter().sum(), inputs[0])?, rows }
            }
        })
    }

    /// Any of the weights, to tell dtype and device.
    pub(crate) fn weight(&self) -> &Tensor {
        match self {
            Self::Split(dense) => dense[0].weight(),
            Self::Packed { all, .. } => all.weight(),
        }
    }

    /// Whether any weight tracks operations.
    pub(crate) fn tracks_gradient(&self) -> bool {
        match self {
            Self::Split(dense) => dense.iter().any(Dense::tracks_gradient),
            Self::Packed { all, .. } => all.tracks_gradient(),
        }
    }

    /// Projects `[query, key, value]`, each `(b, s, in)`, and cuts the results into heads: `(b, s, h, d)`. `sizes` are
    /// the numbers a head of q, k and v.
    pub(crate) fn forward(&self, inputs: [&Tensor; 3], sizes: [usize; 3]) -> Result<[Tensor; 3]> {
        let dtype = accumulate_in(self.weight());
        let heads = |ys: Tensor, i: usize| {
            let (b, s, width) = ys.dims3()?;
            Ok::<_, Error>(ys.reshape((b, s, width / sizes[i], sizes[i]))?)
        };
        let [q, k, v] = inputs;
        match self {
            Self::Split(dense) => {
                let part = |i: usize, xs: &Tensor| heads(dense[i].forward(xs, dtype)?, i);
                Ok([part(0, q)?, part(1, k)?, part(2, v)?])
            }
            Self::Packed { all, rows } => {
                let start = |i: usize| rows[..i].iter().sum::<usize>();
                if q.id() != k.id() || q.id() != v.id() {
                    let part = |i: usize, xs: &Tensor| heads(all.rows(start(i), rows[i])?.forward(xs, dtype)?, i);
                    return Ok([part(0, q)?, part(1, k)?, part(2, v)?]);
                }
                let ys = all.forward(q, dtype)?;
                if sizes[1] != sizes[2] {
                    let part = |i: usize| heads(ys.narrow(D::Minus1, start(i), rows[i])?, i);
                    return Ok([part(0)?, part(1)?, part(2)?]);
                }
                // Cut into heads first: then q, k and v are views of one tensor, and nothing is copied.
                let (b, s, width) = ys.dims3()?;
                let ys = ys.reshape((b, s, width / sizes[0], sizes[0]))?;
                let part = |i: usize| ys.narrow(2, start(i) / sizes[i], rows[i] / sizes[i]);
                Ok([part(0)?, part(1)?, part(2)?])
            }
        }
    }
}
