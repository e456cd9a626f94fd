//! `SentenceEncoder`: sentence embeddings.

mod adapted_calls;
pub(crate) mod adapters;
pub(crate) mod dense;
mod embedded;
pub(crate) mod fingerprint;
pub(crate) mod pipeline;
mod tasks;

use std::ops::Range;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::{Checkpoint, WeightSource};
use crate::encoder::folder::{ModelFolder, modules, transformer_of};
use crate::encoder::model::bert::BertModel;
use crate::encoder::model::config::BertConfig;
use crate::encoder::model::hidden_states::{HiddenStates, first_not_finite};
use crate::encoder::sentence::adapters::{Adapters, adapted_folder};
use crate::encoder::sentence::pipeline::{Pipeline, Prompts};
use crate::encoder::text::batches::TextBatcher;
use crate::encoder::text::options::EncodeOptions;
use crate::encoder::text::tokenizer::{Text, Tokens};
use crate::error::{Error, Result, cut_to};
use crate::tensor::compute_dtype;

/// Sentence embeddings as sentence-transformers computes them: the tokenizer, [`BertModel`], pooling, normalization and
/// maximum length are those of the model's folder.
///
/// Any number of threads may share an encoder, by reference or in an `Arc`. On an Apple GPU a few batches run at a time
/// and the others wait.
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
    pub(crate) model: BertModel,
    pub(crate) batcher: TextBatcher,
    pipeline: Pipeline,
    prompts: Prompts,
    adapters: Adapters,
}

impl SentenceEncoder {
    /// The model of a folder as sentence-transformers or transformers saves it: `config.json`, `tokenizer.json`,
    /// `model.safetensors` (or shards), and, if there is one, `modules.json` with what it names. Without it, tokens are
    /// averaged and the mean is left as it is.
    ///
    /// A folder with `adapter_config.json`, as sentence-transformers saves a model with a LoRA adapter, is that adapter
    /// merged with its base model, which must be a local folder.
    ///
    /// # Errors
    /// A file that is missing or malformed; a model, module or tensor that this version cannot run; an adapter whose base
    /// model is not there.
    pub fn from_folder(folder: impl AsRef<Path>, dtype: DType, device: &Device) -> Result<Self> {
        Self::open(ModelFolder::new(&folder), dtype, device)
    }

    fn open(folder: ModelFolder, dtype: DType, device: &Device) -> Result<Self> {
        let transformer = transformer_of(folder.path, modules(folder)?.as_deref());
        if let Some((config, source)) = adapted_folder(&transformer, dtype, device)? {
            return Self::with_source(folder, &config, source);
        }
        let source = Checkpoint::open(&transformer)?.at("", dtype, device);
        let config = BertConfig::from_file(transformer.join("config.json"))?;
        Ok(Self { adapters: Adapters::of(&source, &config)?, ..Self::with_source(folder, &config, source)? })
    }

    /// The same with the weights of the transformer from any source, such as variables that are being trained
    /// ([`VarMapSource`](crate::checkpoint::VarMapSource)) or bytes; dense modules after it are read from the folder.
    ///
    /// # Errors
    /// Those of [`from_folder`](Self::from_folder).
    pub fn load<S: WeightSource>(folder: impl AsRef<Path>, source: S) -> Result<Self> {
        let folder = ModelFolder::new(&folder);
        let transformer = transformer_of(folder.path, modules(folder)?.as_deref());
        Self::with_source(folder, &BertConfig::from_file(transformer.join("config.json"))?, source)
    }

    fn with_source<S: WeightSource>(folder: ModelFolder, config: &BertConfig, source: S) -> Result<Self> {
        let modules = modules(folder)?;
        let transformer = transformer_of(folder.path, modules.as_deref());
        let model = BertModel::load(config, source)?;
        Ok(Self {
            batcher: TextBatcher::load(folder, &transformer, &model)?,
            pipeline: Pipeline::load(folder.path, modules.as_deref(), model.config().hidden_size, model.device())?,
            prompts: Prompts::load(folder)?,
            adapters: Adapters::default(),
            model,
        })
    }

    /// The model of a hub id such as `sentence-transformers/all-MiniLM-L6-v2`, from the local cache if it is there.
    ///
    /// # Errors
    /// Those of [`download`](crate::encoder::download) and [`from_folder`](Self::from_folder).
    #[cfg(feature = "hub")]
    pub fn from_hub(id: &str, options: &crate::encoder::HubOptions, dtype: DType, device: &Device) -> Result<Self> {
        Self::open(crate::encoder::hub::snapshot(id, options)?.folder(), dtype, device)
    }

    /// Embedding dimension.
    pub fn embedding_size(&self) -> usize {
        self.pipeline.output_size(self.model.config().hidden_size)
    }

    /// The maximum number of tokens of a text, special tokens included; longer texts are truncated.
    pub fn max_seq_length(&self) -> usize {
        self.batcher.max_seq_length
    }

