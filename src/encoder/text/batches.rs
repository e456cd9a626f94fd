//! Batches of texts: tokenized, sorted by length, and run through a model.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use tokenizers::Encoding;

use crate::encoder::folder::{TokenizerConfig, limits};
use crate::encoder::model::bert::BertModel;
use crate::encoder::model::config::BertConfig;
use crate::encoder::model::embeddings::check_ids;
use crate::encoder::model::hidden_states::HiddenStates;
use crate::encoder::text::options::EncodeOptions;
use crate::encoder::text::semaphore::Semaphore;
use crate::encoder::text::tokenizer::{Text, Tokenizer};
use crate::error::{Error, Result};
use crate::mask::PaddedIds;

/// Turns texts into batches and runs a model on them.
#[derive(Debug, Clone)]
pub(crate) struct TextBatcher {
    pub tokenizer: Tokenizer,
    pub max_seq_length: usize,
    /// Whether the second text of a pair has another segment type than the first.
    pair_types: bool,
    pub dtype: DType,
    device: Device,
    /// Limits how many batches run at a time.
    pub semaphore: Semaphore,
}

impl TextBatcher {
    /// Reads tokenizer and limits of `model` from the folder of the transformer itself.
    pub fn load(transformer: &Path, model: &BertModel) -> Result<Self> {
        let (max_seq_length, lower_case) = limits(transformer, model.config().max_tokens())?;
        let stated = TokenizerConfig::load(transformer)?;
        let tokenizer = Tokenizer::load(&transformer.join("tokenizer.json"), max_seq_length, lower_case)?;
        Self::new(model.config(), tokenizer, max_seq_length, stated.gives_types(), model.dtype(), model.device())
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
        let (device, semaphore) = (device.clone(), Semaphore::for_device(device));
        Ok(Self { tokenizer, max_seq_length, pair_types, dtype, device, semaphore })
    }

    /// Calls `run` with batches of the texts and what `model` makes of them; it gives something for each text of its
    /// batch, and this gives all of that in the order of `texts`.
    pub fn run<R>(
        &self,
        model: &BertModel,
        texts: &[Text],
        options: &EncodeOptions,
        mut run: impl FnMut(&[&Encoding], HiddenStates) -> Result<Vec<R>>,
    ) -> Result<Vec<R>> {
        if options.batch_size == 0 {
            return Err(Error::config("batch_size", 0, "at least 1"));
        }
        let encodings = self.tokenizer.encode(texts)?;
        // Sequences of similar length need the least padding.
        let mut order: Vec<usize> = (0..encodings.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(encodings[i].len()));
        let mut results: Vec<(usize, R)> = Vec::with_capacity(order.len());
        while results.len() < order.len() {
            // The first text of a batch is its longest.
            let done = results.len();
            let longest = encodings[order[done]].len().max(1);
            let count = (options.max_batch_tokens / longest).clamp(1, options.batch_size).min(order.len() - done);
            let batch: Vec<&Encoding> = order[done..done + count].iter().map(|&i| &encodings[i]).collect();
            let permit = self.semaphore.acquire();
            let made = run(&batch, self.hidden(model, &batch)?)?;
            drop(permit);
            results.extend(order[done..].iter().copied().zip(made));
            if let Some(on_progress) = options.on_progress {
                on_progress(results.len(), order.len());
            }
        }
        results.sort_by_key(|(original, _)| *original);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }

    /// The hidden states of a batch: ragged where the model supports it, without any work on padding, and with the same
    /// result for a text in any batch; else padded.
    fn hidden(&self, model: &BertModel, batch: &[&Encoding]) -> Result<HiddenStates> {
        let Inputs { ids, types } = self.inputs(model, batch)?;
        if model.supports_ragged() {
            let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
            let tokens = model.forward_ragged(&ids.concat(), &types.concat(), &lengths)?;
            return Ok(HiddenStates { tokens, lengths });
        }
        let (padded, types) = self.pad(model, &ids, &types)?;
        let tokens = model.forward(&padded.ids, Some(&types), &padded.mask())?;
        Ok(HiddenStates { tokens, lengths: padded.lengths })
    }

    /// A batch as ids and segment types `(b, s)`, padded on the right.
    pub fn padded(&self, model: &BertModel, batch: &[&Encoding]) -> Result<(PaddedIds, Tensor)> {
        let Inputs { ids, types } = self.inputs(model, batch)?;
        self.pad(model, &ids, &types)
    }

    fn pad(&self, model: &BertModel, ids: &[&[u32]], types: &[Vec<u32>]) -> Result<(PaddedIds, Tensor)> {
        let padded = PaddedIds::new(ids, model.config().pad_token_id, &self.device)?;
        Ok((padded, PaddedIds::new(types, 0, &self.device)?.ids))
    }

    /// Ids and segment types of each text, checked.
    fn inputs<'a>(&self, model: &BertModel, batch: &[&'a Encoding]) -> Result<Inputs<'a>> {
        let config = model.config();
        let ids: Vec<&[u32]> = batch.iter().map(|encoding| encoding.get_ids()).collect();
        let types = |encoding: &Encoding| match self.pair_types {
            true => encoding.get_type_ids().to_vec(),
            false => vec![0; encoding.len()],
        };
        let types: Vec<Vec<u32>> = batch.iter().map(|encoding| types(encoding)).collect();
        for (ids, types) in ids.iter().zip(&types) {
            // A tokenizer may have more tokens than its model; a GPU would not report that.
            check_ids("the tokens' ids", ids, config.vocab_size)?;
            if config.has_types() {
                check_ids("the tokens' types", types, config.type_vocab_size)?;
            }
        }
        Ok(Inputs { ids, types })
    }
}

/// A batch's ids and segment types, text by text.
struct Inputs<'a> {
    ids: Vec<&'a [u32]>,
    types: Vec<Vec<u32>>,
}
