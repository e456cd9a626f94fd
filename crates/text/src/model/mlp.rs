//! A multi-layer perceptron, plain or gated: the feed-forward part of a block, or one expert of many.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::weights::LinearWeights;
use candle_attention::{Quantization, Result, map_fields, share_fields};
use candle_attention_kernels as kernels;
use candle_attention_kernels::{Element, ScratchPool, Team, element_count};
use candle_core::{DType, Device, Module, Tensor, WithDType};
use candle_nn::Activation;
use half::bf16;

use crate::families::model::{Block, FeedForwardNames};
use crate::model::config::TextModelConfig;

/// Intermediate values of the rows that go through both products together: 1 MB in f32, half of the L2 cache of a core.
const BLOCK_VALUES: usize = 1 << 18;
/// The most such rows: as many as a product multiplies with a panel before it fetches the next one.
const MAX_BLOCK_ROWS: usize = 128;

/// Rows of f32 on the CPU, `(tokens, width)`, and what multiplies them.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub team: Team<'a>,
    pub xs: &'a [f32],
    pub tokens: usize,
    pub scratch: &'a ScratchPool,
}

/// A multi-layer perceptron with one inner layer.
#[derive(Debug, Clone)]
pub(crate) struct Mlp {
    pub activated: Linear,
    pub plain: Option<Linear>,
    activation: Activation,
    pub last: Linear,
}

impl Mlp {
    /// Loads the projections below the prefix of `source`, that of a layer.
    pub fn load(config: &TextModelConfig, row: &Block, source: &AnySource) -> Result<Self> {
        let names = row.feed_forward;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        // In gated families each bias is optional. Packed one after another, so that never all tensors and all packed
        // weights are in memory.
        let dense = |name: &str, out, input| match names {
            FeedForwardNames::Plain { .. } => {
                Linear::load_with_bias(&source.child(name), out, input, row.feed_forward_bias)
            }
            _ => Linear::load(source, name, out, input),
        };
        let activation = config.hidden_act;
        Ok(match names {
            FeedForwardNames::Plain { first, last } => {
                Self::plain(dense(first, inner, hidden)?, activation, dense(last, hidden, inner)?)
            }
            FeedForwardNames::Apart { activated, plain, last } => {
                let (activated, plain) = (dense(activated, inner, hidden)?, dense(plain, inner, hidden)?);
                Self { activated, plain: Some(plain), activation, last: dense(last, hidden, inner)? }
            }
            FeedForwardNames::Halves { both, activated: half, last } => {
                let [first, second] = Linear::load_halves(source, both, inner, hidden)?;
                let (activated, plain) = if half == 0 { (first, second) } else { (second, first) };
                Self { activated, plain: Some(plain), activation, last: dense(last, hidden, inner)? }
            }
        })
    }

    /// `last(activation(first(x)))`.
    pub fn plain(first: Linear, activation: Activation, last: Linear) -> Self {
        Self { activated: first, plain: None, activation, last }
    }

