//! Launches the CUDA attention kernel over tensors.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};

use crate::error::Result;
use crate::kernels::cuda::{AttentionLaunch, AttentionParams, Uploads, gpu, vectorizable};
use crate::tensor::{CudaElement, CudaView, for_cuda_element, optional_address, tensor_from_cuda};

/// Arguments of one launch. All tensors are on one CUDA device.
pub(super) struct Arguments<'a> {
    /// `(b, s_q, h, d)`, or `(1, tokens, h, d)` in a ragged batch; contiguous in the last dimension, as are `k` and `v`.
    pub q: &'a Tensor,
    /// `(b, keys, h_kv, d)`.
    pub k: &'a Tensor,
    /// `(b, keys, h_kv, d_v)`.
    pub v: &'a Tensor,
    /// `(h)`, f32, contiguous.
    pub sinks: Option<&'a Tensor>,
    /// f32, 4-D, broadcasts to `(b, h, s_q, s_kv)`. There is no mask where `s_kv` is 0.
    pub bias: Option<&'a Tensor>,
    /// u8, 4-D, broadcasts to `(b, h, s_q, s_kv)`; 0 masks the key.
    pub keep: Option<&'a Tensor>,
    /// `(b, s_q)` and `(b, s_kv)`, i64, contiguous.
    pub segments: Option<&'a [Tensor; 2]>,
    /// One per query head.
    pub slopes: Option<Vec<f32>>,
    pub key_lengths: Option<Vec<i32>>,
    pub padding_lengths: Option<Vec<i32>>,
    pub query_lengths: Option<Vec<i32>>,
    pub query_starts: Option<Vec<i32>>,
    /// Where each sequence of a ragged batch starts, and where the last one ends.
    pub offsets: Option<Vec<i32>>,
    /// Sizes and numbers; addresses and strides are filled in from the tensors.
    pub params: AttentionParams,
}

/// The attention output `(b, s_q, h, d_v)`, contiguous, in the dtype of `q`.
pub(super) fn launch(arguments: Arguments) -> Result<Tensor> {
    for_cuda_element!(arguments.q.dtype(), T => launch_as::<T>(arguments))
}

fn launch_as<T: CudaElement>(arguments: Arguments) -> Result<Tensor> {
    let device = arguments.q.device().as_cuda_device()?;
    let stream = device.cuda_stream();
    let (b, tokens, h, _) = arguments.q.dims4()?;
    let query_heads = b * tokens * h;
    let (d, d_v) = (arguments.params.d as usize, arguments.params.d_v as usize);

    let mut uploads = Uploads::default();
    let slopes = arguments.slopes.map(|slopes| slopes.into_iter().map(|slope| slope.to_bits() as i32).collect());
    let starts = [
        uploads.add(slopes),
        uploads.add(arguments.key_lengths),
        uploads.add(arguments.padding_lengths),
        uploads.add(arguments.query_lengths),
        uploads.add(arguments.query_starts),
        uploads.add(arguments.offsets),
    ];
    let uploaded = uploads.upload(device)?;
    let (base, _upload_guard) = match &uploaded {
        Some(memory) => {
            let (base, guard) = memory.device_ptr(&stream);
            (base, Some(guard))
        }
        None => (0, None),
    };
    let [slopes, key_lengths, padding_lengths, query_lengths, query_starts, offsets] =
        starts.map(|start| start.map_or(0, |start| base + (start * size_of::<i32>()) as u64));

    // The guards hold the memory until the launch is queued.
    let [q_view, k_view, v_view] = [arguments.q, arguments.k, arguments.v].map(CudaView::new);
    let [bias_view, keep_view, sinks_view] =
        [arguments.bias, arguments.keep, arguments.sinks].map(|tensor| tensor.map(CudaView::new));
    let [query_segments_view, key_segments_view] =
        [0, 1].map(|i| arguments.segments.map(|segments| CudaView::new(&segments[i])));
    let (q, _q_guard) = q_view.address::<T>(&stream)?;
    let (k, _k_guard) = k_view.address::<T>(&stream)?;
    let (v, _v_guard) = v_view.address::<T>(&stream)?;
    let (bias, _bias_guard) = optional_address::<f32>(bias_view.as_ref(), &stream)?;
    let (keep, _keep_guard) = optional_address::<u8>(keep_view.as_ref(), &stream)?;
    let (sinks, _sinks_guard) = optional_address::<f32>(sinks_view.as_ref(), &stream)?;
    let (query_segments, _query_segments_guard) = optional_address::<i64>(query_segments_view.as_ref(), &stream)?;
    let (key_segments, _key_segments_guard) = optional_address::<i64>(key_segments_view.as_ref(), &stream)?;

    let [q_strides, k_strides, v_strides] = [&q_view, &k_view, &v_view].map(CudaView::strides::<3>);
    let mask_strides = |view: &Option<CudaView>| view.as_ref().map_or([0; 4], CudaView::strides);
    let vectorized =
        vectorizable::<T>(&[q, k], &[q_strides, k_strides].concat(), d) && vectorizable::<T>(&[v], &v_strides, d_v);
    let mut params = AttentionParams {
        q,
        k,
        v,
        sinks,
        slopes,
        bias,
        keep,
        query_segments,
        key_segments,
        key_lengths,
        padding_lengths,
        query_lengths,
        query_starts,
        offsets,
        q_strides,
        k_strides,
        v_strides,
        bias_strides: mask_strides(&bias_view),
        keep_strides: mask_strides(&keep_view),
        vectorized: i32::from(vectorized),
        ..arguments.params
    };
    let launch = AttentionLaunch::new(T::DTYPE, &params, gpu(device)?)?;

    let mut partials_memory = match launch.splits {
        1 => None,
        // SAFETY: the kernel writes every element that `combine` reads.
        splits => Some(unsafe { device.alloc::<f32>(query_heads * splits * (d_v + 2))? }),
    };
    let (partials, partials_guard) = partials_memory.as_mut().map(|partials| partials.device_ptr_mut(&stream)).unzip();
    // SAFETY: the kernel writes every element.
    let mut out_memory = unsafe { device.alloc::<T>(query_heads * d_v)? };
    let (out, out_guard) = out_memory.device_ptr_mut(&stream);
    params = AttentionParams { out, partials: partials.unwrap_or(0), splits: launch.splits as i32, ..params };
    // SAFETY: the addresses are of tensors and arrays with the shapes and strides in `params`, held by the guards.
    unsafe { launch.launch(device, &params, query_heads)? };
    drop((out_guard, partials_guard));
    Ok(tensor_from_cuda(out_memory, device, (b, tokens, h, d_v)))
}
