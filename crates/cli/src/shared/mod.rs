//! What the commands share: their entry point, printing, files to read and to write, devices, models, progress bars,
//! charts.

pub mod bar;
pub mod checkpoint;
pub mod device;
#[cfg(feature = "program")]
pub mod head_model;
pub mod model;
pub mod output;
#[cfg(feature = "program")]
pub mod plot;
pub mod print;
pub mod program;
pub mod read;
pub mod weights;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// An error message that begins with the file that it is about.
pub fn about(path: &std::path::Path, error: &dyn std::fmt::Display) -> String {
    let name = path.display();
    if path.as_os_str() == "-" { format!("standard input: {error}") } else { format!("{name}: {error}") }
}
