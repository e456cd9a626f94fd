use candle_core::{Module, Tensor};
use candle_nn::ops::dropout;

use crate::attention::ragged::Buffers;
use crate::attention::{AttentionInputs, AttentionOptions, AttentionStats, MultiHeadAttention, ObserveOptions};
use crate::checkpoint::WeightSource;
use crate::encoder::model::config::BertConfig;
use crate::encoder::model::feed_forward::{FeedForward, Inner};
use crate::encoder::model::norm::LayerNorm;
use crate::error::{Error, Result};
use crate::families::block::{Block, BlockNorms};
use crate::kernels::cpu::Isa;
use crate::mask::AttentionMask;
use crate::ops::PendingBias;
use crate::position::ragged::BatchCache;
use crate::tensor::unpruned;
use crate::weights::AttentionWeights;

/// Attention and feed-forward, each added to its input. What is normalised is the sum or, in a pre-norm family
/// ([Xiong 2020](https://arxiv.org/abs/2002.04745)), the input alone.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    attention: MultiHeadAttention,
    /// Which tokens the model lets each token see in this layer.
    mask: AttentionMask,
    inner_norm: Option<LayerNorm>,
    /// ModernBERT's first layer has none: its embeddings are normalised already.
    attention_norm: Option<LayerNorm>,
    feed_forward: FeedForward,
    output_norm: LayerNorm,
    pre_norm: bool,
    dropout: f64,
}

/// Memory that layers reuse.
#[derive(Debug, Default)]
pub(crate) struct LayerBuffers {
    attention: Buffers,
    inner: Inner,
    outer: Vec<f32>,
    normalised: Vec<f32>,
}

