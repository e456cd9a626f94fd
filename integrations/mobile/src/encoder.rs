//! `SentenceEncoder`: texts to embeddings.

use std::collections::HashMap;
use std::sync::Arc;

use candle_attention_text::{self as encoder, ModelFiles};
use candle_core::{Device, Tensor};

use crate::cancellation::Cancellation;
use crate::device::{ComputeDevice, NumberFormat};
use crate::error::{EncoderError, Result};
use crate::matrix::{matrix, rows};
use crate::options::EncodeOptions;

/// Sentence embeddings as sentence-transformers computes them. All methods may be called from any thread, and from several
/// at once. They block until they are done: call them away from the thread of the user interface.
#[derive(Debug, uniffi::Object)]
pub struct SentenceEncoder {
    encoder: encoder::SentenceEncoder,
    device: Device,
}

#[uniffi::export]
impl SentenceEncoder {
    /// The small English model that is part of the library (3 MB).
    #[uniffi::constructor]
    pub fn embedded(device: ComputeDevice, format: NumberFormat) -> Result<Arc<Self>> {
        let load = |device: &Device| encoder::SentenceEncoder::embedded(format.compute_type(), device);
        Self::load(device, load)
    }

    /// The model of a folder: `config.json`, `tokenizer.json`, `model.safetensors` and, if there is one, `modules.json` with
    /// what it names. Weights are read one after the other, so that no file is in memory as a whole.
    #[uniffi::constructor]
    pub fn from_folder(folder: String, device: ComputeDevice, format: NumberFormat) -> Result<Arc<Self>> {
        // Joined to the name of a file, it would mean the working directory.
        if folder.is_empty() {
            return Err(EncoderError::argument("the path of the folder", "empty", "that of a folder with a model"));
        }
        let load = |device: &Device| encoder::SentenceEncoder::from_folder(&folder, format.compute_type(), device);
        Self::load(device, load)
    }

    /// The same from memory: path within the folder, with `/` between its parts, to the bytes of the file. The weights are
    /// one file, `model.safetensors`, of less than 2 GiB.
    #[uniffi::constructor]
    pub fn from_files(
        files: HashMap<String, Vec<u8>>,
        device: ComputeDevice,
        format: NumberFormat,
    ) -> Result<Arc<Self>> {
        let load = |device: &Device| {
            let add = |model: ModelFiles, (path, bytes): (String, Vec<u8>)| model.with(path, bytes);
            let model = files.into_iter().try_fold(ModelFiles::new(), add)?;
            encoder::SentenceEncoder::from_files(&model, format.compute_type(), device)
        };
        Self::load(device, load)
    }

    /// The device that the model runs on: `Cpu` or `Metal`.
    pub fn device(&self) -> ComputeDevice {
        ComputeDevice::from_device(&self.device)
    }

    /// The number of features of an embedding.
    pub fn dimension(&self) -> u32 {
        self.encoder.embedding_size() as u32
    }

    /// The maximum number of tokens of a text, special tokens included; longer texts are cut. Nothing if there is no
    /// maximum.
    pub fn max_seq_length(&self) -> Option<u32> {
        u32::try_from(self.encoder.max_seq_length()).ok()
    }

    /// What `similarity` computes, as the model's folder says: `cosine`, `dot`, `euclidean` or `manhattan`.
    pub fn similarity_function(&self) -> String {
        self.encoder.similarity_fn().to_string()
    }

    /// One embedding per text, in the order of the texts.
    #[uniffi::method(default(cancellation = None, options))]
    pub fn encode(
        &self,
        texts: Vec<String>,
        options: EncodeOptions,
        cancellation: Option<Arc<Cancellation>>,
    ) -> Result<Vec<Vec<f32>>> {
        self.run(encoder::SentenceEncoder::encode, &texts, &options, cancellation.as_deref())
    }

    /// The same for texts that search, with the model's prompt and route for queries.
    #[uniffi::method(default(cancellation = None, options))]
    pub fn encode_query(
        &self,
        texts: Vec<String>,
        options: EncodeOptions,
        cancellation: Option<Arc<Cancellation>>,
    ) -> Result<Vec<Vec<f32>>> {
        self.run(encoder::SentenceEncoder::encode_query, &texts, &options, cancellation.as_deref())
    }

    /// The same for texts that are searched, with the model's prompt and route for documents.
    #[uniffi::method(default(cancellation = None, options))]
    pub fn encode_document(
        &self,
        texts: Vec<String>,
        options: EncodeOptions,
        cancellation: Option<Arc<Cancellation>>,
    ) -> Result<Vec<Vec<f32>>> {
        self.run(encoder::SentenceEncoder::encode_document, &texts, &options, cancellation.as_deref())
    }

    /// How similar each embedding of `a` is to each of `b`: one row per embedding of `a`. Computed in 32-bit numbers, as by
    /// PyTorch: the cosine of embeddings whose squares these cannot hold, as of 3e38 or 1e-38, is 0.
    pub fn similarity(&self, a: Vec<Vec<f32>>, b: Vec<Vec<f32>>) -> Result<Vec<Vec<f32>>> {
        let size = self.encoder.embedding_size();
        let a = matrix(&a, size, "the first embeddings")?;
        let b = matrix(&b, a.dims()[1], "the second embeddings")?;
        rows(&self.encoder.similarity(&a, &b)?)
    }
}

/// A method of the crate's encoder that embeds texts.
type Encode = fn(&encoder::SentenceEncoder, &[&str], &encoder::EncodeOptions) -> candle_attention::Result<Tensor>;

impl SentenceEncoder {
    fn load(
        device: ComputeDevice,
        load: impl FnOnce(&Device) -> candle_attention::Result<encoder::SentenceEncoder>,
    ) -> Result<Arc<Self>> {
        let device = device.open()?;
        let encoder = load(&device).map_err(EncoderError::loading)?;
        Ok(Arc::new(Self { encoder, device }))
    }

    fn run(
        &self,
        encode: Encode,
        texts: &[String],
        options: &EncodeOptions,
        cancellation: Option<&Cancellation>,
    ) -> Result<Vec<Vec<f32>>> {
        let is_cancelled = || cancellation.is_some_and(Cancellation::is_cancelled);
        let options = options.borrowed().with_is_cancelled(&is_cancelled);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        rows(&encode(&self.encoder, &texts, &options)?)
    }
}
