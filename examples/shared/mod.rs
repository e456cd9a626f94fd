//! What the examples share: names of devices and dtypes, one clear line for a mistake, files written whole or not.

// Each example compiles this file for itself and uses a part of it.
#![allow(dead_code)]

#[cfg(feature = "hub")]
pub mod model;
pub mod plot;
pub mod record;

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use candle_core::{DType, Device, Tensor};
use indicatif::{ProgressBar, ProgressStyle};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs an example: a mistake is one line on standard error and exit code 2.
pub fn run(main: impl FnOnce() -> Result<()>) -> ExitCode {
    match main() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads our output has seen enough.
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.to_string().lines().next().unwrap_or("unknown"));
            ExitCode::from(2)
        }
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let io = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    io == Some(std::io::ErrorKind::BrokenPipe)
}

/// `cpu`, `cuda`, `cuda:1`, `metal`, `metal:1`.
pub fn device(name: &str) -> std::result::Result<Device, String> {
    let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
    let index: usize = index.parse().map_err(|_| format!("`{index}` is not the number of a device"))?;
    let device = match kind {
        "cpu" if name == "cpu" => Ok(Device::Cpu),
        "cuda" => Device::new_cuda(index),
        "metal" => Device::new_metal(index),
        _ => return Err("expected cpu, cuda[:N] or metal[:N]".to_string()),
    };
    device.map_err(|e| format!("{} (build with `--features {kind}`)", e.to_string().lines().next().unwrap_or_default()))
}

/// `f32`, `f64`, `f16`, `bf16`.
pub fn dtype(name: &str) -> std::result::Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f64" => Ok(DType::F64),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err("expected f32, f64, f16 or bf16".to_string()),
    }
}

/// The text of a file; `-` is standard input.
pub fn text(path: &Path) -> Result<String> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut bytes = Vec::new();
    match path.as_os_str() == "-" {
        true => std::io::stdin().lock().read_to_end(&mut bytes).map(drop),
        false => std::fs::read(path).map(|read| bytes = read),
    }
    .map_err(|e| named(&e))?;
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        named(&format!("line {line} is not UTF-8")).into()
    })
}

/// A text as one line of at most `width` characters.
pub fn shown(text: &str, width: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= width { line } else { line.chars().take(width - 1).chain(['…']).collect() }
}

/// A progress bar of `count` texts, for a terminal.
pub fn bar(count: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} texts {per_sec} {eta}")?;
    Ok(ProgressBar::new(count as u64).with_style(style))
}

/// Writes tensors to a file, whole or not at all.
pub fn save_tensors(tensors: &HashMap<String, Tensor>, path: &Path) -> Result<()> {
    save_by(path, |file| Ok(candle_core::safetensors::save(tensors, file)?))
}

/// Writes bytes to a file, whole or not at all.
pub fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    save_by(path, |file| Ok(std::fs::write(file, bytes)?))
}

/// Whether a file can be written to `path`: to be known before the work, not after it.
pub fn check_place(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(format!("{}: is a folder, expected a file to write", path.display()).into());
    }
    if !folder_of(path).is_dir() {
        return Err(format!("{}: its folder does not exist", path.display()).into());
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Has a temporary file beside `path` written, then renames it: `path` is never half-written.
fn save_by(path: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    check_place(path)?;
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut builder = tempfile::Builder::new();
    // The permissions of an ordinary new file, not the private ones of a temporary file.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.tempfile_in(folder_of(path)).map_err(|e| named(&e))?;
    write(file.path()).map_err(|e| named(&e))?;
    file.persist(path).map_err(|e| named(&e.error))?;
    Ok(())
}
