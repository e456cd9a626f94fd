//! Batches of texts: tokenized, sorted by length, and as a model takes them.

use std::cmp::Reverse;
use std::path::Path;

use candle_attention::ensure;
use candle_attention::ragged::Bucket;
use candle_attention::{Error, PaddedIds, Result};
use candle_core::{DType, Device, Tensor};

use crate::folder::{ModelFolder, TokenizerConfig, TransformerSettings};
use crate::model::config::TextModelConfig;
use crate::model::hidden_states::HiddenStates;
use crate::model::pooling::TextPooling;
use crate::model::text_model::TextModel;
use crate::text::in_flight::{InFlight, MOST_QUEUED, Permit};
use crate::text::options::{EncodeOptions, Task, WINDOW};
use crate::text::tokenizer::{Text, Tokenizer, Tokens};

/// How many bytes of text are tokenized at a time: about a second, after which a call can be cancelled.
const WINDOW_BYTES: usize = 2 << 20;

/// Turns texts into batches, and runs a model on a batch.
#[derive(Debug, Clone)]
pub(crate) struct TextBatcher {
    pub tokenizer: Tokenizer,
    pub max_seq_length: usize,
    /// The longest query and the longest document, where they differ from other texts.
    query_length: Option<usize>,
    document_length: Option<usize>,
    /// Whether the second text of a pair has another segment type than the first.
    pair_types: bool,
    pub dtype: DType,
    device: Device,
    /// Bounds how much of this model is on the device at a time.
    pub in_flight: InFlight,
}

impl TextBatcher {
    /// Reads tokenizer and limits of `model` from the folder of the transformer itself.
    pub fn load(folder: ModelFolder, transformer: &Path, model: &TextModel) -> Result<Self> {
        let (config, dtype, device) = (model.config(), model.dtype(), model.device().clone());
        check_dtype(dtype)?;
        let settings = TransformerSettings::load(folder, transformer)?;
        let tokenizer = Self::tokenizer(folder, transformer, config)?;
        let max_seq_length = tokenizer.max_length;
        let gives_types = TokenizerConfig::load(folder, transformer)?.gives_types();
        let pair_types = config.has_types() && gives_types && config.row().pair_types;
        let in_flight = InFlight::for_device(&device);
        // As the longest input of other texts, these end at the positions of the model.
        let bounded = |length: Option<usize>| length.map(|length| length.min(config.max_tokens()));
        let (query_length, document_length) = (bounded(settings.query_length), bounded(settings.document_length));
        Ok(Self { tokenizer, max_seq_length, query_length, document_length, pair_types, dtype, device, in_flight })
    }

    /// The tokenizer in the folder of the transformer itself, with the limits of the model.
    pub fn tokenizer(folder: ModelFolder, transformer: &Path, config: &TextModelConfig) -> Result<Tokenizer> {
        let settings = TransformerSettings::load(folder, transformer)?;
        let stated = TokenizerConfig::load(folder, transformer)?;
        let most = config.max_tokens();
        let length = settings.max_length.or(stated.max_length()).unwrap_or(most).min(most);
        let allowed = "at least 3: two special tokens and one of text";
        ensure!(length >= 3, Error::config("max_seq_length", length, allowed));
        let path = transformer.join("tokenizer.json");
        let tokenizer = Tokenizer::load(folder, &path, length, settings.lower_case)?;
        if let Some(reason) = tokenizer.disagreement(&stated) {
            return Err(Error::file(transformer.join("tokenizer_config.json"), reason));
        }
        Ok(if settings.special_tokens { tokenizer } else { tokenizer.without_special_tokens() })
    }

