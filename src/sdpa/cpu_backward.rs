//! The fused kernel as an operation of candle's graph: with gradients of queries, keys, values and biases by distance,
//! and with dropout.
//!
//! The forward pass keeps two numbers per query and head, and the backward pass computes the scores again: memory is
//! linear in the number of keys. It computes in f32 whatever the dtype of queries, keys and values is.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use candle_attention_kernels as kernels;
use candle_attention_kernels::{AttentionGradient, Dropout, Isa, SoftmaxRow, Team};
use candle_core::{CpuStorage, CustomOp3, D, DType, Device, Layout, Shape, Tensor};

use crate::error::{Error, Result};
use crate::sdpa::SdpaOptions;
use crate::sdpa::cpu_call::CpuCall;
use crate::sdpa::non_finite::finite_only;

/// One call of the kernel that a gradient may flow through.
///
/// Its arguments are queries, keys and values; or, because an operation has three at most, queries, keys and values
/// along the last dimension, and biases by distance.
pub(super) struct FusedAttention {
    prepared: CpuCall,
    dropout: Option<Dropout>,
    learns_table: bool,
    /// `(queries, h)`.
    rows: Vec<SoftmaxRow>,
    /// The output, until it becomes a tensor.
    output: Mutex<Option<(CpuStorage, Shape)>>,
}

impl FusedAttention {
    /// The output `(b, s_q, h, d_v)` in the dtype of the call.
    pub(super) fn attend(prepared: CpuCall, qkv: [&Tensor; 3], options: &SdpaOptions) -> Result<Tensor> {
        let call = prepared.call;
        // Both passes drop the same weights, also if the caller does not say which.
        let seed = options.dropout_seed.unwrap_or_else(|| RandomState::new().hash_one(()));
        let dropout = (options.dropout > 0.0).then(|| Dropout::new(options.dropout, seed)).transpose()?;
        let [q, k, v] = qkv.map(|tensor| tensor.to_dtype(DType::F32));
        let [q, k, v] = [q?, k?, v?];
        let (mut output, mut rows) = (Vec::new(), Vec::new());
        prepared.with_problem([&q, &k, &v], [], |attention, []| {
            Team::with(attention.multiply_adds(), |team| {
                kernels::attend_for_training(Isa::detect()?, team, attention, dropout, &mut output, &mut rows)
            })
        })?;
        let (b, tokens, h, _) = q.dims4()?;
        let shape = Shape::from((b, tokens, h, call.d_v));
        if !call.tracks_gradient {
            return Ok(Tensor::from_vec(output, shape, &Device::Cpu)?.to_dtype(call.dtype)?);
        }
        let table = options.mask.learned_biases().map(|table| table.to_dtype(DType::F32)).transpose()?;
        let output = Mutex::new(Some((CpuStorage::F32(output), shape)));
        let fused = Self { prepared, dropout, learns_table: table.is_some(), rows, output };
        let output = match table {
            Some(table) => q.apply_op3(&Tensor::cat(&[&k, &v], D::Minus1)?, &table, fused)?,
            None => q.apply_op3(&k, &v, fused)?,
        };
        Ok(output.to_dtype(call.dtype)?)
    }

    fn gradients(&self, qkv: [&Tensor; 3], output: &Tensor, gradient: &Tensor) -> Result<kernels::Gradients> {
        // What is not finite is hidden by a mask, or its query has a NaN in the forward pass.
        let [q, k, v] = qkv.map(finite_only);
        self.prepared.with_problem([&q?, &k?, &v?], [output, gradient], |problem, [output, gradient]| {
            let Self { dropout, learns_table, rows, .. } = self;
            let (dropout, learns_table) = (*dropout, *learns_table);
            let call = AttentionGradient { problem, dropout, rows, output, gradient, learns_table };
            let work = problem.multiply_adds().saturating_mul(5) / 2;
            Team::with(work, |team| kernels::attention_backward(Isa::detect()?, team, &call))
        })
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
        second: &Tensor,
        third: &Tensor,
        output: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (d, d_v) = (self.prepared.call.d, self.prepared.call.d_v);
        let [k, v] = if self.learns_table {
            [second.narrow(3, 0, d)?, second.narrow(3, d, d_v)?]
        } else {
            [second.clone(), third.clone()]
        };
        let of = self.gradients([q, &k, &v], output, gradient)?;
        let tensor = |data, shape: &Shape| Tensor::from_vec(data, shape, &Device::Cpu);
        let (q, k, v) = (tensor(of.q, q.shape())?, tensor(of.k, k.shape())?, tensor(of.v, v.shape())?);
        if !self.learns_table {
            return Ok((Some(q), Some(k), Some(v)));
        }
        let (distances, h) = third.dims2()?;
        let table = tensor(of.table, &Shape::from((h, distances)))?.t()?.contiguous()?;
        Ok((Some(q), Some(Tensor::cat(&[&k, &v], D::Minus1)?), Some(table)))
    }
}
