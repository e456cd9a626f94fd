//! The model of `weights/`, compiled into the program, which therefore does not need its folder.

use candle_attention::checkpoint::Checkpoint;
use candle_attention::{Error, Result};
use candle_attention_embedded_model::{CONFIG, TOKENIZER, WEIGHTS};
use candle_core::{DType, Device};
use sha2::{Digest, Sha256};

use crate::hash::Fingerprint;
use crate::model::config::TextModelConfig;
use crate::model::pooling::{Pooling, PoolingMode};
use crate::model::text_model::TextModel;
use crate::sentence::SentenceEncoder;
use crate::sentence::adapters::Adapters;
use crate::sentence::load::Settings;
use crate::sentence::modules::Modules;
use crate::sentence::transformer::{Input, Transformer};
use crate::text::batches::TextBatcher;
use crate::text::tokenizer::Tokenizer;

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
    /// If `dtype` is not a float, or the device has no room.
    pub fn embedded(dtype: DType, device: &Device) -> Result<Self> {
        let wrong = |e: &dyn std::fmt::Display| Error::file("weights", e);
        let config: TextModelConfig = serde_json::from_slice(CONFIG).map_err(|e| wrong(&e))?;
        let limit = config.max_tokens();
        let tokenizer = Tokenizer::from_json(TOKENIZER, limit, false)?;
        let batcher = TextBatcher::new(&config, tokenizer, limit, true, dtype, device)?;
        let source = Checkpoint::from_bytes(WEIGHTS)?.at("", dtype, device);
        let adapters = Adapters::of(&source, &config)?;
        let (model, pooling) = (TextModel::load(&config, source)?, Pooling::new(vec![PoolingMode::Mean])?);
        let transformer = Transformer { model, batcher, pooling, include_prompt: true, adapters };
        Ok(Self::new(Input::Transformer(Box::new(transformer)), Modules::normalize(), Settings::default()))
    }

    /// A hash of the embedded model's content, like [`fingerprint`](crate::fingerprint) of a folder.
    pub fn embedded_fingerprint() -> String {
        let mut fingerprint = Fingerprint::default();
        [CONFIG, TOKENIZER, WEIGHTS].iter().for_each(|content| fingerprint.add_hash(&Sha256::digest(content).into()));
        fingerprint.hex()
    }
}
