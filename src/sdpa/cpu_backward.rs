//! The fused kernel as an operation of candle's graph: with gradients of queries, keys, values and biases by distance,
//! and with dropout.
//!
//! The forward pass keeps two numbers per query and head, and the backward pass computes the scores again: memory is
//! linear in the number of keys. It computes in f32 whatever the dtype of queries, keys and values is.

use std::hash::{BuildHasher, RandomState};

use candle_attention_kernels as kernels;
use candle_attention_kernels::{AttentionGradient, Dropout, Isa, SoftmaxRow, Team};
use candle_core::{D, DType, Device, Shape, Tensor};

use crate::error::Result;
use crate::sdpa::SdpaOptions;
use crate::sdpa::cpu_call::CpuCall;
use crate::sdpa::non_finite::finite_only;
use crate::tensor::computed;

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
        let [second, third] = match &table {
            Some(table) => [&Tensor::cat(&[&k, &v], D::Minus1)?, table],
            None => [&k, &v],
        };
        let fused = Self { prepared, dropout, learns_table: table.is_some(), rows };
        let gradients = move |arguments: [&Tensor; 3], output: &Tensor, gradient: &Tensor| {
            fused.argument_gradients(arguments, output, gradient)
        };
        Ok(computed("fused-attention", (output, shape), [&q, second, third], gradients)?.to_dtype(call.dtype)?)
    }

    fn gradients(&self, qkv: [&Tensor; 3], output: &Tensor, gradient: &Tensor) -> Result<kernels::Gradients> {
        // An element that is not finite is hidden by a mask, or its query has a NaN in the forward pass.
        let [q, k, v] = qkv.map(finite_only);
        self.prepared.with_problem([&q?, &k?, &v?], [output, gradient], |problem, [output, gradient]| {
            let Self { dropout, learns_table, rows, .. } = self;
            let (dropout, learns_table) = (*dropout, *learns_table);
            let call = AttentionGradient { problem, dropout, rows, output, gradient, learns_table };
            let work = problem.multiply_adds().saturating_mul(5) / 2;
            Team::with(work, |team| kernels::attention_backward(Isa::detect()?, team, &call))
        })
    }

    /// The gradients of the three arguments.
    fn argument_gradients(
        &self,
        [q, second, third]: [&Tensor; 3],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
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
            return Ok([q, k, v].map(Some));
        }
        let (distances, h) = third.dims2()?;
        let table = tensor(of.table, &Shape::from((h, distances)))?.t()?.contiguous()?;
        Ok([q, Tensor::cat(&[&k, &v], D::Minus1)?, table].map(Some))
    }
}