    /// The format of projections in few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        [Some(&self.activated), self.plain.as_ref(), Some(&self.last)]
            .into_iter()
            .flatten()
            .find_map(Linear::quantization)
    }

    /// Packs the weights now and gives their tensors back, as [`Linear::pack`] does.
    pub fn pack(&mut self) -> Result<()> {
        [&mut self.activated, &mut self.last].into_iter().chain(&mut self.plain).try_for_each(Linear::pack)
    }

    /// xs `(b, s, hidden)` → the same.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let inner = self.activation.forward(&self.activated.forward_in_dtype(xs, xs.dtype())?)?;
        let inner = match &self.plain {
            Some(plain) => (inner * plain.forward_in_dtype(xs, xs.dtype())?)?,
            None => inner,
        };
        self.last.forward_in_dtype(&inner, xs.dtype())
    }

    /// [`forward`](Self::forward) of a part that is not gated, with its inner features times `factors`.
    pub fn forward_times(&self, xs: &Tensor, factors: &Tensor) -> Result<Tensor> {
        let inner = (self.activation.forward(&self.activated.forward_in_dtype(xs, xs.dtype())?)? * factors)?;
        self.last.forward_in_dtype(&inner, xs.dtype())
    }

    /// [`forward_times`](Self::forward_times) on CPU buffers; only call it if [`supports_rows`](Self::supports_rows).
    pub fn forward_rows_times(&self, rows: Rows, factors: &[f32], outer: &mut [f32]) -> Result<()> {
        let mut inner = rows.scratch.take(factors.len())?;
        self.activated_rows(rows, &mut inner)?;
        inner.iter_mut().zip(factors).for_each(|(x, factor)| *x *= *factor);
        self.last_rows(rows, &inner, outer)
    }

    pub fn supports_rows(&self) -> bool {
        self.activated.can_pack() && self.last.can_pack() && self.plain.as_ref().is_none_or(Linear::can_pack)
    }

    /// Multiply-adds of [`forward_rows`](Self::forward_rows).
    pub fn multiply_adds(&self, tokens: usize) -> Result<usize> {
        let all = [Some(&self.activated), self.plain.as_ref(), Some(&self.last)].into_iter().flatten();
        all.into_iter().try_fold(0usize, |sum, part| Ok(sum.saturating_add(part.packed()?.multiply_adds(tokens))))
    }

    /// [`forward`](Self::forward) on CPU buffers, from rows `(tokens, hidden_size)` to `outer` of the same shape; only
    /// call it if [`supports_rows`](Self::supports_rows).
    ///
    /// Rows go through all products in blocks, whose intermediate features stay in the cache of a core. If there are
    /// fewer blocks than threads, these share each product instead.
    pub fn forward_rows(&self, rows: Rows, outer: &mut [f32]) -> Result<()> {
        let Rows { team, xs, tokens, scratch } = rows;
        let width = self.activated.packed()?.in_features();
        let inner = self.last.packed()?.in_features();
        let size = (BLOCK_VALUES / inner.max(1)).next_multiple_of(8).clamp(64, MAX_BLOCK_ROWS);
        if team.threads() > 1 && tokens < team.threads() * size {
            return self.forward_block(rows, outer);
        }
        team.try_for_chunks(outer, size * width, |block, outer| {
            let xs = &xs[block * size * width..][..outer.len()];
            self.forward_block(Rows { team: Team::ALONE, xs, tokens: outer.len() / width, scratch }, outer)
        })
    }

    fn forward_block(&self, rows: Rows, outer: &mut [f32]) -> Result<()> {
        let Rows { team, xs, tokens, scratch } = rows;
        let size = element_count("the intermediate features", &[tokens, self.last.packed()?.in_features()])?;
        if self.plain.is_none() && self.last.packed()?.rounds_to_bf16() {
            // The next product rounds its inputs to bf16, so nothing wider is stored.
            let mut memory = scratch.take(size.div_ceil(2))?;
            let inner: &mut [bf16] = &mut bytemuck::cast_slice_mut(&mut memory)[..size];
            self.activated_rows(rows, inner)?;
            return self.last_rows(rows, inner, outer);
        }
        let mut inner = scratch.take(size)?;
        self.activated_rows(rows, &mut inner)?;
        if let Some(plain) = &self.plain {
            let mut factors = scratch.take(size)?;
            plain.packed()?.multiply_into(team, xs, tokens, kernels::Activation::Identity, &mut factors)?;
            inner.iter_mut().zip(&*factors).for_each(|(x, factor)| *x *= *factor);
        }
        self.last_rows(rows, &inner, outer)
    }

    fn activated_rows<T: Element + WithDType>(&self, rows: Rows, inner: &mut [T]) -> Result<()> {
        let Rows { team, xs, tokens, .. } = rows;
        let fused = fused_activation(self.activation);
        let activation = fused.unwrap_or(kernels::Activation::Identity);
        self.activated.packed()?.multiply_into(team, xs, tokens, activation, inner)?;
        if fused.is_none() {
            let xs = Tensor::from_slice(inner, inner.len(), &Device::Cpu)?.to_dtype(DType::F32)?;
            inner.copy_from_slice(&self.activation.forward(&xs)?.to_dtype(T::DTYPE)?.to_vec1()?);
        }
        Ok(())
    }

    fn last_rows<T: Element>(&self, rows: Rows, inner: &[T], outer: &mut [f32]) -> Result<()> {
        let (last, identity) = (self.last.packed()?, kernels::Activation::Identity);
        Ok(last.multiply_into(rows.team, inner, rows.tokens, identity, outer)?)
    }
}

/// The activation of the kernels that computes what candle's does; `None` if they do not have it.
fn fused_activation(activation: Activation) -> Option<kernels::Activation> {
    Some(match activation {
        Activation::Gelu => kernels::Activation::Gelu,
        Activation::NewGelu | Activation::GeluPytorchTanh => kernels::Activation::GeluTanh,
        Activation::Silu | Activation::Swish => kernels::Activation::Silu,
        Activation::Relu => kernels::Activation::Relu,
        _ => return None,
    })
}

map_fields!(Mlp { activated, plain, last }..);
share_fields!(Mlp { activated, plain, last });

/// Loads the projection `name` `(out, input)` as it is stored, not packed yet.
pub(crate) fn linear(source: &AnySource, name: &str, out: usize, input: usize, bias: bool) -> Result<Linear> {
    let source = source.child(name);
    let bias = bias.then(|| source.get("bias", &[out])).transpose()?;
    let weights = LinearWeights::new(source.get("weight", &[out, input])?, bias);
    Linear::new(&source.full_name(""), weights, out, input)
}
