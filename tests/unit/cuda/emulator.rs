//! CUDA kernels compiled for the CPU with `tests/cuda_emulator/emulator.hpp`.

use std::path::Path;
use std::process::Command;

use candle_attention_kernels::Element;
use candle_core::DType;
use libloading::Library;

/// Takes the place of `source/device.cuh` in a source.
pub(super) const EMULATOR: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda_emulator/emulator.hpp"));

/// Compiles a source into a shared library, with the C++ compiler named by `CXX` or `c++`.
pub(super) fn compile(text: &str, definitions: &[String], to: &Path) -> Library {
    let source = to.with_extension("cpp");
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o"]).arg(to).arg(&source);
    command.args(definitions.iter().map(|definition| format!("-D{definition}")));
    let status = command.status().unwrap_or_else(|error| panic!("cannot run {compiler}: {error}"));
    assert!(status.success(), "{definitions:?}");
    // SAFETY: the library was compiled from our own source and runs no code when it is loaded.
    unsafe { Library::new(to).unwrap() }
}

/// The dtype of an element type.
pub(super) fn dtype<T: Element>() -> DType {
    match std::any::type_name::<T>() {
        "f32" => DType::F32,
        name if name.contains("bf16") => DType::BF16,
        _ => DType::F16,
    }
}

/// Arrays that end at a page that traps, so that reads past the end are noticed.
pub(super) struct Memory<'a> {
    kernels: &'a Library,
    arrays: Vec<(u64, usize)>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(kernels: &'a Library) -> Self {
        Self { kernels, arrays: Vec::new() }
    }

    /// Address of a copy of `values`. It ends at the trapping page if its size is a multiple of 16 bytes.
    pub(super) fn hold<T: Copy>(&mut self, values: &[T]) -> u64 {
        let size = std::mem::size_of_val(values);
        let bytes = size.next_multiple_of(16).max(16);
        // SAFETY: `guarded` returns `bytes` bytes, aligned to 16.
        unsafe {
            let guarded = self.kernels.get::<unsafe extern "C" fn(usize) -> *mut u8>(b"guarded").unwrap();
            let array = guarded(bytes);
            std::ptr::copy_nonoverlapping(values.as_ptr().cast(), array, size);
            self.arrays.push((array as u64, bytes));
            array as u64
        }
    }

    /// [`hold`](Self::hold), or the null address for `None`.
    pub(super) fn hold_optional<T: Copy>(&mut self, values: Option<Vec<T>>) -> u64 {
        values.map_or(0, |values| self.hold(&values))
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        for &(array, bytes) in &self.arrays {
            // SAFETY: the array came from `guarded` with this size.
            unsafe {
                self.kernels.get::<unsafe extern "C" fn(u64, usize)>(b"release").unwrap()(array, bytes);
            }
        }
    }
}
