//! Importance of the attention heads of a sentence encoder: scores, their ranking, and how they are measured on texts.

use candle_attention::ensure;
use candle_attention::pruning::PrunedHeads;
use candle_attention::{Error, ObserveOptions, Result};
use candle_core::{DType, Device, Tensor, Var};

use crate::SimilarityFunction;
use crate::model::hidden_states::HiddenStates;
use crate::model::options::{ForwardOptions, ForwardOutput};
use crate::sentence::SentenceEncoder;
use crate::sentence::transformer::Transformer;
use crate::text::batches::{Batch, batch_size};
use crate::text::options::EncodeOptions;
use crate::text::tokenizer::Tokens;

/// How the importance of heads is measured, by
/// [`SentenceEncoder::head_importance`](crate::SentenceEncoder::head_importance). No method needs labels: each looks at
/// the embedding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportanceMethod {
    /// How fast the embedding changes when a head is scaled down: the mean over the texts of `|∂⟨r, embedding⟩ / ∂ξ|`,
    /// with `ξ` the head's scale and `r` a fixed sequence of random signs ([Michel
    /// 2019](https://arxiv.org/abs/1905.10650), with a loss instead of `⟨r, embedding⟩`). Costs one forward and one
    /// backward pass.
    Gradient,
    /// How far the embedding moves when a head is removed: the mean over the texts of `1 − cosine`. Costs one forward
    /// pass per head.
    Ablation,
    /// How focused a head is: the mean over texts and tokens of `1 − entropy / ln(tokens)`, 0 where all tokens get the
    /// same attention weight and 1 where one token gets all. Costs one forward pass.
    Entropy,
}

/// Importance scores of all heads of a model; larger means more important.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct HeadImportance(Vec<Vec<f64>>);

/// A head and its importance.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct RankedHead {
    /// Index of the layer in the model, from 0.
    pub layer: usize,
    /// Index of the head in its layer, from 0, as the model is now: earlier pruning has shifted it.
    pub head: usize,
    /// Importance score.
    pub score: f64,
}

impl HeadImportance {
    /// Scores per layer, then per head.
    pub fn new(scores: Vec<Vec<f64>>) -> Self {
        Self(scores)
    }

    /// Scores per layer, then per head.
    pub fn scores(&self) -> &[Vec<f64>] {
        &self.0
    }

    /// Each layer's scores divided by their Euclidean norm, the normalization with which
    /// [Michel 2019](https://arxiv.org/abs/1905.10650) compares heads of different layers.
    #[must_use]
    pub fn normalized_by_layer(mut self) -> Self {
        for scores in &mut self.0 {
            let in_units_of = |unit: f64| unit * scores.iter().map(|score| (score / unit).powi(2)).sum::<f64>().sqrt();
            // Squares of very large scores overflow, those of very small ones vanish.
            let norm = match in_units_of(1.0) {
                norm if norm.is_normal() => norm,
                _ => in_units_of(scores.iter().fold(0.0, |largest, score| score.abs().max(largest))),
            };
            if norm > 0.0 {
                scores.iter_mut().for_each(|score| *score /= norm);
            }
        }
        self
    }

    /// All heads, the least important first; heads with equal scores in the order of the model.
    pub fn ranking(&self) -> Vec<RankedHead> {
        let heads = self.0.iter().enumerate().flat_map(|(layer, scores)| {
            scores.iter().enumerate().map(move |(head, &score)| RankedHead { layer, head, score })
        });
        let mut heads: Vec<RankedHead> = heads.collect();
        heads.sort_by(|a, b| a.score.total_cmp(&b.score));
        heads
    }

    /// The `count` least important heads.
    pub fn least_important(&self, count: usize) -> PrunedHeads {
        self.ranking().into_iter().take(count).map(|head| (head.layer, head.head)).collect()
    }
}

/// The most memory of the activations of one batch while gradients are computed, in bytes. A text that needs more runs
/// alone.
const GRADIENT_BYTES: usize = 1 << 28;

