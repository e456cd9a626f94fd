//! Compilation of kernels at run time by NVRTC, NVIDIA's compiler library.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts, sys};

use super::variant::Variant;
use crate::error::{Error, Result};

/// A compiled program, ready to be loaded by a device.
pub(super) struct CompiledKernel {
    /// Unique name of the program.
    pub name: String,
    pub ptx: String,
}

/// Compiled programs by compute capability.
type Cache = HashMap<(Variant, u32), Arc<CompiledKernel>>;

/// The compiled program of a variant for a compute capability, compiled once per process.
pub(super) fn compiled(variant: Variant, capability: u32) -> Result<Arc<CompiledKernel>> {
    static CACHE: Mutex<Option<Cache>> = Mutex::new(None);
    // A panic cannot leave the map half-changed: single insertions are its only mutation.
    let cache = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernel) = cache().as_ref().and_then(|cache| cache.get(&(variant, capability))) {
        return Ok(kernel.clone());
    }
    // Compiled without the lock, so that other threads can launch meanwhile. At worst two threads compile the same
    // program.
    let name = format!("candle-attention {}", variant.definitions().join(" "));
    let kernel = Arc::new(CompiledKernel { name, ptx: compile(variant, capability)? });
    Ok(cache().get_or_insert_default().entry((variant, capability)).or_insert(kernel).clone())
}

fn compile(variant: Variant, capability: u32) -> Result<String> {
    let architecture = newest_supported(&architectures()?, capability)
        .ok_or_else(|| failed(format!("it no longer supports GPUs of compute capability {capability}")))?;
    let mut options = vec![format!("--gpu-architecture=compute_{architecture}"), "-std=c++17".into()];
    options.extend(variant.definitions().iter().map(|definition| format!("-D{definition}")));
    let options = CompileOptions { options, name: Some("attention.cu".into()), ..CompileOptions::default() };
    match compile_ptx_with_opts(variant.source(include_str!("source/device.cuh")), options) {
        Ok(ptx) => Ok(ptx.to_src()),
        Err(CompileError::CompileError { nvrtc, log, .. }) => {
            Err(failed(format!("{nvrtc}: {}", log.to_string_lossy())))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The architectures that the compiler supports, 80 for 8.0.
fn architectures() -> Result<Vec<i32>> {
    let mut count = 0;
    // SAFETY: the call writes one integer to `count`.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(|error| failed(error.to_string()))?;
    let mut all = vec![0; count.max(0) as usize];
    // SAFETY: the call writes `count` integers, the length of `all`.
    unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) }.result().map_err(|error| failed(error.to_string()))?;
    Ok(all)
}

/// The newest architecture that the GPU can run. The GPU may be newer than the compiler.
fn newest_supported(architectures: &[i32], capability: u32) -> Option<u32> {
    let architectures = architectures.iter().filter_map(|architecture| u32::try_from(*architecture).ok());
    architectures.filter(|architecture| *architecture <= capability).max()
}

fn failed(reason: String) -> Error {
    let reason = format!("NVRTC failed to compile its kernels ({reason}); the eager backend needs no compiler");
    Error::Backend { backend: "cuda".into(), reason }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::kernels::cuda::{Features, Gpu, ProblemShape};

    #[test]
    fn gpus_newer_than_the_compiler_get_its_newest_architecture() {
        let supported = [75, 80, 86, 90, 100, 120];
        assert_eq!([75, 89, 103, 130].map(|gpu| newest_supported(&supported, gpu)), [75, 86, 100, 120].map(Some));
        assert_eq!(newest_supported(&supported, 70), None);
    }

    /// Needs NVRTC, but no GPU.
    #[test]
    fn every_kernel_compiles() {
        let gpus = [(75, 64), (80, 163), (89, 99), (90, 227), (999, 227)];
        for (capability, kilobytes) in gpus {
            let gpu = Gpu { capability, multiprocessors: 16, shared_memory: kilobytes << 10 };
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                for (d, d_v) in [(32, 32), (40, 40), (64, 64), (20, 72), (96, 96), (128, 128), (256, 256)] {
                    let features = if d == 64 { vec![0, 1, 2, 4, 8, 16, 31] } else { vec![0] };
                    for features in features {
                        for (query_rows, keys) in [(1, 1000), (1000, 1000), (1, 1)] {
                            let features = Features(features);
                            let shape = ProblemShape { dtype, d, d_v, work_items: 8, query_rows, keys, features };
                            let variant = Variant::select(shape, gpu).unwrap();
                            let kernel = compiled(variant, capability).unwrap();
                            assert!(kernel.ptx.contains(".entry attention"), "{}", kernel.name);
                            assert_eq!(kernel.ptx.contains(".entry combine"), variant.split, "{}", kernel.name);
                        }
                    }
                }
            }
        }
    }
}
