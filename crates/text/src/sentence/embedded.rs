//! The model of `weights/`, compiled into the program, which therefore does not need its folder.

use candle_attention::{ComputeType, Result};
use candle_attention_embedded_model::{CONFIG, TOKENIZER, WEIGHTS};
use candle_core::Device;
use sha2::{Digest, Sha256};

use crate::ModelFiles;
use crate::hash::Fingerprint;
use crate::sentence::SentenceEncoder;
use crate::sentence::modules::Modules;

impl SentenceEncoder {
    /// The model that is part of this crate, `weights/`: small, English, available offline. Equal to
    /// [`from_folder`](Self::from_folder) of that folder, whose README describes its quality.
    ///
    /// ```
    /// use candle_attention_text::{EncodeOptions, SentenceEncoder};
    /// use candle_core::{DType, Device};
    /// let encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
    /// let embeddings = encoder.encode(&["A cat sleeps.", "A kitten naps."], &EncodeOptions::default())?;
    /// assert_eq!(embeddings.dims(), [2, 128]);
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the dtype is not a float, or the device has no room.
    pub fn embedded(compute_type: impl Into<ComputeType>, device: &Device) -> Result<Self> {
        let files = ModelFiles::new().with("config.json", CONFIG)?.with("tokenizer.json", TOKENIZER)?;
        let files = files.with("model.safetensors", WEIGHTS)?;
        Ok(Self { modules: Modules::normalize(), ..Self::from_files(&files, compute_type, device)? })
    }

    /// A hash of the embedded model's content, like [`fingerprint`](crate::fingerprint) of a folder.
    pub fn embedded_fingerprint() -> String {
        let mut fingerprint = Fingerprint::default();
        [CONFIG, TOKENIZER, WEIGHTS].iter().for_each(|content| fingerprint.add_hash(&Sha256::digest(content).into()));
        fingerprint.hex()
    }
}
