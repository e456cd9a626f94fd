//! Batches of texts: tokenized, sorted by length, and run through a model.

use std::borrow::Cow;
use std::path::Path;

use candle_attention::ragged::bucket_size;
use candle_attention::{Error, PaddedIds, Result};
use candle_core::{DType, Device, Tensor};

use crate::folder::{ModelFolder, TokenizerConfig, limits};
use crate::model::bert::BertModel;
use crate::model::config::BertConfig;
use crate::model::hidden_states::HiddenStates;
use crate::text::in_flight::{InFlight, MOST_QUEUED};
use crate::text::options::{EncodeOptions, without_adapter};
use crate::text::tokenizer::{Text, Tokenizer, Tokens};

/// How many texts are tokenized at a time. Their tokens take 8 bytes each, so that a million texts need no more memory
/// than these; sorting fewer by length would leave more padding.
const WINDOW: usize = 8192;

/// How many bytes of text are tokenized at a time: about a second, after which a call can be cancelled.
const WINDOW_BYTES: usize = 2 << 20;

/// Turns texts into batches and runs a model on them.
#[derive(Debug, Clone)]
pub(crate) struct TextBatcher {
    pub tokenizer: Tokenizer,
    pub max_seq_length: usize,
    /// Whether the second text of a pair has another segment type than the first.
    pair_types: bool,
    pub dtype: DType,
    device: Device,
    /// Bounds how much of this model is on the device at a time.
    pub in_flight: InFlight,
    /// How many texts are tokenized at a time.
    pub window: usize,
}

impl TextBatcher {
    /// Reads tokenizer and limits of `model` from the folder of the transformer itself.
    pub fn load(folder: ModelFolder, transformer: &Path, model: &BertModel) -> Result<Self> {
        let (max_seq_length, _) = limits(folder, transformer, model.config().max_tokens())?;
        let stated = TokenizerConfig::load(folder, transformer)?;
        let tokenizer = Self::tokenizer(folder, transformer, model.config())?;
        Self::new(model.config(), tokenizer, max_seq_length, stated.gives_types(), model.dtype(), model.device())
    }

    /// The tokenizer in the folder of the transformer itself, with the limits of the model.
    pub fn tokenizer(folder: ModelFolder, transformer: &Path, config: &BertConfig) -> Result<Tokenizer> {
        let (max_seq_length, lower_case) = limits(folder, transformer, config.max_tokens())?;
        Tokenizer::load(folder, &transformer.join("tokenizer.json"), max_seq_length, lower_case)
    }

