//! Importance of the attention heads of a sentence encoder, measured on given texts.

use candle_core::{DType, Device, Tensor, Var};

use crate::attention::ObserveOptions;
use crate::encoder::model::hidden_states::HiddenStates;
use crate::encoder::model::options::{ForwardOptions, ForwardOutput};
use crate::encoder::sentence::SentenceEncoder;
use crate::encoder::text::options::EncodeOptions;
use crate::encoder::text::tokenizer::{Text, Tokens};
use crate::error::{Error, Result};
use crate::pruning::{HeadImportance, ImportanceMethod, PrunedHeads};

impl SentenceEncoder {
    /// The importance of each head of each layer for the embeddings of `texts`. Progress is reported in texts.
    ///
    /// # Errors
    /// No text; those of [`encode`](Self::encode).
    pub fn head_importance(
        &self,
        texts: &[&str],
        method: ImportanceMethod,
        options: &EncodeOptions,
    ) -> Result<HeadImportance> {
        if texts.is_empty() || options.batch_size == 0 {
            let (name, allowed) =
                if texts.is_empty() { ("texts", "at least one") } else { ("batch_size", "at least 1") };
            return Err(Error::value(format!("the number of {name} to rank heads by"), 0, allowed));
        }
        let heads = self.model.heads();
        let prompt = self.prompt(options.prompt_name)?;
        let uncounted = self.uncounted(prompt)?;
        let texts: Vec<Text> = texts.iter().map(|text| Text::One(text)).collect();
        let encodings = self.batcher.tokenizer.encode(&texts, prompt)?;
        let longest = encodings.iter().map(Tokens::len).max().unwrap_or(0).max(1);
        let size = (options.max_batch_tokens / longest).clamp(1, options.batch_size);
        let mut measure =
            Measure { encoder: self, sums: heads.iter().map(|count| vec![0.0; *count]).collect(), uncounted, signs: 1 };
        for (i, batch) in encodings.chunks(size).enumerate() {
            let batch: Vec<&Tokens> = batch.iter().collect();
            match method {
                ImportanceMethod::Gradient => measure.by_gradient(&batch)?,
                ImportanceMethod::Ablation => measure.by_ablation(&batch)?,
                ImportanceMethod::Entropy => measure.by_entropy(&batch)?,
            }
            if let Some(on_progress) = options.on_progress {
                on_progress(i * size + batch.len(), texts.len());
            }
        }
        let scores =
            measure.sums.into_iter().map(|layer| layer.into_iter().map(|sum| sum / texts.len() as f64).collect());
        Ok(HeadImportance::new(scores.collect()))
    }

    /// The same encoder without these heads.
    ///
    /// # Errors
    /// As [`BertModel::prune_heads`](crate::encoder::BertModel::prune_heads).
    pub fn prune_heads(&self, heads: &PrunedHeads) -> Result<Self> {
        let mut pruned = self.clone();
        pruned.model = self.model.prune_heads(heads)?;
        Ok(pruned)
    }

    /// The number of heads of each layer.
    pub fn heads(&self) -> Vec<usize> {
        self.model.heads()
    }
}

struct Measure<'a> {
    encoder: &'a SentenceEncoder,
    /// Of each head of each layer, over the texts so far.
    sums: Vec<Vec<f64>>,
    /// Tokens at the start of each text that pooling leaves out.
    uncounted: usize,
    /// The state of the random signs.
    signs: u64,
}