    /// The batches of `texts`, each after `prompt`: tokenized a window at a time, texts of similar length together, for
    /// `model` to run one after another.
    ///
    /// # Errors
    /// A batch size of 0; a maximum length beyond the positions of the model.
    pub fn batches<'a, 't: 'a, T: Into<Text<'t>> + Copy>(
        &'a self,
        model: &TextModel,
        texts: &[T],
        prompt: &'a str,
        options: &'a EncodeOptions,
    ) -> Result<Batches<'a>> {
        let max_length = self.max_length_for(options);
        self.batches_by(self.tokenizer_for(max_length, model)?, model, texts, prompt, options)
    }

    /// The longest input that the options state, or that the model has for their task.
    pub fn max_length_for(&self, options: &EncodeOptions) -> Option<usize> {
        options.max_length.or(match options.task {
            Some(Task::Query) => self.query_length,
            Some(Task::Document) => self.document_length,
            _ => None,
        })
    }

    /// [`batches`](Self::batches) of the tokens of `tokenizer`.
    pub fn batches_by<'a, 't: 'a, T: Into<Text<'t>> + Copy>(
        &'a self,
        tokenizer: Tokenizer,
        model: &TextModel,
        texts: &[T],
        prompt: &'a str,
        options: &'a EncodeOptions,
    ) -> Result<Batches<'a>> {
        ensure!(options.batch_size != 0, Error::config("batch_size", 0, "at least 1"));
        Ok(Batches {
            batcher: self,
            tokenizer,
            prompt,
            options,
            texts: texts.iter().map(|text| (*text).into()).collect(),
            groups: &[],
            padded: !model.supports_ragged(),
            tokenized: 0,
            waiting: Vec::new().into_iter(),
            done: 0,
            permit: None,
        })
    }

    /// The tokenizer that cuts texts at `max_length` tokens, or at the model's own maximum.
    pub fn tokenizer_for(&self, max_length: Option<usize>, model: &TextModel) -> Result<Tokenizer> {
        let Some(max_length) = max_length else { return Ok(self.tokenizer.clone()) };
        let most = model.config().max_tokens();
        if max_length > most {
            return Err(Error::config("max_length", max_length, format!("at most {most}, the positions of the model")));
        }
        self.tokenizer.with_max_length(max_length)
    }

    /// The hidden states of a batch: ragged where the model supports it, without any work on padding, and with the same
    /// result for a text in any batch; else padded, texts of like length together.
    pub fn hidden(&self, model: &TextModel, batch: &[Tokens]) -> Result<HiddenStates> {
        let (ids, types) = self.inputs(model, batch)?;
        model.forward_sequences(&ids, &types)
    }

    /// [`hidden`](Self::hidden) where tokens attend to the first `visible[i]` tokens of text `i` alone: always padded.
    pub fn hidden_under(&self, model: &TextModel, batch: &[Tokens], visible: &[usize]) -> Result<HiddenStates> {
        let (ids, types) = self.inputs(model, batch)?;
        model.forward_buckets(&ids, &types, Some(visible))
    }

    /// The pooled vectors of a batch, `(b, size)`: pooled as soon as the hidden states of a text are there. `None` if
    /// the model does not run on f32 rows on the CPU.
    pub fn pooled(&self, model: &TextModel, batch: &[Tokens], pooling: TextPooling) -> Result<Option<Tensor>> {
        let (ids, types) = self.inputs(model, batch)?;
        let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
        model.pool_ragged([&ids.concat(), &types.concat()], &lengths, pooling)
    }

    /// A batch as ids and segment types `(b, s)`, padded on the right.
    pub fn padded(&self, model: &TextModel, batch: &[Tokens]) -> Result<(PaddedIds, Tensor)> {
        let (ids, types) = self.inputs(model, batch)?;
        let padded = PaddedIds::new(&ids, model.config().pad_token_id, &self.device)?;
        Ok((padded, PaddedIds::new(&types, 0, &self.device)?.ids))
    }

    /// Ids and segment types of each text, checked.
    fn inputs<'a>(&self, model: &TextModel, batch: &'a [Tokens]) -> Result<Inputs<'a>> {
        let config = model.config();
        let ids: Vec<&[u32]> = batch.iter().map(|tokens| tokens.ids.as_slice()).collect();
        let types = |tokens: &Tokens| if self.pair_types { tokens.types.clone() } else { vec![0; tokens.len()] };
        let types: Vec<Vec<u32>> = batch.iter().map(types).collect();
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
        Ok((ids, types))
    }
}

/// Ids and segment types, text by text.
type Inputs<'a> = (Vec<&'a [u32]>, Vec<Vec<u32>>);

/// Texts that a model runs together.
#[derive(Debug)]
pub(crate) struct Batch {
    /// The indices of the texts in the call, in which a text of several parts is once for each, in their order.
    pub texts: Vec<usize>,
    /// The tokens of each text, the longest first.
    pub tokens: Vec<Tokens>,
    /// The group that all of the texts belong to.
    pub group: usize,
}

/// An iterator over the batches of a call. A batch ends, for progress and for the bound on the work in flight, when the
/// next one is asked for. Stops at the first error.
pub(crate) struct Batches<'a> {
    batcher: &'a TextBatcher,
    tokenizer: Tokenizer,
    prompt: &'a str,
    options: &'a EncodeOptions<'a>,
    texts: Vec<Text<'a>>,
    /// The group of each text; empty where all texts are in group 0.
    groups: &'a [usize],
    /// Whether the model pads its batches.
    padded: bool,
    /// How many texts are tokenized.
    tokenized: usize,
    /// The texts among them that are in no batch yet, group by group, the longest first.
    waiting: std::vec::IntoIter<(usize, Tokens)>,
    /// How many texts are in a batch, with all of their parts.
    done: usize,
    /// The permit of the last batch, while it runs.
    permit: Option<Permit<'a>>,
}