impl SentenceEncoder {
    /// The importance of each head of each layer for the embeddings of `texts`. Progress is reported in texts.
    ///
    /// How texts are put into batches changes the scores by rounding only. [`ImportanceMethod::Gradient`] keeps the
    /// activations of all layers, so its batches are smaller than `options` allows: an estimated 256 MiB of activations
    /// each.
    ///
    /// # Errors
    /// No text; those of [`encode`](Self::encode); [`Error::NotFinite`] with the first head whose score is not finite.
    pub fn head_importance(
        &self,
        texts: &[&str],
        method: ImportanceMethod,
        options: &EncodeOptions,
    ) -> Result<HeadImportance> {
        ensure!(!texts.is_empty(), Error::value("the number of texts to rank heads by", 0, "at least one"));
        let (transformer, prompt) = (self.transformer()?, self.prompt(options)?);
        let (sums, excluded_prefix) = (
            transformer.model.heads().iter().map(|count| vec![0.0; *count]).collect(),
            transformer.excluded_prefix(prompt)?,
        );
        let mut measure = Measure { encoder: self, transformer, sums, excluded_prefix };
        let signs = Signs::for_texts(texts.len(), self.output_size());
        for batch in transformer.batcher.batches(&transformer.model, texts, prompt, options)?.padded() {
            let Batch { texts, tokens, .. } = batch?;
            match method {
                ImportanceMethod::Gradient => {
                    let signs: Vec<Signs> = texts.iter().map(|&i| signs[i]).collect();
                    let mut rest = (tokens.as_slice(), signs.as_slice());
                    while !rest.0.is_empty() {
                        let count = gradient_batch(transformer, rest.0);
                        measure.by_gradient(&rest.0[..count], &rest.1[..count])?;
                        rest = (&rest.0[count..], &rest.1[count..]);
                    }
                }
                ImportanceMethod::Ablation => measure.by_ablation(&tokens)?,
                ImportanceMethod::Entropy => measure.by_entropy(&tokens)?,
            }
        }
        let mean = |layer: Vec<f64>| layer.into_iter().map(|sum| sum / texts.len() as f64).collect();
        let scores: Vec<Vec<f64>> = measure.sums.into_iter().map(mean).collect();
        for (layer, scores) in scores.iter().enumerate() {
            if let Some(head) = scores.iter().position(|score| !score.is_finite()) {
                let what = format_args!("the importance of head {head} of layer {layer}");
                return Err(Error::not_finite(what, transformer.batcher.dtype));
            }
        }
        Ok(HeadImportance::new(scores))
    }

    /// The encoder without these heads.
    ///
    /// # Errors
    /// As [`TextModel::prune_heads`](crate::TextModel::prune_heads).
    pub fn prune_heads(&self, heads: &PrunedHeads) -> Result<Self> {
        let transformer = self.transformer()?;
        let pruned = Transformer { model: transformer.model.prune_heads(heads)?, ..transformer.clone() };
        Ok(self.with_transformer(pruned))
    }

    /// The number of heads of each layer. A static embedding has no layers.
    pub fn heads(&self) -> Vec<usize> {
        self.transformer().map_or_else(|_| Vec::new(), |transformer| transformer.model.heads())
    }
}

/// How many of the texts, the longest first, run together with gradients.
fn gradient_batch(transformer: &Transformer, tokens: &[Tokens]) -> usize {
    let lengths: Vec<usize> = tokens.iter().map(Tokens::len).collect();
    let config = transformer.model.config();
    // An estimate of the values that one token keeps per layer, gradients included: hidden states, features between the
    // two matrices of the feed-forward part, and scores.
    let values = 24 * config.hidden_size + 8 * config.intermediate_size + 8 * config.num_attention_heads * lengths[0];
    let bytes = config.num_hidden_layers * values * transformer.batcher.dtype.size_in_bytes();
    batch_size(&lengths, [lengths.len(), GRADIENT_BYTES / bytes.max(1)], true)
}

