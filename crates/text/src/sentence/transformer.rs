//! The first module of a model, which takes texts: a transformer with its pooling, or a static embedding.

use candle_attention::tensor::compute_dtype;
use candle_attention::{Error, Result};
use candle_core::{DType, Device, Tensor};

use crate::model::hidden_states::HiddenStates;
use crate::model::pooling::{Pooling, TextPooling};
use crate::model::text_model::TextModel;
use crate::sentence::adapters::Adapters;
use crate::sentence::static_embedding::StaticEmbedding;
use crate::text::batches::TextBatcher;
use crate::text::options::EncodeOptions;
use crate::text::tokenizer::{Text, Tokenizer, Tokens};

/// Turns a text into a vector.
#[derive(Clone)]
pub(crate) enum Input {
    Transformer(Box<Transformer>),
    Static(StaticEmbedding),
}

/// A transformer that pools its hidden states.
#[derive(Debug, Clone)]
pub(crate) struct Transformer {
    pub model: TextModel,
    pub batcher: TextBatcher,
    pub pooling: Pooling,
    /// Whether pooling includes the tokens of a prompt.
    pub include_prompt: bool,
    pub adapters: Adapters,
}

impl Transformer {
    /// The pooled vectors of a batch, `(b, size)`, computed by `model` without the first `excluded_prefix` tokens of
    /// each text. On the CPU each text is pooled as soon as its hidden states are there.
    pub fn encode_and_pool(&self, model: &TextModel, batch: &[Tokens], excluded_prefix: usize) -> Result<Tensor> {
        let pooling = TextPooling { pooling: &self.pooling, excluded: excluded_prefix };
        match self.batcher.pooled(model, batch, pooling)? {
            Some(pooled) => Ok(pooled),
            None => self.pool_hidden(&self.batcher.hidden(model, batch)?, excluded_prefix),
        }
    }

    /// The tokenizer of a call: it cuts texts where the options say, or else at the model's own maximum.
    pub fn tokenizer_for(&self, options: &EncodeOptions) -> Result<Tokenizer> {
        self.batcher.tokenizer_for(self.batcher.max_length_for(options), &self.model)
    }

    /// The pooled vectors of texts with these hidden states, `(b, size)`, without the first `excluded_prefix` tokens of
    /// each.
    pub fn pool_hidden(&self, hidden: &HiddenStates, excluded_prefix: usize) -> Result<Tensor> {
        let mask = |length: usize, s: usize| (0..s).map(move |j| u8::from((excluded_prefix..length).contains(&j)));
        let device = hidden.tokens.device();
        // On a GPU a few large operations cost less than many small ones.
        if hidden.tokens.rank() == 2 && device.is_cpu() {
            let one = |i: usize| {
                let (tokens, length) = (hidden.text(i)?.unsqueeze(0)?, hidden.lengths[i]);
                self.pooling.forward(&tokens, &Tensor::from_iter(mask(length, length), device)?.unsqueeze(0)?)
            };
            return Ok(Tensor::cat(&(0..hidden.lengths.len()).map(one).collect::<Result<Vec<_>>>()?, 0)?);
        }
        let tokens = hidden.padded()?;
        let (b, s, _) = tokens.dims3()?;
        let mask: Vec<u8> = hidden.lengths.iter().flat_map(|&length| mask(length, s)).collect();
        self.pooling.forward(&tokens, &Tensor::from_vec(mask, (b, s), device)?)
    }

    /// The number of tokens at the start of a text with this prompt that pooling leaves out: the start token and those
    /// of the prompt, unless the model includes them.
    pub fn excluded_prefix(&self, prompt: &str) -> Result<usize> {
        if self.include_prompt || prompt.is_empty() {
            return Ok(0);
        }
        let tokenizer = &self.batcher.tokenizer;
        let tokens = tokenizer.encode(&[Text::One(prompt)], "")?.remove(0).ids;
        // The tokenizer may put an end token after the prompt.
        let ends = tokens.last().is_some_and(|last| tokenizer.is_special(*last));
        Ok(tokens.len() - usize::from(ends))
    }
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Transformer(transformer) => transformer.fmt(f),
            Self::Static(table) => table.fmt(f),
        }
    }
}

impl Input {
    /// The size of the vectors.
    pub fn output_size(&self) -> usize {
        match self {
            Self::Transformer(own) => own.pooling.output_size(own.model.output_size()),
            Self::Static(table) => table.width(),
        }
    }

    /// The device of the vectors.
    pub fn device(&self) -> &Device {
        match self {
            Self::Transformer(transformer) => transformer.model.device(),
            Self::Static(table) => &table.device,
        }
    }

    /// The dtype of the vectors.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Transformer(transformer) => compute_dtype(transformer.batcher.dtype),
            Self::Static(table) => table.dtype,
        }
    }

    /// The number of tokens at which a call with these options cuts texts, if it is not the model's own maximum.
    pub fn max_length_for(&self, options: &EncodeOptions) -> Option<usize> {
        match self {
            Self::Transformer(transformer) => transformer.batcher.max_length_for(options),
            Self::Static(_) => options.max_length,
        }
    }

    /// The transformer. A static embedding has no vectors of tokens in their context, and no attention.
    pub fn transformer(&self) -> Result<&Transformer> {
        match self {
            Self::Transformer(transformer) => Ok(transformer),
            Self::Static(_) => Err(Error::value("the first module of the model", "StaticEmbedding", "Transformer")),
        }
    }
}
