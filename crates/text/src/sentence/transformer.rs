//! The first module of most models: a transformer, and the pooling after it.

use candle_attention::Result;
use candle_core::Tensor;

use crate::heads::pooling::Pooling;
use crate::model::bert::BertModel;
use crate::model::hidden_states::HiddenStates;
use crate::sentence::adapters::Adapters;
use crate::text::batches::TextBatcher;
use crate::text::tokenizer::{Text, Tokens};

/// A transformer that pools its hidden states.
#[derive(Debug, Clone)]
pub(crate) struct Transformer {
    pub model: BertModel,
    pub batcher: TextBatcher,
    pub pooling: Pooling,
    /// Whether the tokens of a prompt count in pooling.
    pub include_prompt: bool,
    pub adapters: Adapters,
}

impl Transformer {
    /// The size of a pooled vector.
    pub fn output_size(&self) -> usize {
        self.pooling.output_size(self.model.config().hidden_size)
    }

    /// The pooled vectors of a batch that `model` runs, `(b, size)`. The first `uncounted` tokens of a text do not count.
    pub fn pool_batch(&self, model: &BertModel, batch: &[&Tokens], uncounted: usize) -> Result<Tensor> {
        // Each text is pooled as soon as its hidden states are there, if the model runs on f32 rows on the CPU.
        let (pooling, width) = (&self.pooling, model.config().hidden_size);
        let pool = |hidden: &[f32], output: &mut [f32]| {
            let length = hidden.len() / width;
            pooling.of_rows(hidden, width, uncounted.min(length)..length, output);
        };
        match self.batcher.reduce(model, batch, pooling.output_size(width), pool)? {
            Some(pooled) => Ok(pooled),
            None => self.pool(&self.batcher.hidden(model, batch)?, uncounted),
        }
    }

    /// The pooled vectors of the texts of a batch, `(b, size)`. The first `uncounted` tokens of a text do not count.
    pub fn pool(&self, hidden: &HiddenStates, uncounted: usize) -> Result<Tensor> {
        let counts = |length: usize, s: usize| (0..s).map(move |j| u8::from((uncounted..length).contains(&j)));
        let device = hidden.tokens.device();
        // On a GPU a few large operations cost less than many small ones.
        if hidden.tokens.rank() == 2 && device.is_cpu() {
            let one = |i: usize| {
                let (tokens, length) = (hidden.text(i)?.unsqueeze(0)?, hidden.lengths[i]);
                let counts = Tensor::from_iter(counts(length, length), device)?.unsqueeze(0)?;
                self.pooling.forward(&tokens, &counts)
            };
            return Ok(Tensor::cat(&(0..hidden.lengths.len()).map(one).collect::<Result<Vec<_>>>()?, 0)?);
        }
        let tokens = hidden.padded()?;
        let (b, s, _) = tokens.dims3()?;
        let counts: Vec<u8> = hidden.lengths.iter().flat_map(|&length| counts(length, s)).collect();
        self.pooling.forward(&tokens, &Tensor::from_vec(counts, (b, s), device)?)
    }

    /// Tokens at the start of a text with this prompt that pooling leaves out.
    pub fn uncounted(&self, prompt: &str) -> Result<usize> {
        if self.include_prompt { Ok(0) } else { self.prompt_tokens(prompt) }
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