    /// `gives_types`: whether the tokenizer gives segment types to the model.
    pub fn new(
        config: &BertConfig,
        tokenizer: Tokenizer,
        max_seq_length: usize,
        gives_types: bool,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("the encoder", dtype, "f16, bf16, f32 or f64"));
        }
        let pair_types = config.has_types() && gives_types && config.row().pair_types;
        let (device, in_flight) = (device.clone(), InFlight::for_device(device));
        Ok(Self { tokenizer, max_seq_length, pair_types, dtype, device, in_flight, window: WINDOW })
    }

    /// Calls `run` with batches of the texts, each after `prompt`, and what `model` makes of them; it gives something for
    /// each text of its batch, and this gives all of that in the order of `texts`.
    pub fn run<R>(
        &self,
        model: &BertModel,
        texts: &[Text],
        prompt: &str,
        options: &EncodeOptions,
        mut run: impl FnMut(&[&Tokens], HiddenStates) -> Result<Vec<R>>,
    ) -> Result<Vec<R>> {
        self.run_tokens(model, texts, prompt, options, |batch| run(batch, self.hidden(model, batch)?))
    }

    /// [`run`](Self::run) with the tokens alone.
    pub fn run_tokens<R>(
        &self,
        model: &BertModel,
        texts: &[Text],
        prompt: &str,
        options: &EncodeOptions,
        run: impl FnMut(&[&Tokens]) -> Result<Vec<R>>,
    ) -> Result<Vec<R>> {
        let tokenizer = self.tokenizer_for(options.max_length, model)?;
        self.run_tokenized(model, texts, options, |texts| tokenizer.encode(texts, prompt), run)
    }

    /// [`run_tokens`](Self::run_tokens) with texts that `tokenize` makes tokens of, some of them at a time.
    pub fn run_tokenized<R>(
        &self,
        model: &BertModel,
        texts: &[Text],
        options: &EncodeOptions,
        mut tokenize: impl FnMut(&[Text]) -> Result<Vec<Tokens>>,
        mut run: impl FnMut(&[&Tokens]) -> Result<Vec<R>>,
    ) -> Result<Vec<R>> {
        without_adapter(options)?;
        if options.batch_size == 0 {
            return Err(Error::config("batch_size", 0, "at least 1"));
        }
        let mut all = Vec::with_capacity(texts.len());
        while all.len() < texts.len() {
            let start = options.first_text + all.len();
            let rest = &texts[all.len()..];
            options.check_cancelled()?;
            let tokens = tokenize(&rest[..self.window_of(rest)])?;
            if let Some(i) = tokens.iter().position(|tokens| tokens.len() == 0) {
                return Err(Error::value(format!("the number of tokens of text {}", start + i), 0, "at least 1"));
            }
            if let Some(on_truncated) = options.on_truncated {
                let cut = (start..).zip(&tokens).filter(|(_, tokens)| tokens.truncated);
                cut.for_each(|(i, _)| on_truncated(i));
            }
            let progress = |done: usize| {
                if let Some(on_progress) = options.on_progress {
                    on_progress(start + done, options.first_text + texts.len());
                }
            };
            all.extend(self.run_window(&tokens, !model.supports_ragged(), options, progress, &mut run)?);
        }
        Ok(all)
    }

    /// How many of the texts are tokenized together: at least one.
    fn window_of(&self, texts: &[Text]) -> usize {
        let mut bytes = 0;
        let fits = |text: &&Text| {
            bytes += text.bytes();
            bytes <= WINDOW_BYTES
        };
        texts.iter().take(self.window).take_while(fits).count().max(1)
    }

    /// The tokenizer that cuts texts at `max_length` tokens, or at the model's own maximum.
    pub fn tokenizer_for(&self, max_length: Option<usize>, model: &BertModel) -> Result<Cow<'_, Tokenizer>> {
        let Some(max_length) = max_length else { return Ok(Cow::Borrowed(&self.tokenizer)) };
        let most = model.config().max_tokens();
        match max_length > most {
            true => Err(Error::config("max_length", max_length, format!("at most {most}, the positions of the model"))),
            false => Ok(Cow::Owned(self.tokenizer.with_max_length(max_length)?)),
        }
    }

    /// [`run`](Self::run) for texts that are tokenized; `padded`: whether their batches are. `progress` is called with the
    /// number of them that are done.
    fn run_window<R>(
        &self,
        tokens: &[Tokens],
        padded: bool,
        options: &EncodeOptions,
        progress: impl Fn(usize),
        run: &mut impl FnMut(&[&Tokens]) -> Result<Vec<R>>,
    ) -> Result<Vec<R>> {
        // Texts of similar length need the least padding.
        let mut order: Vec<usize> = (0..tokens.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(tokens[i].len()));
        let lengths: Vec<usize> = order.iter().map(|&i| tokens[i].len()).collect();
        let mut results: Vec<(usize, R)> = Vec::with_capacity(order.len());
        while results.len() < order.len() {
            let done = results.len();
            let count = batch_size(&lengths[done..], [options.batch_size, options.max_batch_tokens], padded);
            let batch: Vec<&Tokens> = order[done..done + count].iter().map(|&i| &tokens[i]).collect();
            options.check_cancelled()?;
            let most_queued = options.max_batch_tokens.min(MOST_QUEUED);
            let made = self.in_flight.run(count * lengths[done], most_queued, || run(&batch))?;
            results.extend(order[done..].iter().copied().zip(made));
            progress(results.len());
        }
        results.sort_by_key(|(original, _)| *original);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }

    /// The hidden states of a batch: ragged where the model supports it, without any work on padding, and with the same
    /// result for a text in any batch; else padded, texts of like length together.
    pub fn hidden(&self, model: &BertModel, batch: &[&Tokens]) -> Result<HiddenStates> {
        let inputs = self.inputs(model, batch)?;
        model.forward_sequences(&inputs.ids, &inputs.types())
    }

    /// [`hidden`](Self::hidden) where tokens attend to the first `visible[i]` tokens of text `i` alone: always padded.
    pub fn hidden_under(&self, model: &BertModel, batch: &[&Tokens], visible: &[usize]) -> Result<HiddenStates> {
        let inputs = self.inputs(model, batch)?;
        model.forward_buckets(&inputs.ids, &inputs.types(), Some(visible))
    }

    /// What `reduce` makes of the hidden states `(length, hidden_size)` of each text: `(b, size)`. `None` if the model does
    /// not run on f32 rows on the CPU.
    pub fn reduce(
        &self,
        model: &BertModel,
        batch: &[&Tokens],
        size: usize,
        reduce: impl Fn(&[f32], &mut [f32]) + Sync,
    ) -> Result<Option<Tensor>> {
        let Inputs { ids, types } = self.inputs(model, batch)?;
        let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
        model.reduce_ragged(&ids.concat(), &types.concat(), &lengths, size, reduce)
    }

    /// A batch as ids and segment types `(b, s)`, padded on the right.
    pub fn padded(&self, model: &BertModel, batch: &[&Tokens]) -> Result<(PaddedIds, Tensor)> {
        let Inputs { ids, types } = self.inputs(model, batch)?;
        let padded = PaddedIds::new(&ids, model.config().pad_token_id, &self.device)?;
        Ok((padded, PaddedIds::new(&types, 0, &self.device)?.ids))
    }

    /// Ids and segment types of each text, checked.
    fn inputs<'a>(&self, model: &BertModel, batch: &[&'a Tokens]) -> Result<Inputs<'a>> {
        let config = model.config();
        let ids: Vec<&[u32]> = batch.iter().map(|tokens| tokens.ids.as_slice()).collect();
        let types = |tokens: &Tokens| match self.pair_types {
            true => tokens.types.clone(),
            false => vec![0; tokens.len()],
        };
        let types: Vec<Vec<u32>> = batch.iter().map(|tokens| types(tokens)).collect();
        for (ids, types) in ids.iter().zip(&types) {
            // A tokenizer may have more tokens than its model; a GPU would not report that.
            if let Some(id) = ids.iter().find(|id| **id as usize >= config.vocab_size) {
                let expected = format!("less than {}, the vocab_size of the model", config.vocab_size);
                return Err(self.tokenizer.unknown_id(*id, expected));
            }
            let unknown = |kind: &&u32| **kind as usize >= config.type_vocab_size;
            if let Some(kind) = types.iter().find(unknown).filter(|_| config.has_types()) {
                return Err(Error::TokenizerMismatch {
                    what: "the segment type of a token".to_string(),
                    found: *kind,
                    expected: format!("less than {}, the type_vocab_size of the model", config.type_vocab_size),
                });
            }
        }
        Ok(Inputs { ids, types })
    }
}

/// How many texts, whose `lengths` descend, are the next batch: at most so many texts and tokens, and at least one text. Of
/// a batch that is `padded`, padding is at most a quarter.
pub(crate) fn batch_size(lengths: &[usize], [most_texts, most_tokens]: [usize; 2], padded: bool) -> usize {
    let longest = lengths.first().copied().unwrap_or(0).max(1);
    let count = (most_tokens / longest).clamp(1, most_texts).min(lengths.len());
    if padded { bucket_size(&lengths[..count]) } else { count }
}

/// A batch's ids and segment types, text by text.
struct Inputs<'a> {
    ids: Vec<&'a [u32]>,
    types: Vec<Vec<u32>>,
}

impl Inputs<'_> {
    fn types(&self) -> Vec<&[u32]> {
        self.types.iter().map(Vec::as_slice).collect()
    }
}
