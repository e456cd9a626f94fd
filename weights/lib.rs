//! The files of the small English sentence encoder that candle-attention-text embeds. The README beside them describes
//! the model.
//!
//! They are a package of their own, so that the folder stays at the top of the repository, and a published package
//! still contains what it embeds.

/// `config.json` of the model.
pub const CONFIG: &[u8] = include_bytes!("config.json");
/// `tokenizer.json` of the model.
pub const TOKENIZER: &[u8] = include_bytes!("tokenizer.json");
/// `model.safetensors`, the weights.
pub const WEIGHTS: &[u8] = include_bytes!("model.safetensors");
