//! Kernels launched.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::driver::sys::CUdevice_attribute as Attribute;
use candle_core::cuda_backend::cudarc::driver::sys::CUfunction_attribute as FunctionAttribute;
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, LaunchConfig, PushKernelArg, SyncOnDrop,
};
use candle_core::cuda_backend::{CudaDType, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Layout, Storage, StorageRef, Tensor};
use half::{bf16, f16};

use super::compile::compiled;
use super::variant::{Gpu, Shape, Variant};
use super::{Features, Params};
use crate::error::{Error, Result};

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
        match self.q.dtype() {
            DType::F32 => self.run_as::<f32>(),
            DType::F16 => self.run_as::<f16>(),
            DType::BF16 => self.run_as::<bf16>(),
            other => Err(Error::dtype("q", other, "f32, f16 or bf16")),
        }
    }

    fn run_as<T: CudaDType + DeviceRepr + 'static>(self) -> Result<Tensor> {
        let device = self.q.device().as_cuda_device()?;
        let (b, tokens, h, _) = self.q.dims4()?;
        let dims = (b, tokens, h, self.params.d_v as usize);
        let stream = device.cuda_stream();
        let mut numbers = Uploads::default();
        let offsets = [
            numbers.add(self.slopes.map(|slopes| slopes.into_iter().map(|slope| slope.to_bits() as i32).collect())),
            numbers.add(self.lengths),
            numbers.add(self.padding),
            numbers.add(self.query_ends),
            numbers.add(self.starts),
            numbers.add(self.rows),
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
        let [q, k, v] = [self.q, self.k, self.v].map(Held::new);
        let [bias, keep, sinks] = [self.bias, self.keep, self.sinks].map(|tensor| tensor.map(Held::new));
        let segments = self.segments.map(|segments| segments.each_ref().map(Held::new));
        let (q_at, _q) = q.address::<T>(&stream)?;
        let (k_at, _k) = k.address::<T>(&stream)?;
        let (v_at, _v) = v.address::<T>(&stream)?;
        let (bias_at, _bias) = optional::<f32>(bias.as_ref(), &stream)?;
        let (keep_at, _keep) = optional::<u8>(keep.as_ref(), &stream)?;
        let (sinks_at, _sinks) = optional::<f32>(sinks.as_ref(), &stream)?;
        let [queries, keys] = [0, 1].map(|i| segments.as_ref().map(|segments| &segments[i]));
        let (queries_at, _queries) = optional::<i64>(queries, &stream)?;
        let (keys_at, _keys) = optional::<i64>(keys, &stream)?;

        let features = [
            (Features::SOFTCAP, self.params.softcap != 0.0),
            (Features::SLOPES, slopes != 0),
            (Features::BIAS, bias.is_some()),
            (Features::KEEP, keep.is_some()),
            (Features::SEGMENTS, segments.is_some()),
        ];
        let features = Features(features.into_iter().filter(|(_, there)| *there).map(|(bit, _)| bit).sum());
        // SAFETY: the kernel writes every number of it.
        let mut out = unsafe { device.alloc::<T>(self.q.elem_count() / self.q.dim(3)? * self.params.d_v as usize)? };
        let (out_at, out_guard) = out.device_ptr_mut(&stream);
        let per_read = 16 / size_of::<T>();
        let whole = |held: &Held, at: u64, d: i32| {
            let strides = held.strides::<4>();
            at.is_multiple_of(16)
                && (d as usize).is_multiple_of(per_read)
                && strides[..3].iter().all(|stride| (*stride as usize).is_multiple_of(per_read))
        };
        let aligned =
            whole(&q, q_at, self.params.d) && whole(&k, k_at, self.params.d) && whole(&v, v_at, self.params.d_v);
        let first_three = |held: &Held| {
            let [b, s, h, _] = held.strides::<4>();
            [b, s, h]
        };
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
            q_strides: first_three(&q),
            k_strides: first_three(&k),
            v_strides: first_three(&v),
            bias_strides: four(&bias),
            keep_strides: four(&keep),
            aligned: i32::from(aligned),
            ..self.params
        };
        start(device, params, self.q.dtype(), features)?;
        drop(out_guard);
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(out, device.clone()));
        Ok(Tensor::from_storage(storage, dims, BackpropOp::none(), false))
    }
}

