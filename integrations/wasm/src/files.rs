//! The files of a model in memory.

use candle_attention_text::ModelFiles;
use wasm_bindgen::prelude::*;

use crate::error::Result;

/// The files of a model by their paths in its folder.
#[wasm_bindgen]
#[derive(Default)]
pub struct Files(ModelFiles);

#[wasm_bindgen]
impl Files {
    /// No files.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file: `config.json`, `1_Pooling/config.json`.
    ///
    /// # Errors
    /// A name that leads out of the folder, and malformed weights.
    pub fn add(&mut self, name: &str, bytes: Vec<u8>) -> Result<()> {
        self.0 = std::mem::take(&mut self.0).with(name, bytes)?;
        Ok(())
    }
}

impl Files {
    /// The files as the crate takes them.
    pub fn model(&self) -> &ModelFiles {
        &self.0
    }
}
