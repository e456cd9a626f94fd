//! The config.json of a model folder; errors name the file and the key.

use std::path::{Path, PathBuf};

use candle_attention_cli::shared::{Result, about};
use serde_json::Value;

/// A parsed config.json.
pub struct Config {
    path: PathBuf,
    pub json: Value,
}

impl Config {
    /// Reads the config.json of a model folder.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        if !folder.is_dir() {
            let found = if folder.exists() { "is a file, expected a model folder" } else { "no such folder" };
            return Err(about(folder, found).into());
        }
        let path = folder.join("config.json");
        Ok(Self { json: candle_attention::io::read_json(&path)?, path })
    }

    /// A configuration that is written later, to this path.
    pub fn new(path: impl Into<PathBuf>, json: Value) -> Self {
        Self { path: path.into(), json }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A number.
    pub fn number(&self, key: &str) -> Result<f64> {
        self.json[key].as_f64().ok_or_else(|| self.wrong(key, "a number"))
    }

    /// A size or a count.
    pub fn size(&self, key: &str) -> Result<usize> {
        let size = self.json[key].as_u64().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| self.wrong(key, "a whole number from 0"))
    }

    /// Checks that a key says what the example computes.
    pub fn expect(&self, key: &str, expected: &str) -> Result<()> {
        if self.json[key].as_str() == Some(expected) {
            Ok(())
        } else {
            Err(self.wrong(key, &format!("\"{expected}\"")))
        }
    }

    /// The error for a key that is missing or has another value.
    pub fn wrong(&self, key: &str, expected: &str) -> Box<dyn std::error::Error> {
        let found = self.json.get(key).map_or("missing".to_string(), Value::to_string);
        about(&self.path, format!("`{key}` is {found}, expected {expected}")).into()
    }
}