    /// One embedding per text, `(texts, embedding_size)` in f32 (f64 for an f64 model), in the order of `texts`.
    ///
    /// Beside the result, memory is needed for the tokens of 8,192 texts and for one batch, however many texts there are.
    ///
    /// # Errors
    /// A batch size of 0; an adapter or a task that the encoder does not have; a maximum length beyond the positions of the model; a prompt that the model does not have; a text
    /// of more than 16 MiB or without tokens; a token that the model does not have; [`Error::NotFinite`] for the first text
    /// whose embedding is not finite; [`Error::Tokenizer`] if `tokenizer.json` is malformed in a way that only a text shows.
    pub fn encode(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        let embeddings = match options.adapters {
            Some(adapters) => self.vectors_by_adapter(texts, adapters, options)?,
            None => self.vectors(texts, options)?,
        };
        match first_not_finite(&embeddings)? {
            Some(i) => Err(Error::NotFinite { what: format!("the embedding of text {i}, `{}`", cut_to(texts[i], 80)) }),
            None => Ok(embeddings),
        }
    }

    /// [`encode`](Self::encode) with one model, without looking whether the vectors are finite.
    fn vectors(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        let model = &*self.model_for(options)?;
        let prompt = self.prompt_for(options)?;
        let options = &EncodeOptions { adapter: None, task: None, ..*options };
        let sequences: Vec<Text> = texts.iter().map(|text| Text::One(text)).collect();
        let uncounted = self.uncounted(prompt)?;
        let batcher = &self.batcher;
        let rows = batcher.run_tokens(model, &sequences, prompt, options, |batch| {
            match self.pool_rows(model, batch, uncounted)? {
                Some(vectors) => (0..batch.len()).map(|i| Ok(vectors.narrow(0, i, 1)?)).collect(),
                None => self.pool(&batcher.hidden(model, batch)?, uncounted),
            }
        })?;
        if rows.is_empty() {
            let device = self.model.device();
            return Ok(Tensor::zeros((0, self.embedding_size()), compute_dtype(self.batcher.dtype), device)?);
        }
        Ok(Tensor::cat(&rows, 0)?)
    }

    /// Byte ranges of `text` that each fit into the maximum length of the options, beside their prompt: overlapping windows
    /// over a long text, to embed each. Each begins and ends at a word if there is one, and repeats the words in the last
    /// quarter of the one before. A text that fits is one window, without the spaces around it.
    ///
    /// # Errors
    /// A maximum length beyond the positions of the model; a prompt that the model does not have; [`Error::Tokenizer`] if
    /// `tokenizer.json` is malformed in a way that only a text shows.
    pub fn windows(&self, text: &str, options: &EncodeOptions) -> Result<Vec<Range<usize>>> {
        let tokenizer = self.batcher.tokenizer_for(options.max_length, &self.model)?;
        tokenizer.windows(text, self.prompt_for(options)?)
    }

