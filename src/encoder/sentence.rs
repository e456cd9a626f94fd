use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tokenizers::Encoding;

use super::bert::{BertModel, in_table};
use super::config::BertConfig;
use super::files::json_or_default;
use super::pipeline::{self, Pipeline, Prompts};
use super::tokenizer::Tokenizer;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::ragged::PaddedIds;
use crate::setters::setters;

/// Texts to vectors, as sentence-transformers does it: tokenizer, [`BertModel`], pooling, normalisation and maximum
/// length are what the model's folder says.
///
/// ```no_run
/// use candle_attention::encoder::{EncodeOptions, SentenceEncoder};
/// use candle_core::{DType, Device};
/// let encoder = SentenceEncoder::from_folder("all-MiniLM-L6-v2", DType::F32, &Device::Cpu)?;
/// let embeddings = encoder.encode(&["A cat sleeps.", "A kitten naps."], &EncodeOptions::default())?;
/// assert_eq!(embeddings.dims(), [2, 384]);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SentenceEncoder {
    model: BertModel,
    tokenizer: Tokenizer,
    pipeline: Pipeline,
    prompts: Prompts,
    max_seq_length: usize,
    dtype: DType,
    device: Device,
}

/// How texts are encoded. The default: batches of up to 32 texts and 16,384 tokens, the model's default prompt, no
/// progress.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct EncodeOptions<'a> {
    /// Texts that run together at most; they are sorted by length first.
    pub batch_size: usize,
    /// Tokens that run together at most, padding included where there is some; a longer text runs alone. Bounds the
    /// memory of long texts.
    pub max_batch_tokens: usize,
    /// The name of one of the model's prompts, put before each text; `None` is the model's default, if it has one.
    pub prompt_name: Option<&'a str>,
    /// Called after each batch with the number of texts done and of all texts.
    pub on_progress: Option<&'a dyn Fn(usize, usize)>,
}

impl Default for EncodeOptions<'_> {
    fn default() -> Self {
        Self { batch_size: 32, max_batch_tokens: 16_384, prompt_name: None, on_progress: None }
    }
}

impl<'a> EncodeOptions<'a> {
    setters! {
        /// Sets the number of texts that run together.
        with_batch_size, batch_size: usize = batch_size;
        /// Sets the number of tokens that run together at most.
        with_max_batch_tokens, max_batch_tokens: usize = max_batch_tokens;
        /// Sets the prompt.
        with_prompt_name, prompt_name: &'a str = Some(prompt_name);
        /// Sets what is called after each batch.
        with_progress, on_progress: &'a dyn Fn(usize, usize) = Some(on_progress);
    }
}

