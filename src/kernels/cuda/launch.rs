//! Kernels launched.

use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};
use candle_core::{CudaDevice, Tensor};

use super::compile::{Program, compiled};
use super::memory::{Held, Number, Uploads, aligned, for_number_of, gpu, of_slice, optional};
use super::queue::{Grid, start};
use super::{Features, Params, Shape, Variant};
use crate::error::{Error, Result};
use crate::kernels::cuda::Gpu;

// SAFETY: plain numbers, as the struct of the same fields in `source/types.cuh`.
unsafe impl DeviceRepr for Params {}

/// One call. Tensors are on one CUDA device; `params` has all numbers that are no addresses, strides of tensors excepted.
pub(crate) struct Launch<'a> {
    /// `(b, s_q, h, d)`; `(1, tokens, h, d)` in a ragged batch. The numbers of a head lie together, as in `k` and `v`.
    pub q: &'a Tensor,
    pub k: &'a Tensor,
    pub v: &'a Tensor,
    /// `(h)`, f32.
    pub sinks: Option<&'a Tensor>,
    /// `(b, h, s_q, s_kv)` with dimensions of 1 to be repeated, f32. Where there are no keys, there is no mask.
    pub bias: Option<&'a Tensor>,
    /// Likewise, u8.
    pub keep: Option<&'a Tensor>,
    /// `(b, s_q)` and `(b, s_kv)`, i64, contiguous.
    pub segments: Option<&'a [Tensor; 2]>,
    pub slopes: Option<Vec<f32>>,
    pub lengths: Option<Vec<i32>>,
    pub padding: Option<Vec<i32>>,
    pub query_ends: Option<Vec<i32>>,
    pub starts: Option<Vec<i32>>,
    /// Where the rows of a ragged batch start, and where the last one ends.
    pub rows: Option<Vec<i32>>,
    pub params: Params,
}

impl Launch<'_> {
    /// `(b, s_q, h, d_v)`, packed, in the dtype of `q`.
    pub(crate) fn run(self) -> Result<Tensor> {
        for_number_of!(self.q, run_as(self))
    }

    fn features(&self) -> Features {
        let features = [
            (Features::SOFTCAP, self.params.softcap != 0.0),
            (Features::SLOPES, self.slopes.is_some()),
            (Features::BIAS, self.bias.is_some()),
            (Features::KEEP, self.keep.is_some()),
            (Features::SEGMENTS, self.segments.is_some()),
        ];
        Features(features.into_iter().filter(|(_, there)| *there).map(|(bit, _)| bit).sum())
    }
}

