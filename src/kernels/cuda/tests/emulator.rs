//! CUDA kernels compiled for the CPU, by `source/emulator.hpp`.

use std::path::Path;
use std::process::Command;

use candle_core::DType;
use libloading::Library;

use crate::kernels::cpu::Element;

/// What takes the place of the GPU's own definitions in a source.
pub(super) const EMULATOR: &str = include_str!("../source/emulator.hpp");

/// A library of this source, with the C++ compiler that `CXX` names or `c++`.
pub(super) fn compile(text: &str, definitions: &[String], to: &Path) -> Library {
    let source = to.with_extension("cpp");
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o"]).arg(to).arg(&source);
    command.args(definitions.iter().map(|definition| format!("-D{definition}")));
    let status = command.status().unwrap_or_else(|error| panic!("{compiler} does not run: {error}"));
    assert!(status.success(), "{definitions:?}");
    // SAFETY: it is our own and has no initialisation of its own.
    unsafe { Library::new(to).unwrap() }
}

pub(super) fn dtype<T: Element>() -> DType {
    match std::any::type_name::<T>() {
        "f32" => DType::F32,
        name if name.contains("bf16") => DType::BF16,
        _ => DType::F16,
    }
}

/// Arrays that end where memory ends, so that what is read after them traps.
pub(super) struct Memory<'a> {
    kernel: &'a Library,
    held: Vec<(u64, usize)>,
}

impl<'a> Memory<'a> {
    pub(super) fn new(kernel: &'a Library) -> Self {
        Self { kernel, held: Vec::new() }
    }

    /// The address of a copy of `numbers`, which ends at the end of memory if its bytes are a multiple of 16.
    pub(super) fn hold<T: Copy>(&mut self, numbers: &[T]) -> u64 {
        let size = std::mem::size_of_val(numbers);
        let bytes = size.next_multiple_of(16).max(16);
        // SAFETY: `guarded` gives `bytes` bytes, aligned to 16.
        unsafe {
            let guarded = self.kernel.get::<unsafe extern "C" fn(usize) -> *mut u8>(b"guarded").unwrap();
            let at = guarded(bytes);
            std::ptr::copy_nonoverlapping(numbers.as_ptr().cast(), at, size);
            self.held.push((at as u64, bytes));
            at as u64
        }
    }

    pub(super) fn some<T: Copy>(&mut self, numbers: Option<Vec<T>>) -> u64 {
        numbers.map_or(0, |numbers| self.hold(&numbers))
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        for &(at, bytes) in &self.held {
            // SAFETY: it came from `guarded`, with as many bytes.
            unsafe {
                self.kernel.get::<unsafe extern "C" fn(u64, usize)>(b"release").unwrap()(at, bytes);
            }
        }
    }
}