impl SentenceEncoder {
    /// The model of a folder as sentence-transformers or transformers saves it: `config.json`, `tokenizer.json`,
    /// `model.safetensors` (or shards), and, if there is one, `modules.json` with what it names. Without it, tokens are
    /// averaged and the mean is left as it is.
    ///
    /// # Errors
    /// A file missing or malformed, named; a model, module or tensor that this version cannot run.
    pub fn from_folder(folder: impl AsRef<Path>, dtype: DType, device: &Device) -> Result<Self> {
        let folder = folder.as_ref();
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("the encoder", dtype, "f16, bf16, f32 or f64"));
        }
        let modules = pipeline::modules(folder)?;
        let transformer = match modules.as_deref() {
            Some([first, ..]) => folder.join(&first.path),
            _ => folder.to_path_buf(),
        };
        let config = BertConfig::from_file(transformer.join("config.json"))?;
        let checkpoint = Checkpoint::open(&transformer)?;
        let model = BertModel::load(&config, &checkpoint.at("", dtype, device))?;
        let (max_seq_length, lower_case) = pipeline::limits(&transformer, config.max_tokens())?;
        Ok(Self {
            tokenizer: Tokenizer::load(&transformer.join("tokenizer.json"), max_seq_length, lower_case)?,
            pipeline: Pipeline::load(folder, modules.as_deref(), config.hidden_size, device)?,
            prompts: json_or_default(&folder.join("config_sentence_transformers.json"))?,
            model,
            max_seq_length,
            dtype,
            device: device.clone(),
        })
    }

    /// The model of a hub id such as `sentence-transformers/all-MiniLM-L6-v2`, from the local cache if it is there.
    ///
    /// # Errors
    /// Those of [`download`](super::download) and [`from_folder`](Self::from_folder).
    #[cfg(feature = "hub")]
    pub fn from_hub(id: &str, options: &super::HubOptions, dtype: DType, device: &Device) -> Result<Self> {
        Self::from_folder(super::download(id, options)?, dtype, device)
    }

    /// The number of numbers of an embedding.
    pub fn embedding_size(&self) -> usize {
        self.pipeline.output_size(self.model.config().hidden_size)
    }

    /// The number of tokens past which a text is cut off, special tokens included.
    pub fn max_seq_length(&self) -> usize {
        self.max_seq_length
    }

    /// One vector a text, `(texts, embedding_size)` in f32 (f64 for an f64 model), in the order of `texts`.
    ///
    /// # Errors
    /// A batch size of 0; a prompt that the model does not have; a token that the model does not have.
    pub fn encode(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        if options.batch_size == 0 {
            return Err(Error::config("batch_size", 0, "at least 1"));
        }
        let prompt = self.prompt(options.prompt_name)?;
        let encodings = match prompt {
            "" => self.tokenizer.encode(texts)?,
            prompt => {
                let texts = texts.iter().map(|text| format!("{prompt}{text}")).collect::<Vec<_>>();
                self.tokenizer.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>())?
            }
        };
        let uncounted = if self.pipeline.include_prompt { 0 } else { self.prompt_tokens(prompt)? };
        if encodings.is_empty() {
            let dtype = if self.dtype == DType::F64 { DType::F64 } else { DType::F32 };
            return Ok(Tensor::zeros((0, self.embedding_size()), dtype, &self.device)?);
        }

        // Neighbours of like length waste least on padding.
        let mut order: Vec<usize> = (0..encodings.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(encodings[i].len()));
        let mut done = 0;
        let mut embeddings = Vec::new();
        while done < order.len() {
            // The first text of a batch is its longest.
            let longest = encodings[order[done]].len().max(1);
            let count = (options.max_batch_tokens / longest).clamp(1, options.batch_size).min(order.len() - done);
            let batch: Vec<&Encoding> = order[done..done + count].iter().map(|&i| &encodings[i]).collect();
            embeddings.push(self.encode_batch(&batch, uncounted)?);
            done += count;
            if let Some(on_progress) = options.on_progress {
                on_progress(done, order.len());
            }
        }
        let mut place = vec![0u32; order.len()];
        order.iter().enumerate().for_each(|(sorted, &original)| place[original] = sorted as u32);
        Ok(Tensor::cat(&embeddings, 0)?.index_select(&Tensor::new(place, &self.device)?, 0)?)
    }

    /// The first `uncounted` tokens of each text do not count in pooling.
    fn encode_batch(&self, batch: &[&Encoding], uncounted: usize) -> Result<Tensor> {
        let config = self.model.config();
        for encoding in batch {
            // A tokenizer may know more tokens than its model; on a GPU nobody would notice.
            in_table("the tokens' ids", encoding.get_ids(), config.vocab_size)?;
            if config.has_types() {
                in_table("the tokens' types", encoding.get_type_ids(), config.type_vocab_size)?;
            }
        }
        match self.model.runs_ragged() {
            true => self.encode_ragged(batch, uncounted),
            false => self.encode_padded(batch, uncounted),
        }
    }

    /// One text after the other: nothing is spent on padding, and a text's vector is the same in any batch.
    fn encode_ragged(&self, batch: &[&Encoding], uncounted: usize) -> Result<Tensor> {
        let ids: Vec<u32> = batch.iter().flat_map(|encoding| encoding.get_ids()).copied().collect();
        let types: Vec<u32> = batch.iter().flat_map(|encoding| encoding.get_type_ids()).copied().collect();
        let lengths: Vec<usize> = batch.iter().map(|encoding| encoding.len()).collect();
        let hidden = self.model.forward_ragged(&ids, &types, &lengths)?;
        let mut start = 0;
        let pool = |&length: &usize| {
            let tokens = hidden.narrow(0, start, length)?.unsqueeze(0)?;
            start += length;
            let counts: Vec<u8> = (0..length).map(|i| u8::from(i >= uncounted)).collect();
            self.pipeline.forward(&tokens, &Tensor::from_vec(counts, (1, length), &self.device)?)
        };
        Ok(Tensor::cat(&lengths.iter().map(pool).collect::<Result<Vec<_>>>()?, 0)?)
    }

    fn encode_padded(&self, batch: &[&Encoding], uncounted: usize) -> Result<Tensor> {
        let rows: Vec<&[u32]> = batch.iter().map(|encoding| encoding.get_ids()).collect();
        let types: Vec<&[u32]> = batch.iter().map(|encoding| encoding.get_type_ids()).collect();
        let padded = PaddedIds::new(&rows, self.model.config().pad_token_id, &self.device)?;
        let types = PaddedIds::new(&types, 0, &self.device)?;
        let hidden = self.model.forward(&padded.ids, Some(&types.ids), &padded.mask())?;
        let longest = padded.ids.dim(1)?;
        let counts = |&n: &usize| (0..longest).map(move |j| u8::from((uncounted..n).contains(&j)));
        let counts: Vec<u8> = padded.lengths.iter().flat_map(counts).collect();
        self.pipeline.forward(&hidden, &Tensor::from_vec(counts, (batch.len(), longest), &self.device)?)
    }

    fn prompt(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.prompts.default_prompt_name.as_deref()) else {
            return Ok("");
        };
        self.prompts.prompts.get(name).map(String::as_str).ok_or_else(|| {
            let known = self.prompts.prompts.keys().map(String::as_str).collect::<Vec<_>>();
            let known =
                if known.is_empty() { "none: the model has no prompts".to_string() } else { known.join(" or ") };
            Error::value("prompt_name", name, known)
        })
    }

    /// How many tokens at the start of a text come from the prompt: the start token and its own, not the end token.
    fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        if prompt.is_empty() {
            return Ok(0);
        }
        Ok(self.tokenizer.encode(&[prompt])?[0].len().saturating_sub(1))
    }
}
