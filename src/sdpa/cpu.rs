//! The fused CPU kernel over tensors.

use std::ops::Deref;

use candle_core::{CpuStorage, DType, Device, Layout, Storage, Tensor, WithDType};

use super::{Attended, Call, SdpaOptions};
use crate::error::{Error, Result};
use crate::kernels::{self, Attention, Broadcast, Element, Heads, Isa, Mask};
use crate::mask::check::CallShape;

/// Why the kernel cannot run a call, `None` if it can.
pub(super) fn reason_against(call: &Call, options: &SdpaOptions) -> Option<String> {
    let reasons = [
        (!call.on_cpu, "the tensors are not on the CPU"),
        (call.dtype == DType::F64, "it computes in f32, the tensors are f64"),
        (call.tracks_gradient, "a gradient is tracked, and it has none"),
        (options.return_weights, "weights are asked for, and it never has them whole"),
        (options.dropout > 0.0, "it does not drop weights"),
        (options.additive.is_some(), "it scores by dot product only"),
    ];
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason.to_string())
}

/// What all threads need together.
pub(super) fn scratch_bytes(call: &Call, options: &SdpaOptions) -> usize {
    let keys = call.shape.s_kv + options.appended_keys;
    let threads = rayon::current_num_threads().min(call.shape.b * call.h_kv * call.shape.s_q.div_ceil(128));
    threads * kernels::scratch_floats(keys, call.d, call.d_v) * size_of::<f32>()
}

pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, call: &Call, options: &SdpaOptions) -> Result<Attended> {
    let output = match call.dtype {
        DType::F32 => run::<f32>(q, k, v, call, options),
        DType::F16 => run::<half::f16>(q, k, v, call, options),
        DType::BF16 => run::<half::bf16>(q, k, v, call, options),
        other => Err(Error::dtype("q", other, "f32, f16 or bf16")),
    };
    Ok(Attended { output: output?, weights: None })
}

fn run<T: Element + WithDType>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    let CallShape { b, h, s_q, s_kv } = call.shape;
    let structure = options.mask.structure()?;
    let keep = structure.keep.iter().map(Slice::<u8>::new).collect::<Result<Vec<_>>>()?;
    let bias = structure.bias.iter().map(Slice::<f32>::new).collect::<Result<Vec<_>>>()?;
    let ids = structure.segments.iter().flatten().map(Slice::<i64>::new).collect::<Result<Vec<_>>>()?;
    let mask = Mask {
        lengths: structure.lengths,
        left: structure.left,
        right: structure.right,
        segments: ids.chunks_exact(2).map(|pair| [pair[0].queries(), pair[1].keys()]).collect(),
        keep: keep.iter().map(Slice::broadcast).collect(),
        bias: bias.iter().map(Slice::broadcast).collect(),
    };
    let (q, k, v) = (numbers_together(q)?, numbers_together(k)?, numbers_together(v)?);
    let (q, k, v) = (Slice::<T>::new(&q)?, Slice::<T>::new(&k)?, Slice::<T>::new(&v)?);
    let attention = Attention {
        q: q.heads(),
        k: k.heads(),
        v: v.heads(),
        b,
        s_q,
        s_kv,
        appended: options.appended_keys,
        h,
        h_kv: call.h_kv,
        d: call.d,
        d_v: call.d_v,
        scale: options.scale.unwrap_or_else(|| (call.d as f64).powf(-0.5)) as f32,
        mask,
    };
    let mut output = vec![T::ZERO; b * s_q * h * call.d_v];
    kernels::attend(Isa::detect()?, &attention, &mut output);
    Ok(Tensor::from_vec(output, (b, s_q, h, call.d_v), &Device::Cpu)?)
}

/// The kernel follows strides between heads, tokens and rows, but wants the numbers of a head side by side.
fn numbers_together(t: &Tensor) -> Result<Tensor> {
    Ok(if t.stride()[3] == 1 || t.dims()[3] == 1 { t.clone() } else { t.contiguous()? })
}

/// A CPU tensor's numbers, read-locked.
struct Slice<'a, T> {
    storage: Box<dyn Deref<Target = Storage> + 'a>,
    layout: &'a Layout,
    numbers: std::marker::PhantomData<T>,
}

impl<'a, T: WithDType> Slice<'a, T> {
    fn new(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let slice = Self { storage: Box::new(storage), layout, numbers: std::marker::PhantomData };
        slice.checked().map(|_| ())?;
        Ok(slice)
    }

    fn checked(&self) -> Result<&[T]> {
        match &**self.storage {
            Storage::Cpu(storage) => Ok(&CpuStorage::as_slice::<T>(storage)?[self.layout.start_offset()..]),
            _ => Err(Error::Device { tensor: "a mask".into(), found: "a GPU".into(), expected: "the CPU".into() }),
        }
    }

    fn data(&self) -> &[T] {
        self.checked().unwrap_or(&[])
    }

    /// The strides, 0 where there is one for all.
    fn strides<const N: usize>(&self) -> [usize; N] {
        let dims = self.layout.dims().iter().zip(self.layout.stride());
        let mut strides = dims.map(|(&size, &stride)| if size == 1 { 0 } else { stride });
        std::array::from_fn(|_| strides.next().unwrap_or(0))
    }

    fn broadcast(&self) -> Broadcast<'_, T> {
        Broadcast { data: self.data(), strides: self.strides() }
    }

    /// `(b, s_q)`: one number a query.
    fn queries(&self) -> Broadcast<'_, T> {
        let [b, s] = self.strides();
        Broadcast { data: self.data(), strides: [b, 0, s, 0] }
    }

    /// `(b, s_kv)`: one number a key.
    fn keys(&self) -> Broadcast<'_, T> {
        let [b, s] = self.strides();
        Broadcast { data: self.data(), strides: [b, 0, 0, s] }
    }

    /// `(b, s, h, d)`.
    fn heads(&self) -> Heads<'_, T> {
        let [b, s, h, _] = self.strides::<4>();
        Heads { data: self.data(), strides: [b, s, h] }
    }
}
