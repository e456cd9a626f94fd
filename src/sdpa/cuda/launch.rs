//! Launches the CUDA attention kernel over tensors.
#![allow(unsafe_code)]

use candle_core::Tensor;
use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut};

use super::arguments::Arguments;
use super::problem_shape;
use crate::error::Result;
use crate::kernels::cuda::{AttentionParams, LaunchSize, Uploads, gpu, vectorizable};
use crate::mask::MergedMask;
use crate::tensor::{CudaElement, CudaView, for_cuda_element, optional_address, tensor_from_cuda};

/// The attention output `(b, s_q, h, d_v)`, contiguous, in the dtype of `q`.
pub(super) fn launch(arguments: Arguments) -> Result<Tensor> {
    for_cuda_element!(arguments.q.dtype(), T => launch_as::<T>(arguments))
}

fn launch_as<T: CudaElement>(arguments: Arguments) -> Result<Tensor> {
    let device = arguments.q.device().as_cuda_device()?;
    let stream = device.cuda_stream();
    let sizes = arguments.params()?;
    let (b, tokens, h, d) = arguments.q.dims4()?;
    let (query_heads, d_v) = (arguments.query_heads()?, arguments.call.d_v);

    let MergedMask { bias, keep, segments, .. } = arguments.mask;
    let mut uploads = Uploads::default();
    let bits = |slopes: &Vec<f32>| slopes.iter().map(|slope| slope.to_bits() as i32).collect();
    let starts = [
        uploads.add(arguments.mask.slopes.as_ref().map(bits)),
        uploads.add(arguments.mask.lengths.clone()),
        uploads.add(arguments.mask.padding.clone()),
        uploads.add(arguments.mask.query_ends.clone()),
        uploads.add(arguments.mask.starts.clone()),
        uploads.add(arguments.small_offsets()?),
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
        [bias.as_ref(), keep.as_ref(), arguments.sinks].map(|tensor| tensor.map(CudaView::new));
    let [query_segments_view, key_segments_view] =
        [0, 1].map(|i| segments.as_ref().map(|segments| CudaView::new(&segments[i])));
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
        ..sizes
    };
    let gpu = gpu(device)?;
    let shape = problem_shape(arguments.call, arguments.options, params.features());
    let launch = LaunchSize::new(shape, query_heads, gpu)?;

    let mut partials_memory = match launch.partials {
        0 => None,
        // SAFETY: the kernel writes every element that `combine` reads.
        partials => Some(unsafe { device.alloc::<f32>(partials)? }),
    };
    let (partials, partials_guard) = partials_memory.as_mut().map(|partials| partials.device_ptr_mut(&stream)).unzip();
    // SAFETY: the kernel writes every element: by `LaunchSize` there are blocks for all query heads.
    let mut out_memory = unsafe { device.alloc::<T>(launch.outputs)? };
    let (out, out_guard) = out_memory.device_ptr_mut(&stream);
    params = AttentionParams { out, partials: partials.unwrap_or(0), splits: launch.splits as i32, ..params };
    // SAFETY: the addresses are of tensors and arrays with the shapes and strides in `params`, by `Arguments::params`,
    // and the guards hold them.
    unsafe { launch.launch(device, gpu.capability, &params, query_heads)? };
    drop((out_guard, partials_guard));
    Ok(tensor_from_cuda(out_memory, device, (b, tokens, h, d_v)))
}
