//! The fused kernel as an operation of candle's graph: with gradients of queries, keys and values, and with dropout.
//!
//! The forward pass keeps two numbers per query and head, and the backward pass computes the scores again: memory is
//! linear in the number of keys. It computes in f32 whatever the dtype of queries, keys and values is.

use std::borrow::Cow;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use candle_attention_kernels as kernels;
use candle_attention_kernels::{AttentionGradient, Dropout, Isa, SoftmaxRow, Team};
use candle_core::{CpuStorage, CustomOp3, DType, Layout, Shape, Tensor, Var};

use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::sdpa::cpu::Prepared;
use crate::sdpa::non_finite::all_finite;
use crate::sdpa::{SdpaOptions, eager};

/// One call of the kernel that a gradient may flow through.
pub(super) struct FusedAttention {
    prepared: Prepared,
    dropout: Option<Dropout>,
    options: SdpaOptions<'static>,
    /// Copies of those of the options.
    sinks: Option<Tensor>,
    /// `(queries, h)`.
    rows: Vec<SoftmaxRow>,
    /// The output, until it becomes a tensor.
    output: Mutex<Option<(CpuStorage, Shape)>>,
}

impl FusedAttention {
    pub(super) fn new(prepared: Prepared, options: &SdpaOptions) -> Result<Self> {
        // Both passes drop the same weights, also if the caller does not say which.
        let seed = options.dropout_seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let dropout = (options.dropout > 0.0).then(|| Dropout::new(options.dropout, seed)).transpose()?;
        let sinks = options.sinks.cloned();
        let options = SdpaOptions {
            mask: Cow::Owned(AttentionMask::clone(&options.mask)),
            sinks: None,
            additive: None,
            value_distances: None,
            dropout_seed: Some(seed),
            ..*options
        };
        Ok(Self { prepared, dropout, options, sinks, rows: Vec::new(), output: Mutex::default() })
    }

    /// The output `(b, s_q, h, d_v)` in the dtype of the call.
    pub(super) fn attend(mut self, qkv: [&Tensor; 3]) -> Result<Tensor> {
        let call = self.prepared.call;
        let [q, k, v] = qkv.map(|tensor| tensor.to_dtype(DType::F32));
        let [q, k, v] = [q?, k?, v?];
        let (mut output, mut rows) = (Vec::new(), Vec::new());
        self.prepared.with_problem([&q, &k, &v], [], |attention, []| {
            Team::with(attention.multiply_adds(), |team| {
                kernels::attend_for_training(Isa::detect()?, team, attention, self.dropout, &mut output, &mut rows)
            })
        })?;
        let output = if call.tracks_gradient {
            let (b, tokens, h, _) = q.dims4()?;
            self.rows = rows;
            self.output = Mutex::new(Some((CpuStorage::F32(output), Shape::from((b, tokens, h, call.d_v)))));
            q.apply_op3(&k, &v, self)?
        } else {
            self.prepared.tensor(output, &q)?
        };
        Ok(output.to_dtype(call.dtype)?)
    }

    /// The gradients of queries, keys and values by the kernel.
    fn gradients(&self, qkv: [&Tensor; 3], output: &Tensor, gradient: &Tensor) -> Result<[Tensor; 3]> {
        let [mut q, mut k, mut v] = [const { Vec::new() }; 3];
        self.prepared.with_problem(qkv, [output, gradient], |attention, [output, gradient]| {
            let (problem, dropout, rows) = (attention, self.dropout, &self.rows[..]);
            let call = AttentionGradient { problem, dropout, rows, output, gradient };
            let work = attention.multiply_adds().saturating_mul(5) / 2;
            Team::with(work, |team| kernels::attention_backward(Isa::detect()?, team, &call, [&mut q, &mut k, &mut v]))
        })?;
        let tensor = |data, like: &Tensor| Tensor::from_vec(data, like.shape(), like.device());
        Ok([tensor(q, qkv[0])?, tensor(k, qkv[1])?, tensor(v, qkv[2])?])
    }

    /// The same by candle's operations, which leave out what is not finite where a mask hides it.
    fn eager_gradients(&self, qkv: [&Tensor; 3], gradient: &Tensor) -> Result<[Tensor; 3]> {
        let [q, k, v] = qkv.map(|tensor| Var::from_tensor(&tensor.detach()));
        let [q, k, v] = [q?, k?, v?];
        let options = SdpaOptions { sinks: self.sinks.as_ref(), ..self.options.clone() };
        let call = crate::sdpa::Call { dtype: DType::F32, ..self.prepared.call };
        let output = eager::attend(&q, &k, &v, &call, &options)?.output;
        let mut grads = (output * gradient)?.sum_all()?.backward()?;
        let mut gradient = |of: &Var| grads.remove(of).map_or_else(|| of.zeros_like(), Ok);
        Ok([gradient(&q)?, gradient(&k)?, gradient(&v)?])
    }
}

impl CustomOp3 for FusedAttention {
    fn name(&self) -> &'static str {
        "fused-attention"
    }

    /// The output that [`attend`](FusedAttention::attend) has computed.
    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner).take();
        output.ok_or_else(|| Error::value("the output of attention", "taken", "one that is taken once").into())
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        // A ragged batch has no padding whose contents do not matter.
        let finite = self.prepared.offsets.is_some() || (all_finite(q)? && all_finite(k)? && all_finite(v)?);
        let [q, k, v] = match finite {
            true => self.gradients([q, k, v], output, gradient)?,
            false => self.eager_gradients([q, k, v], gradient)?,
        };
        Ok((Some(q), Some(k), Some(v)))
    }
}