    /// The attention weights for a text or a pair of texts, by layer and head, with the tokens. A prompt is put before the
    /// first text as in [`encode`](Self::encode). A text that is too long is truncated; of a pair, the longer text first.
    ///
    /// # Errors
    /// A layer, head or prompt that does not exist; a token that the model does not have.
    #[cfg(feature = "visualize")]
    pub fn attention<'a>(
        &self,
        text: impl Into<Text<'a>>,
        options: &crate::encoder::MapOptions,
    ) -> Result<crate::visualize::AttentionMaps> {
        let prompt = self.prompt(options.prompt_name)?;
        let (first, second) = match text.into() {
            Text::One(text) => (text, None),
            Text::Pair(first, second) => (first, Some(second)),
        };
        let first = format!("{prompt}{first}");
        let prompted = second.map_or(Text::One(&first), |second| Text::Pair(&first, second));
        self.batcher.attention(&self.model, prompted, options)
    }

    /// The vectors of a batch `(b, embedding_size)`, each text pooled as soon as its hidden states are there. `None` where
    /// the model does not run on f32 rows on the CPU. The first `uncounted` tokens of a text do not count.
    fn pool_rows(&self, model: &BertModel, batch: &[&Tokens], uncounted: usize) -> Result<Option<Tensor>> {
        let (pooling, width) = (&self.pipeline.pooling, model.config().hidden_size);
        let pool = |hidden: &[f32], output: &mut [f32]| {
            let length = hidden.len() / width;
            pooling.of_rows(hidden, width, uncounted.min(length)..length, output);
        };
        let pooled = self.batcher.reduce(model, batch, pooling.output_size(width), pool)?;
        pooled.map(|pooled| self.pipeline.finish(pooled)).transpose()
    }

    /// The vectors of a batch, `(1, embedding_size)` each. The first `uncounted` tokens of a text do not count.
    pub(crate) fn pool(&self, hidden: &HiddenStates, uncounted: usize) -> Result<Vec<Tensor>> {
        let counts = |length: usize, s: usize| (0..s).map(move |j| u8::from((uncounted..length).contains(&j)));
        let device = hidden.tokens.device();
        // On a GPU a few large operations cost less than many small ones.
        if hidden.tokens.rank() == 2 && device.is_cpu() {
            let one = |i: usize| {
                let (tokens, length) = (hidden.text(i)?.unsqueeze(0)?, hidden.lengths[i]);
                let counts = Tensor::from_iter(counts(length, length), device)?.unsqueeze(0)?;
                self.pipeline.forward(&tokens, &counts)
            };
            return (0..hidden.lengths.len()).map(one).collect();
        }
        let tokens = hidden.padded()?;
        let (b, s, _) = tokens.dims3()?;
        let counts: Vec<u8> = hidden.lengths.iter().flat_map(|&length| counts(length, s)).collect();
        let vectors = self.pipeline.forward(&tokens, &Tensor::from_vec(counts, (b, s), device)?)?;
        (0..b).map(|i| Ok(vectors.narrow(0, i, 1)?)).collect()
    }

    pub(crate) fn prompt(&self, name: Option<&str>) -> Result<&str> {
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

    /// Tokens at the start of a text with this prompt that pooling leaves out.
    pub(crate) fn uncounted(&self, prompt: &str) -> Result<usize> {
        if self.pipeline.include_prompt { Ok(0) } else { self.prompt_tokens(prompt) }
    }

    /// How many tokens at the start of a text come from the prompt: the start token and its own, not the end token if the
    /// tokenizer puts one there.
    fn prompt_tokens(&self, prompt: &str) -> Result<usize> {
        if prompt.is_empty() {
            return Ok(0);
        }
        let tokenizer = &self.batcher.tokenizer;
        let tokens = tokenizer.encode(&[Text::One(prompt)], "")?.remove(0).ids;
        let ends = tokens.last().is_some_and(|last| tokenizer.is_special(*last));
        Ok(tokens.len() - usize::from(ends))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;
    use crate::encoder::text::semaphore::Semaphore;

    /// However many texts are tokenized at a time, the embeddings are the same bits in the same order.
    #[test]
    fn windows_do_not_change_embeddings() -> crate::Result<()> {
        let mut encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
        let texts = ["A cat sleeps.", "", "Stocks fell sharply today.", "A kitten naps on the couch.", "No"];
        let options = || EncodeOptions::default().with_batch_size(2);
        let want = encoder.encode(&texts, &options())?.to_vec2::<f32>()?;
        for window in [1, 2, 3, 5] {
            encoder.batcher.window = window;
            let progress = std::cell::RefCell::new(Vec::new());
            let on_progress = |done: usize, of: usize| progress.borrow_mut().push((done, of));
            let got = encoder.encode(&texts, &options().with_on_progress(&on_progress))?.to_vec2::<f32>()?;
            assert_eq!(got, want, "{window}");
            let progress = progress.into_inner();
            assert!(progress.is_sorted() && progress.last() == Some(&(5, 5)), "{progress:?}");
        }
        Ok(())
    }

    /// A text that cannot be tokenized stops the texts after it only: those before it are embedded first.
    #[test]
    fn texts_are_tokenized_window_by_window() -> crate::Result<()> {
        let mut encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
        encoder.batcher.window = 2;
        let long = "a".repeat(crate::encoder::text::tokenizer::MAX_TEXT_BYTES + 1);
        let done = std::cell::Cell::new(0);
        let on_progress = |texts: usize, _: usize| done.set(texts);
        let texts = ["A cat.", "A dog.", "A bird.", &long];
        let result = encoder.encode(&texts, &EncodeOptions::default().with_on_progress(&on_progress));
        assert!(matches!(result, Err(Error::Value { .. })), "{result:?}");
        assert_eq!(done.get(), 2);
        Ok(())
    }

    #[test]
    fn a_hundred_threads_share_one_encoder() -> crate::Result<()> {
        let mut encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
        let texts = ["A cat sleeps.", "Stocks fell sharply today.", "A kitten naps on the couch."];
        let one_by_one = || EncodeOptions::default().with_batch_size(1);
        let expected = encoder.encode(&texts, &one_by_one())?.to_vec2::<f32>()?;
        encoder.batcher.semaphore = Semaphore::new(2);
        let (inside, most, batches) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let encoder = encoder.clone();
        thread::scope(|scope| {
            let run = || {
                let texts = texts.map(Text::One);
                let vectors = encoder.batcher.run(&encoder.model, &texts, "", &one_by_one(), |_, hidden| {
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    let vectors = encoder.pool(&hidden, 0);
                    batches.fetch_add(1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                    vectors
                })?;
                Ok::<_, crate::Error>(candle_core::Tensor::cat(&vectors, 0)?.to_vec2::<f32>()?)
            };
            let threads: Vec<_> = (0..100).map(|_| scope.spawn(run)).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().unwrap(), expected));
        });
        assert_eq!(batches.into_inner(), 300);
        assert!((1..=2).contains(&most.into_inner()));
        Ok(())
    }
}
