//! What the examples share: parsing of devices and dtypes, one-line errors, atomic writes, progress bars.

// Each example compiles this module for itself and uses a part of it.
#![allow(dead_code)]

#[cfg(feature = "encoder")]
pub mod model;
pub mod plot;
pub mod record;
pub mod tokens;

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use candle_attention::checkpoint::{write_file, write_tensors};
use candle_core::{DType, Device, Tensor};
use indicatif::{ProgressBar, ProgressStyle};

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs an example. An error is printed as one line on standard error; the exit code is then 2.
pub fn run(main: impl FnOnce() -> Result<()>) -> ExitCode {
    match main() {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe, such as `head`, has closed it: not an error.
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

/// Parses `cpu`, `cuda`, `cuda:1`, `metal` or `metal:1`.
pub fn device(name: &str) -> std::result::Result<Device, String> {
    let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
    let index: usize = index.parse().map_err(|_| format!("`{index}` is not a device number"))?;
    let device = match kind {
        "cpu" if name == "cpu" => Ok(Device::Cpu),
        "cuda" => Device::new_cuda(index),
        "metal" => Device::new_metal(index),
        _ => return Err("expected cpu, cuda[:N] or metal[:N]".to_string()),
    };
    device.map_err(|e| format!("{} (build with `--features {kind}`)", e.to_string().lines().next().unwrap_or_default()))
}

/// Parses `f32`, `f64`, `f16` or `bf16`.
pub fn dtype(name: &str) -> std::result::Result<DType, String> {
    match name {
        "f32" => Ok(DType::F32),
        "f64" => Ok(DType::F64),
        "f16" => Ok(DType::F16),
        "bf16" => Ok(DType::BF16),
        _ => Err("expected f32, f64, f16 or bf16".to_string()),
    }
}

/// An error message that begins with the file it is about.
pub fn about(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}

/// The longest text that is read, in bytes: 4 GiB. A device such as `/dev/zero` never ends.
const MAX_TEXT_BYTES: u64 = 1 << 32;

/// Reads a text file or a pipe, or standard input where the path is `-`.
pub fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_TEXT_BYTES + 1).read_to_end(&mut bytes))
    };
    if read.map_err(|e| about(path, &e))? as u64 > MAX_TEXT_BYTES {
        return Err(about(path, &format!("more than {MAX_TEXT_BYTES} bytes of text")).into());
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        about(path, &format!("line {line} is not UTF-8")).into()
    })
}

/// Reads a JSON file of at most 16 MiB.
pub fn json(path: &Path) -> Result<serde_json::Value> {
    const MOST: u64 = 1 << 24;
    let metadata = std::fs::metadata(path).map_err(|e| about(path, &e))?;
    if !metadata.is_file() || metadata.len() > MOST {
        return Err(about(path, &format!("expected a regular file of at most {MOST} bytes")).into());
    }
    let text = std::fs::read_to_string(path).map_err(|e| about(path, &e))?;
    Ok(serde_json::from_str(&text).map_err(|e| about(path, &e))?)
}

/// A text as one line of at most `width` characters, without control characters.
pub fn shown(text: &str, width: usize) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() <= width { line } else { line.chars().take(width - 1).chain(['…']).collect() }
}

/// A progress bar over `count` texts; visible on a terminal only.
pub fn bar(count: usize) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} texts {per_sec} {eta}")?;
    Ok(ProgressBar::new(count as u64).with_style(style))
}

/// Writes tensors to a safetensors file, atomically.
pub fn save_tensors(tensors: HashMap<String, Tensor>, path: &Path) -> Result<()> {
    check_writable(path)?;
    Ok(write_tensors(path, tensors, HashMap::new())?)
}

/// Writes bytes to a file, atomically.
pub fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    check_writable(path)?;
    Ok(write_file(path, bytes)?)
}

/// Checks that a file can be written to `path`. Called before the work, so that a wrong path costs no time.
pub fn check_writable(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(about(path, &"is a folder, expected a file to write").into());
    }
    if !folder_of(path).is_dir() {
        return Err(about(path, &"its folder does not exist").into());
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