impl Measure<'_> {
    fn by_gradient(&mut self, batch: &[&Tokens]) -> Result<()> {
        let dtype = self.encoder.batcher.dtype;
        let device = self.encoder.model.device();
        // One factor for each text, so that the gradients of different texts do not cancel.
        let ones = |count: &usize| Var::ones((batch.len(), *count), dtype, device);
        let masks = self.encoder.model.heads().iter().map(ones).collect::<candle_core::Result<Vec<Var>>>()?;
        let factors: Vec<Tensor> = masks.iter().map(|mask| mask.as_tensor().clone()).collect();
        let (_, embeddings) = self.embed(batch, &ForwardOptions::default().with_head_masks(&factors))?;
        let signs: Vec<f32> = (0..embeddings.elem_count()).map(|_| self.sign()).collect();
        let signs = Tensor::from_vec(signs, embeddings.dims(), device)?.to_dtype(embeddings.dtype())?;
        let grads = (embeddings * signs)?.sum_all()?.backward()?;
        for (sums, mask) in self.sums.iter_mut().zip(&masks) {
            // A layer without heads has none.
            if let Some(grad) = grads.get(mask) {
                let worth = grad.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.abs()?.sum(0)?.to_vec1::<f64>()?;
                sums.iter_mut().zip(worth).for_each(|(sum, worth)| *sum += worth);
            }
        }
        Ok(())
    }

    fn by_ablation(&mut self, batch: &[&Tokens]) -> Result<()> {
        let dtype = self.encoder.batcher.dtype;
        let device = self.encoder.model.device().clone();
        let ones = |count: &usize| Tensor::ones(*count, dtype, &device);
        let all = self.encoder.model.heads().iter().map(ones).collect::<candle_core::Result<Vec<Tensor>>>()?;
        let (_, whole) = self.embed(batch, &ForwardOptions::default().with_head_masks(&all))?;
        for (layer, head) in self.all_heads() {
            let mut masks = all.clone();
            let factors: Vec<f32> = (0..all[layer].dims()[0]).map(|i| if i == head { 0.0 } else { 1.0 }).collect();
            masks[layer] = Tensor::new(factors, &device)?.to_dtype(dtype)?;
            let (_, without) = self.embed(batch, &ForwardOptions::default().with_head_masks(&masks))?;
            self.sums[layer][head] += distances(&whole, &without)?;
        }
        Ok(())
    }

    fn by_entropy(&mut self, batch: &[&Tokens]) -> Result<()> {
        let layers: Vec<usize> = (0..self.sums.len()).collect();
        let what = ObserveOptions::default().with_entropy(true);
        let (forwarded, _) = self.embed(batch, &ForwardOptions::default().with_observe(&layers, &what))?;
        for (layer, observed) in forwarded.observed {
            let Some(entropy) = observed.entropy.filter(|entropy| entropy.elem_count() > 0) else { continue };
            let entropy = entropy.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_vec3::<f64>()?; // (b, heads, s)
            for (heads, encoding) in entropy.iter().zip(batch) {
                // A single token has no choice.
                let most = (encoding.len() as f64).ln();
                if most > 0.0 {
                    for (sum, head) in self.sums[layer].iter_mut().zip(heads) {
                        let mean = head[..encoding.len()].iter().sum::<f64>() / encoding.len() as f64;
                        *sum += 1.0 - mean / most;
                    }
                }
            }
        }
        Ok(())
    }

    /// Embeddings `(b, size)` of a batch, and what the model gave.
    fn embed(&self, batch: &[&Tokens], options: &ForwardOptions) -> Result<(ForwardOutput, Tensor)> {
        let encoder = self.encoder;
        let (padded, types) = encoder.batcher.padded(&encoder.model, batch)?;
        let mask = padded.mask();
        let forwarded = encoder.model.forward_with(&padded.ids, Some(&types), &mask, options)?;
        let hidden = HiddenStates { tokens: forwarded.hidden.clone(), lengths: padded.lengths };
        Ok((forwarded, Tensor::cat(&encoder.pool(&hidden, self.uncounted)?, 0)?))
    }

    fn all_heads(&self) -> Vec<(usize, usize)> {
        let of_layer = |(layer, heads): (usize, &Vec<f64>)| (0..heads.len()).map(move |head| (layer, head));
        self.sums.iter().enumerate().flat_map(of_layer).collect()
    }

    /// The next of a fixed sequence of random signs (xorshift64*, Vigna 2016).
    fn sign(&mut self) -> f32 {
        self.signs ^= self.signs >> 12;
        self.signs ^= self.signs << 25;
        self.signs ^= self.signs >> 27;
        if self.signs.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 63 == 0 { 1.0 } else { -1.0 }
    }
}

/// The sum over the rows of two matrices of 1 − cosine.
fn distances(a: &Tensor, b: &Tensor) -> Result<f64> {
    // On the CPU: not every device has f64.
    let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (a, b) = (wide(a)?, wide(b)?);
    let dot = (&a * &b)?.sum(1)?;
    let lengths = (a.sqr()?.sum(1)? * b.sqr()?.sum(1)?)?.sqrt()?.maximum(1e-30)?;
    let cosines = (dot / lengths)?.to_vec1::<f64>()?;
    Ok(cosines.into_iter().map(|cosine| 1.0 - cosine).sum())
}
