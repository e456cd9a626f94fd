//! Compiled kernels and the library that runs them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::{env, fs};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

/// Where the emulator's sources are.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu");

/// Buffers of a kernel at most.
pub(crate) const BUFFERS: usize = 31;

/// A value of a function constant.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constant {
    pub(crate) index: u64,
    pub(crate) bits: [u8; 8],
}

/// A dispatch, `gpu::Dispatch` in C++.
#[repr(C)]
pub(crate) struct Dispatch {
    pub(crate) buffers: [*mut u8; BUFFERS],
    pub(crate) bytes: [u64; BUFFERS],
    pub(crate) threadgroup_bytes: [u64; BUFFERS],
    pub(crate) threads: [u64; 3],
    pub(crate) group: [u64; 3],
    pub(crate) constants: *const Constant,
    pub(crate) constant_count: u64,
}

/// Runs a dispatch; a message if it did something wrong.
pub(crate) type Run = unsafe extern "C" fn(*const Dispatch) -> *const std::ffi::c_char;

/// Functions of the emulator.
pub(crate) struct Emulator {
    pub(crate) allocate: unsafe extern "C" fn(usize) -> *mut u8,
    pub(crate) release: unsafe extern "C" fn(*mut u8, usize),
    /// Kernels run one at a time.
    pub(crate) one_at_a_time: Mutex<()>,
}

/// The folder of compiled kernels.
fn cache() -> PathBuf {
    let folder =
        env::var_os("METAL_EMULATOR_CACHE").map_or_else(|| env::temp_dir().join("metal_emulator"), PathBuf::from);
    fs::create_dir_all(&folder).expect("a folder for compiled kernels");
    folder
}

/// A file name that changes with the parts and with the emulator.
fn file_name(parts: &[&str], extension: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    include_str!("../../gpu/compile.py").hash(&mut hasher);
    include_str!("../../gpu/metal.hpp").hash(&mut hasher);
    include_str!("../../gpu/runtime.hpp").hash(&mut hasher);
    include_str!("../../gpu/runtime.cpp").hash(&mut hasher);
    env::var_os("METAL_EMULATOR_CLANG").hash(&mut hasher);
    cache().join(format!("{:016x}.{extension}", hasher.finish()))
}

/// Runs the compiler; whether it made the library, or what it printed.
fn compile(arguments: &[&Path], library: &Path) -> Result<bool, String> {
    let made = Command::new("python3").arg(format!("{SOURCES}/compile.py")).args(arguments).arg(library).output();
    let made = made.map_err(|error| format!("cannot run the compiler of kernels: {error}"))?;
    match made.status.code() {
        Some(0) => Ok(true),
        Some(3) => Ok(false),
        _ => Err(String::from_utf8_lossy(&made.stderr).into_owned()),
    }
}

/// The emulator, compiled if it is not yet.
pub(crate) fn emulator() -> &'static Emulator {
    static EMULATOR: OnceLock<Emulator> = OnceLock::new();
    EMULATOR.get_or_init(|| {
        let path = file_name(&["emulator"], "so");
        if !path.exists() {
            compile(&[], &path).expect("the emulator compiles");
        }
        // SAFETY: the library is the emulator's own, and stays open.
        unsafe {
            let library = Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL).expect("the emulator loads");
            let library = Box::leak(Box::new(library));
            Emulator {
                allocate: *library.get(b"emulator_allocate\0").expect("a function of the emulator"),
                release: *library.get(b"emulator_release\0").expect("a function of the emulator"),
                one_at_a_time: Mutex::new(()),
            }
        }
    })
}

/// The kernel `name` of a Metal source, compiled if it is not yet; `None` if there is none.
pub(crate) fn kernel(source: &str, name: &str) -> Result<Option<Run>, String> {
    static LOADED: Mutex<Option<HashMap<PathBuf, Run>>> = Mutex::new(None);
    emulator();
    let path = file_name(&[source, name], "so");
    let mut loaded = LOADED.lock().expect("no kernel panics while it loads");
    let loaded = loaded.get_or_insert_default();
    if let Some(run) = loaded.get(&path) {
        return Ok(Some(*run));
    }
    if !path.exists() {
        let text = file_name(&[source], "metal");
        let written = path.with_extension(format!("metal{}", std::process::id()));
        fs::write(&written, source).and_then(|()| fs::rename(&written, &text)).map_err(|error| error.to_string())?;
        if !compile(&[&text, Path::new(name)], &path)? {
            return Ok(None);
        }
    }
    // SAFETY: the library is what the compiler made, and stays open.
    let run = unsafe {
        let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).map_err(|error| error.to_string())?;
        *Box::leak(Box::new(library)).get(b"emulated_kernel\0").map_err(|error| error.to_string())?
    };
    loaded.insert(path, run);
    Ok(Some(run))
}