/// Queues the kernel for these parameters.
fn start(device: &CudaDevice, params: Params, dtype: DType, features: Features) -> Result<()> {
    let gpu = gpu(device)?;
    let jobs = params.b as usize * params.h_kv as usize;
    let rows = params.s_q as usize * (params.h / params.h_kv) as usize;
    // Kernels count rows and keys in 32 bits, past the last ones by a tile.
    let keys = params.s_kv as usize + params.appended as usize;
    if let Some(many) = [rows, keys].into_iter().find(|count| *count > 1 << 30) {
        return Err(Error::value("the number of queries of a head or of keys", many, "at most 2^30"));
    }
    let shape = Shape { dtype, d: params.d as usize, d_v: params.d_v as usize, jobs, rows, features };
    let too_large = || Error::value("the numbers of a head", params.d.max(params.d_v), "at most 256");
    let variant = Variant::of(shape, gpu).ok_or_else(too_large)?;
    let blocks = variant.blocks(jobs, rows);
    let blocks = u32::try_from(blocks).ok().filter(|blocks| i32::try_from(*blocks).is_ok());
    let blocks = blocks.ok_or_else(|| {
        Error::value("the batch", format!("{jobs} heads of {rows} queries"), "less than 2^31 blocks of work")
    })?;
    if blocks == 0 {
        return Ok(());
    }
    let kernel = compiled(variant, gpu.capability)?;
    let function = device.get_or_load_custom_func("attention", &kernel.name, &kernel.ptx)?;
    let shared = variant.shared_bytes() as u32;
    function.set_attribute(FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared as i32).w()?;
    let config =
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (variant.threads as u32, 1, 1), shared_mem_bytes: shared };
    let mut builder = function.builder();
    builder.arg(&params);
    // SAFETY: the kernel takes a `Params` whose addresses the caller holds, and stays inside the shapes that it tells.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

/// A tensor's memory, locked for reading.
struct Held<'a> {
    storage: StorageRef<'a>,
    layout: &'a Layout,
}

impl<'a> Held<'a> {
    fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        Self { storage, layout }
    }

    /// Where its first number is, and what tells the stream that it is read.
    fn address<'s, T: CudaDType + DeviceRepr + 'static>(
        &'s self,
        stream: &'s CudaStream,
    ) -> Result<(u64, SyncOnDrop<'s>)> {
        match &*self.storage {
            Storage::Cuda(storage) => {
                let (at, guard) = storage.as_cuda_slice::<T>()?.device_ptr(stream);
                Ok((at + (self.layout.start_offset() * size_of::<T>()) as u64, guard))
            }
            other => {
                let found = format!("{:?}", other.device().location());
                Err(Error::Device { tensor: "a tensor".into(), found, expected: "an NVIDIA GPU".into() })
            }
        }
    }

    /// The strides, 0 where there is one for all.
    fn strides<const N: usize>(&self) -> [i64; N] {
        let mut strides = self.layout.dims().iter().zip(self.layout.stride());
        std::array::from_fn(|_| strides.next().map_or(0, |(size, stride)| if *size == 1 { 0 } else { *stride as i64 }))
    }
}

fn optional<'s, T: CudaDType + DeviceRepr + 'static>(
    held: Option<&'s Held>,
    stream: &'s CudaStream,
) -> Result<(u64, Option<SyncOnDrop<'s>>)> {
    Ok(match held.map(|held| held.address::<T>(stream)).transpose()? {
        Some((at, guard)) => (at, Some(guard)),
        None => (0, None),
    })
}

/// Small arrays that travel to the device together.
#[derive(Default)]
struct Uploads(Vec<i32>);

impl Uploads {
    /// Where the array begins, if there is one.
    fn add(&mut self, numbers: Option<Vec<i32>>) -> Option<usize> {
        let start = self.0.len();
        self.0.extend(numbers?);
        Some(start)
    }

    fn upload(self, device: &CudaDevice) -> Result<Option<CudaSlice<i32>>> {
        Ok(if self.0.is_empty() { None } else { Some(device.clone_htod(&self.0)?) })
    }
}

/// What there is to be known of a device, asked for once: asking takes away an error that an earlier call left behind and
/// that is to be seen where it stops something.
pub(crate) fn gpu(device: &CudaDevice) -> Result<Gpu> {
    static KNOWN: Mutex<BTreeMap<usize, Gpu>> = Mutex::new(BTreeMap::new());
    let stream = device.cuda_stream();
    let ordinal = stream.context().ordinal();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = known.get(&ordinal) {
        return Ok(*gpu);
    }
    let ask = |attribute| Ok::<_, Error>(stream.context().attribute(attribute).w()? as usize);
    let major = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let gpu = Gpu {
        capability: (10 * major + minor) as u32,
        multiprocessors: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_memory: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    };
    known.insert(ordinal, gpu);
    Ok(gpu)
}
