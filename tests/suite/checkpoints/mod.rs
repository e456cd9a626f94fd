//! Files: opened, read, inspected and written.

mod files;
mod gguf;
pub mod inspect;
#[cfg(unix)]
mod killed_writers;
mod layouts;
mod lora_names;
mod open_and_detect;
mod quantized;
mod rows_of_tensors;
mod writing;