struct Measure<'a> {
    encoder: &'a SentenceEncoder,
    transformer: &'a Transformer,
    /// The sum of each head of each layer over the texts so far.
    sums: Vec<Vec<f64>>,
    /// The number of tokens at the start of each text that pooling leaves out.
    excluded_prefix: usize,
}

impl Measure<'_> {
    /// `signs` has one sequence of signs per text.
    fn by_gradient(&mut self, batch: &[Tokens], signs: &[Signs]) -> Result<()> {
        let dtype = self.transformer.batcher.dtype;
        let device = self.transformer.model.device();
        // One factor for each text, so that the gradients of different texts do not cancel.
        let ones = |count: &usize| Var::ones((batch.len(), *count), dtype, device);
        let masks = self.transformer.model.heads().iter().map(ones).collect::<candle_core::Result<Vec<Var>>>()?;
        let factors: Vec<Tensor> = masks.iter().map(|mask| mask.as_tensor().clone()).collect();
        let (_, embeddings) = self.embed(batch, &ForwardOptions::default().with_head_masks(&factors))?;
        let size = embeddings.dim(1)?;
        let signs: Vec<f32> = signs.iter().flat_map(|signs| signs.take(size)).collect();
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

    fn by_ablation(&mut self, batch: &[Tokens]) -> Result<()> {
        let dtype = self.transformer.batcher.dtype;
        let device = self.transformer.model.device().clone();
        let ones = |count: &usize| Tensor::ones(*count, dtype, &device);
        let all = self.transformer.model.heads().iter().map(ones).collect::<candle_core::Result<Vec<Tensor>>>()?;
        // On the CPU: not every device has f64.
        let wide = |t: &Tensor| t.to_device(&Device::Cpu)?.to_dtype(DType::F64);
        let whole = wide(&self.embed(batch, &ForwardOptions::default().with_head_masks(&all))?.1)?;
        let heads = all.iter().map(|factors| factors.dims()[0]).enumerate();
        for (layer, head) in heads.flat_map(|(layer, count)| (0..count).map(move |head| (layer, head))) {
            let mut masks = all.clone();
            let factors: Vec<f32> = (0..all[layer].dims()[0]).map(|i| if i == head { 0.0 } else { 1.0 }).collect();
            masks[layer] = Tensor::new(factors, &device)?.to_dtype(dtype)?;
            let (_, without) = self.embed(batch, &ForwardOptions::default().with_head_masks(&masks))?;
            let cosines = SimilarityFunction::Cosine.similarity_pairwise(&whole, &wide(&without)?)?.to_vec1::<f64>()?;
            self.sums[layer][head] += cosines.into_iter().map(|cosine| 1.0 - cosine).sum::<f64>();
        }
        Ok(())
    }

    fn by_entropy(&mut self, batch: &[Tokens]) -> Result<()> {
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
    fn embed(&self, batch: &[Tokens], options: &ForwardOptions) -> Result<(ForwardOutput, Tensor)> {
        let transformer = self.transformer;
        let (padded, types) = transformer.batcher.padded(&transformer.model, batch)?;
        let mask = padded.mask();
        let forwarded = transformer.model.forward_with(&padded.ids, Some(&types), &mask, options)?;
        let hidden = HiddenStates { tokens: forwarded.hidden.clone(), lengths: padded.lengths };
        Ok((forwarded, self.encoder.pool_hidden(&hidden, self.excluded_prefix)?))
    }
}

/// A place in a fixed sequence of random signs (xorshift64*, Vigna 2016). Each text has its own, whatever its batch.
#[derive(Clone, Copy)]
struct Signs(u64);

impl Signs {
    /// The places of the signs of `count` texts, `size` signs each.
    fn for_texts(count: usize, size: usize) -> Vec<Self> {
        let mut next = Self(1);
        let mut text_signs = || {
            let first = next;
            (&mut next).take(size).for_each(drop);
            first
        };
        (0..count).map(|_| text_signs()).collect()
    }
}

impl Iterator for Signs {
    type Item = f32;

    fn next(&mut self) -> Option<f32> {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        Some(if self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 63 == 0 { 1.0 } else { -1.0 })
    }
}