impl<'a> Batches<'a> {
    /// Batches of texts of one group each.
    pub fn grouped(self, groups: &'a [usize]) -> Self {
        Self { groups, ..self }
    }

    /// Batches that are padded, whatever the model supports.
    pub fn padded(self) -> Self {
        Self { padded: true, ..self }
    }

    /// The results of all texts in their order: `run` makes those of a batch, one for each of its texts.
    pub fn in_text_order<R>(self, mut run: impl FnMut(&mut Batch) -> Result<Vec<R>>) -> Result<Vec<R>> {
        let mut results = Vec::with_capacity(self.texts.len());
        for batch in self {
            let mut batch = batch?;
            let made = run(&mut batch)?;
            results.extend(batch.texts.into_iter().zip(made));
        }
        results.sort_by_key(|(text, _)| *text);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }

    fn group(&self, text: usize) -> usize {
        self.groups.get(text).copied().unwrap_or(0)
    }

    fn advance(&mut self) -> Result<Option<Batch>> {
        let EncodeOptions { first_text, batch_size: most_texts, max_batch_tokens, .. } = *self.options;
        if let Some(permit) = self.permit.take() {
            permit.finish()?;
            if let Some(on_progress) = self.options.on_progress {
                on_progress(first_text + self.done, first_text + self.texts.len());
            }
        }
        if self.waiting.as_slice().is_empty() {
            if self.tokenized == self.texts.len() {
                return Ok(None);
            }
            self.tokenize()?;
        }
        self.options.check_cancelled()?;
        let waiting = self.waiting.as_slice();
        let group = self.group(waiting[0].0);
        let same_group = waiting.iter().take(most_texts).take_while(|(text, _)| self.group(*text) == group);
        let lengths: Vec<usize> = same_group.map(|(_, tokens)| tokens.len()).collect();
        let count = batch_size(&lengths, [most_texts, max_batch_tokens], self.padded);
        let most_queued = max_batch_tokens.min(MOST_QUEUED);
        self.permit = Some(self.batcher.in_flight.begin(count * lengths[0], most_queued));
        let (texts, tokens) = self.waiting.by_ref().take(count).unzip();
        let mut waiting: Vec<usize> = self.waiting.as_slice().iter().map(|(text, _)| *text).collect();
        waiting.sort_unstable();
        waiting.dedup();
        self.done = self.tokenized - waiting.len();
        Ok(Some(Batch { texts, tokens, group }))
    }

    /// Tokenizes the next window, and sorts it: texts of similar length need the least padding.
    fn tokenize(&mut self) -> Result<()> {
        self.options.check_cancelled()?;
        let (start, first_text) = (self.tokenized, self.options.first_text);
        let rest = &self.texts[start..];
        let count = window_of(rest);
        let mut waiting = self.tokenizer.encode_parts(&rest[..count], self.prompt)?;
        waiting.iter_mut().for_each(|(i, _)| *i += start);
        if let Some((i, _)) = waiting.iter().find(|(_, tokens)| tokens.len() == 0) {
            return Err(Error::value(format!("the number of tokens of text {}", first_text + i), 0, "at least 1"));
        }
        if let Some(on_truncated) = self.options.on_truncated {
            waiting.iter().filter(|(_, tokens)| tokens.truncated).for_each(|(i, _)| on_truncated(first_text + i));
        }
        self.tokenized += count;
        waiting.sort_by_key(|(i, tokens)| (self.group(*i), Reverse(tokens.len())));
        self.waiting = waiting.into_iter();
        Ok(())
    }
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        self.advance().transpose()
    }
}

/// How many of the texts are tokenized together: at least one.
fn window_of(texts: &[Text]) -> usize {
    let mut bytes = 0;
    let fits = |text: &&Text| {
        bytes += text.bytes();
        bytes <= WINDOW_BYTES
    };
    texts.iter().take(WINDOW).take_while(fits).count().max(1)
}

/// Checks that encoders compute in a dtype.
pub(crate) fn check_dtype(dtype: DType) -> Result<()> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Ok(()),
        _ => Err(Error::dtype("the encoder", dtype, "f16, bf16, f32 or f64")),
    }
}

/// How many texts, whose `lengths` descend, are the next batch: at most so many texts and tokens, and at least one
/// text. Of a batch that is `padded`, padding is at most a quarter.
pub(crate) fn batch_size(lengths: &[usize], [most_texts, most_tokens]: [usize; 2], padded: bool) -> usize {
    let longest = lengths.first().copied().unwrap_or(0).max(1);
    let count = (most_tokens / longest).clamp(1, most_texts).min(lengths.len());
    if padded { Bucket::size(&lengths[..count]) } else { count }
}