fn run_as<T: Number>(launch: Launch) -> Result<Tensor> {
    let device = launch.q.device().as_cuda_device()?;
    let (b, tokens, h, _) = launch.q.dims4()?;
    let dims = (b, tokens, h, launch.params.d_v as usize);
    let heads = b * tokens * h;
    let work = Work::of(&launch, gpu(device)?)?;
    let stream = device.cuda_stream();
    let mut numbers = Uploads::default();
    let offsets = [
        numbers.add(launch.slopes.map(|slopes| slopes.into_iter().map(|slope| slope.to_bits() as i32).collect())),
        numbers.add(launch.lengths),
        numbers.add(launch.padding),
        numbers.add(launch.query_ends),
        numbers.add(launch.starts),
        numbers.add(launch.rows),
    ];
    let numbers = numbers.upload(device)?;
    let (base, _numbers) = match &numbers {
        Some(numbers) => {
            let (base, guard) = numbers.device_ptr(&stream);
            (base, Some(guard))
        }
        None => (0, None),
    };
    let [slopes, lengths, padding, query_ends, starts, rows] =
        offsets.map(|offset| offset.map_or(0, |offset| base + 4 * offset as u64));

    // The guards hold the memory until the launch is queued.
    let [q, k, v] = [launch.q, launch.k, launch.v].map(Held::new);
    let [bias, keep, sinks] = [launch.bias, launch.keep, launch.sinks].map(|tensor| tensor.map(Held::new));
    let segments = launch.segments.map(|segments| segments.each_ref().map(Held::new));
    let (q_at, _q) = q.address::<T>(&stream)?;
    let (k_at, _k) = k.address::<T>(&stream)?;
    let (v_at, _v) = v.address::<T>(&stream)?;
    let (bias_at, _bias) = optional::<f32>(bias.as_ref(), &stream)?;
    let (keep_at, _keep) = optional::<u8>(keep.as_ref(), &stream)?;
    let (sinks_at, _sinks) = optional::<f32>(sinks.as_ref(), &stream)?;
    let [queries, keys] = [0, 1].map(|i| segments.as_ref().map(|segments| &segments[i]));
    let (queries_at, _queries) = optional::<i64>(queries, &stream)?;
    let (keys_at, _keys) = optional::<i64>(keys, &stream)?;

    let mut partials = match work.splits {
        1 => None,
        // SAFETY: the kernels write every number that they read of it.
        splits => Some(unsafe { device.alloc::<f32>(heads * splits * (launch.params.d_v as usize + 2))? }),
    };
    let (partials_at, partials_guard) = match &mut partials {
        Some(partials) => {
            let (at, guard) = partials.device_ptr_mut(&stream);
            (at, Some(guard))
        }
        None => (0, None),
    };
    // SAFETY: the kernel writes every number of it.
    let mut out = unsafe { device.alloc::<T>(heads * launch.params.d_v as usize)? };
    let (out_at, out_guard) = out.device_ptr_mut(&stream);
    let first_three = |held: &Held| {
        let [b, s, h, _] = held.strides::<4>();
        [b, s, h]
    };
    let (q_strides, k_strides, v_strides) = (first_three(&q), first_three(&k), first_three(&v));
    let aligned = aligned::<T>(&[q_at, k_at], &[q_strides, k_strides].concat(), launch.params.d as usize)
        && aligned::<T>(&[v_at], &v_strides, launch.params.d_v as usize);
    let four = |held: &Option<Held>| held.as_ref().map_or([0; 4], Held::strides);
    let params = Params {
        q: q_at,
        k: k_at,
        v: v_at,
        out: out_at,
        sinks: sinks_at,
        slopes,
        bias: bias_at,
        keep: keep_at,
        query_segments: queries_at,
        key_segments: keys_at,
        lengths,
        padding,
        query_ends,
        starts,
        rows,
        partials: partials_at,
        splits: work.splits as i32,
        q_strides,
        k_strides,
        v_strides,
        bias_strides: four(&bias),
        keep_strides: four(&keep),
        aligned: i32::from(aligned),
        ..launch.params
    };
    work.start(device, &params, heads)?;
    drop((out_guard, partials_guard));
    Ok(of_slice(out, device, dims))
}

/// The kernels of a call, and how they are spread over the GPU.
struct Work {
    variant: Variant,
    capability: u32,
    blocks: u32,
    splits: usize,
}

impl Work {
    fn of(launch: &Launch, gpu: Gpu) -> Result<Self> {
        let params = &launch.params;
        let jobs = params.b as usize * params.h_kv as usize;
        let rows = params.s_q as usize * (params.h / params.h_kv) as usize;
        let keys = params.s_kv as usize + params.appended as usize;
        // Kernels count rows and keys in 32 bits, past the last ones by a tile.
        if let Some(many) = [rows, keys].into_iter().find(|count| *count > 1 << 30) {
            return Err(Error::value("the number of queries of a head or of keys", many, "at most 2^30"));
        }
        let (dtype, d, d_v) = (launch.q.dtype(), params.d as usize, params.d_v as usize);
        let shape = Shape { dtype, d, d_v, jobs, rows, keys, features: launch.features() };
        let too_large = || Error::value("the numbers of a head", params.d.max(params.d_v), "at most 256");
        let variant = Variant::of(shape, gpu).ok_or_else(too_large)?;
        let blocks = variant.blocks(jobs, rows);
        let blocks = u32::try_from(blocks).ok().filter(|blocks| i32::try_from(*blocks).is_ok()).ok_or_else(|| {
            Error::value("the batch", format!("{jobs} heads of {rows} queries"), "less than 2^31 blocks of work")
        })?;
        Ok(Self { variant, capability: gpu.capability, blocks, splits: variant.splits(shape, gpu) })
    }

    /// Queues the kernels. `heads`: query heads of all tokens.
    fn start(&self, device: &CudaDevice, params: &Params, heads: usize) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let kernel = compiled(Program::Attention(self.variant), self.capability)?;
        let grid = Grid {
            blocks: (self.blocks, self.splits as u32),
            threads: self.variant.threads,
            shared_bytes: self.variant.shared_bytes(),
        };
        // SAFETY: the kernel takes a `Params` whose addresses the caller holds, and stays inside the shapes that it tells.
        unsafe { start(device, &kernel, "attention", grid, params)? };
        if self.splits == 1 {
            return Ok(());
        }
        let (threads, shared_bytes) = Variant::combine(params.d_v as usize);
        // SAFETY: likewise.
        unsafe { start(device, &kernel, "combine", Grid { blocks: (heads as u32, 1), threads, shared_bytes }, params) }
    }
}
