//! Kernels compiled by NVRTC, NVIDIA's compiler as a library.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::cuda_backend::cudarc::nvrtc::{CompileError, CompileOptions, compile_ptx_with_opts, sys};

use super::rows::Rows;
use super::variant::Variant;
use crate::error::{Error, Result};

/// A kernel as a device loads it.
pub(super) struct Compiled {
    /// A name of its own among all kernels.
    pub name: String,
    pub ptx: String,
}

/// What can be compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Program {
    Attention(Variant),
    Rows(Rows),
}

impl Program {
    /// A name of its own among all programs.
    fn name(self) -> String {
        let what = match self {
            Self::Attention(_) => "attention",
            Self::Rows(_) => "rows",
        };
        format!("candle-attention {what} {}", self.definitions().join(" "))
    }

    fn definitions(self) -> Vec<String> {
        match self {
            Self::Attention(variant) => variant.definitions(),
            Self::Rows(rows) => rows.definitions(),
        }
    }

    fn source(self) -> String {
        let device = include_str!("source/device.cuh");
        match self {
            Self::Attention(variant) => variant.source(device),
            Self::Rows(rows) => rows.source(device),
        }
    }
}

type Made = HashMap<(Program, u32), Arc<Compiled>>;

/// The compiled kernel, made once a process.
pub(super) fn compiled(program: Program, capability: u32) -> Result<Arc<Compiled>> {
    static MADE: Mutex<Option<Made>> = Mutex::new(None);
    // What a thread that panicked left behind is whole: one insertion is all that is done to it.
    let made = || MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernel) = made().as_ref().and_then(|made| made.get(&(program, capability))) {
        return Ok(kernel.clone());
    }
    // Unlocked: while one kernel is compiled, others run. At worst two threads compile the same.
    let kernel = Arc::new(Compiled { name: program.name(), ptx: compile(program, capability)? });
    Ok(made().get_or_insert_default().entry((program, capability)).or_insert(kernel).clone())
}

fn compile(program: Program, capability: u32) -> Result<String> {
    let architecture = newest(&architectures()?, capability)
        .ok_or_else(|| failed(format!("it no longer knows GPUs of compute capability {capability}")))?;
    let mut options = vec![format!("--gpu-architecture=compute_{architecture}"), "-std=c++17".into()];
    options.extend(program.definitions().iter().map(|definition| format!("-D{definition}")));
    let options = CompileOptions { options, name: Some("attention.cu".into()), ..CompileOptions::default() };
    match compile_ptx_with_opts(program.source(), options) {
        Ok(ptx) => Ok(ptx.to_src()),
        Err(CompileError::CompileError { nvrtc, log, .. }) => {
            Err(failed(format!("{nvrtc}: {}", log.to_string_lossy())))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The architectures that the compiler knows, 80 for 8.0.
fn architectures() -> Result<Vec<i32>> {
    let mut count = 0;
    // SAFETY: it writes one number.
    unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) }.result().map_err(|error| failed(error.to_string()))?;
    let mut all = vec![0; count.max(0) as usize];
    // SAFETY: it writes as many numbers as it said before.
    unsafe { sys::nvrtcGetSupportedArchs(all.as_mut_ptr()) }.result().map_err(|error| failed(error.to_string()))?;
    Ok(all)
}

/// The newest of them that a GPU can run: it may be younger than the compiler.
fn newest(known: &[i32], capability: u32) -> Option<u32> {
    known.iter().filter_map(|known| u32::try_from(*known).ok()).filter(|known| *known <= capability).max()
}

fn failed(reason: String) -> Error {
    let reason = format!("NVRTC, which compiles its kernels, failed ({reason}); the backend eager runs without");
    Error::Backend { backend: "cuda".into(), reason }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::kernels::cuda::Gpu;
    use crate::kernels::cuda::{Features, Shape};

    #[test]
    fn a_gpu_younger_than_the_compiler_runs_what_that_knows() {
        let known = [75, 80, 86, 90, 100, 120];
        assert_eq!([75, 89, 103, 130].map(|gpu| newest(&known, gpu)), [75, 86, 100, 120].map(Some));
        assert_eq!(newest(&known, 70), None);
    }

    /// Needs the compiler, no GPU.
    #[test]
    fn every_kernel_compiles() {
        let gpus = [(75, 64), (80, 163), (89, 99), (90, 227), (999, 227)];
        for (capability, kilobytes) in gpus {
            let gpu = Gpu { capability, multiprocessors: 16, shared_memory: kilobytes << 10 };
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let rows = compiled(Program::Rows(Rows(dtype)), capability).unwrap();
                for kernel in ["norm_rows", "activate_rows", "rotate_rows"] {
                    assert!(rows.ptx.contains(&format!(".entry {kernel}")), "{kernel}, {dtype:?}");
                }
                for (d, d_v) in [(32, 32), (40, 40), (64, 64), (20, 72), (96, 96), (128, 128), (256, 256)] {
                    let features = if d == 64 { vec![0, 1, 2, 4, 8, 16, 31] } else { vec![0] };
                    for features in features {
                        for (rows, keys) in [(1, 1000), (1000, 1000), (1, 1)] {
                            let shape = Shape { dtype, d, d_v, jobs: 8, rows, keys, features: Features(features) };
                            let variant = Variant::of(shape, gpu).unwrap();
                            let kernel = compiled(Program::Attention(variant), capability).unwrap();
                            assert!(kernel.ptx.contains(".entry attention"), "{}", kernel.name);
                            assert_eq!(kernel.ptx.contains(".entry combine"), variant.split, "{}", kernel.name);
                        }
                    }
                }
            }
        }
    }
}