impl Layer {
    /// `index`: the layer's number. `shared_bias`: name and table of the position bias that all layers share, if there is one.
    pub fn load<S: WeightSource>(
        config: &BertConfig,
        block: &Block,
        source: &S,
        index: usize,
        shared_bias: Option<&(&'static str, Tensor)>,
    ) -> Result<Self> {
        let norm = |name: &str| config.norm(config.hidden_size, &source.child(name));
        let (pre_norm, [attention_name, output_name]) = match block.norms {
            BlockNorms::Post { attention, feed_forward } => (false, [attention, feed_forward]),
            BlockNorms::Pre { attention, feed_forward } => (true, [attention, feed_forward]),
            BlockNorms::Sandwich { .. } => return Err(Error::config("norms", "on both sides", "before or after")),
        };
        let first = index > 0 || block.first_attention_norm;
        let attention_norm = first.then(|| norm(attention_name)).transpose()?;
        let of_attention = source.child(block.attention);
        let (attention, mask) = config.attention_of(&of_attention, index)?;
        let (mut weights, _) = AttentionWeights::read(&attention, &of_attention)?;
        if let Some((name, table)) = shared_bias {
            weights.position.insert(*name, unpruned(table, &config.pruned_heads.of_layer(index))?);
        }
        Ok(Self {
            inner_norm: block.inner_norm.map(norm).transpose()?,
            attention_norm,
            attention: MultiHeadAttention::from_weights(&attention, weights)?,
            mask,
            feed_forward: FeedForward::load(config, block.feed_forward, source)?,
            output_norm: norm(output_name)?,
            pre_norm,
            dropout: config.hidden_dropout_prob,
        })
    }

    pub fn attention(&self) -> &MultiHeadAttention {
        &self.attention
    }

    /// The same with another attention.
    pub fn with_attention(&self, attention: MultiHeadAttention) -> Self {
        Self { attention, ..self.clone() }
    }

    /// xs `(b, s, hidden)` → the same, and of the attention weights what is asked for.
    pub fn forward(
        &self,
        xs: &Tensor,
        mask: &AttentionMask,
        options: &AttentionOptions,
        observe: Option<&ObserveOptions>,
    ) -> Result<(Tensor, Option<AttentionStats>)> {
        let own = mask.clone().and(self.mask.clone());
        let mut seen = None;
        let attend = |xs: &Tensor| -> Result<PendingBias> {
            let inputs = AttentionInputs::self_attention(xs, &own);
            Ok(match observe {
                Some(what) => {
                    let observed = self.attention.observe(&inputs, options, what)?;
                    seen.insert(observed).output.clone().into()
                }
                None => self.attention.attend_with(&inputs, options)?.output.into(),
            })
        };
        let output = self.around(xs, attend, options.train)?;
        Ok((output, seen))
    }

    /// As [`forward`](Self::forward) on texts of these lengths that lie one after the other, `(1, tokens, hidden)`.
    pub fn forward_texts(&self, xs: &Tensor, lengths: &[usize], shared: &BatchCache) -> Result<Tensor> {
        let attend = |xs: &Tensor| {
            let attended = self.attention.attend_ragged_pending(&xs.squeeze(0)?, lengths, &self.mask, shared)?;
            attended.map(|ys| ys.unsqueeze(0))
        };
        self.around(xs, attend, false)
    }

    /// All of the layer around its attention.
    fn around(
        &self,
        xs: &Tensor,
        mut attend: impl FnMut(&Tensor) -> Result<PendingBias>,
        train: bool,
    ) -> Result<Tensor> {
        let drop = |xs: PendingBias| match train && self.dropout > 0.0 {
            true => Ok(drop_out(&xs.apply()?, self.dropout, train)?.into()),
            false => Ok::<_, Error>(xs),
        };
        let mut attend = |xs: &Tensor| drop(attend(xs)?);
        let feed = |xs: &Tensor| drop(self.feed_forward.forward(xs)?);
        let first = self.attention_norm.as_ref();
        if self.pre_norm {
            let attended = match first {
                Some(norm) => attend(&norm.forward(xs)?)?,
                None => attend(xs)?,
            };
            let (xs, normalised) = self.output_norm.of_sum(xs, attended)?;
            return Ok((xs + feed(&normalised)?.apply()?)?);
        }
        let attended = match &self.inner_norm {
            Some(inner) => inner.forward_sum(xs, attend(xs)?)?.into(),
            None => attend(xs)?,
        };
        let xs = match first {
            Some(norm) => norm.forward_sum(xs, attended)?,
            None => (xs + attended.apply()?)?,
        };
        let fed = feed(&xs)?;
        self.output_norm.forward_sum(&xs, fed)
    }

    pub fn runs_on_rows(&self) -> bool {
        self.inner_norm.is_none() && self.attention.supports_cpu_ragged() && self.feed_forward.runs_on_rows()
    }

    /// As [`forward`](Self::forward), in place, on rows that lie one after the other; call only if
    /// [`runs_on_rows`](Self::runs_on_rows).
    pub fn forward_rows(
        &self,
        isa: Isa,
        hidden: &mut [f32],
        starts: &[usize],
        buffers: &mut LayerBuffers,
    ) -> Result<()> {
        let tokens = starts.last().copied().unwrap_or(0);
        let LayerBuffers { attention, inner, outer, normalised } = buffers;
        if !self.pre_norm {
            self.attention.attend_ragged_cpu(hidden, starts, &self.mask, attention, outer)?;
            if let Some(norm) = &self.attention_norm {
                norm.add_rows(isa, hidden, Some(outer))?;
            }
            self.feed_forward.forward_rows(hidden, tokens, inner, outer)?;
            return self.output_norm.add_rows(isa, hidden, Some(outer));
        }
        normalise(isa, hidden, self.attention_norm.as_ref(), normalised)?;
        self.attention.attend_ragged_cpu(normalised, starts, &self.mask, attention, outer)?;
        add(hidden, outer);
        normalise(isa, hidden, Some(&self.output_norm), normalised)?;
        self.feed_forward.forward_rows(normalised, tokens, inner, outer)?;
        add(hidden, outer);
        Ok(())
    }
}

/// `to` becomes the rows `xs`, normalised where there is a norm.
fn normalise(isa: Isa, xs: &[f32], norm: Option<&LayerNorm>, to: &mut Vec<f32>) -> Result<()> {
    to.clear();
    to.extend_from_slice(xs);
    norm.map_or(Ok(()), |norm| norm.add_rows(isa, to, None))
}

fn add(xs: &mut [f32], ys: &[f32]) {
    xs.iter_mut().zip(ys).for_each(|(x, y)| *x += y);
}

pub(crate) fn drop_out(xs: &Tensor, p: f64, train: bool) -> Result<Tensor> {
    if !train || p == 0.0 {
        return Ok(xs.clone());
    }
    Ok(dropout(xs, p as f32)?)
}
