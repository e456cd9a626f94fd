//! The feed-forward part of a block: a multi-layer perceptron, or a mixture of experts, where each token goes to a few
//! of many of them ([Shazeer 2017](https://arxiv.org/abs/1701.06538)).

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::compute_dtype;
use candle_attention::weights::LinearWeights;
use candle_attention::{Quantization, Result, map_fields, share_fields};
use candle_attention_kernels::{Activation, element_count};
use candle_core::{D, DType, Tensor};
use candle_nn::ops::softmax;

use crate::families::model::Block;
use crate::model::config::{ExpertsConfig, TextModelConfig};
use crate::model::mlp::{Mlp, Rows, linear};

/// The feed-forward part of a block, for each token alone: `expert(x)`, or in a mixture `Σ wₑ · expertₑ(x) + b` over
/// the experts `e` with the largest weights `w = softmax(router(x))`.
///
/// An expert runs on the tokens that are routed to it, all at once, and the sum of a token goes through its experts in
/// their order. So a token gets the same numbers whatever shares its batch, as everywhere in this crate. Which experts
/// a token goes to has to be known on the CPU: on a GPU, each of these blocks waits for the device.
#[derive(Debug, Clone)]
pub(crate) struct FeedForward {
    /// One, unless they are a mixture.
    pub experts: Vec<Mlp>,
    mixture: Option<Mixture>,
}

/// How experts are mixed.
#[derive(Debug, Clone)]
struct Mixture {
    router: Linear,
    /// `(hidden_size)`.
    bias: Tensor,
    top_k: usize,
    normalized: bool,
}

/// The tokens of an expert, each with its weight.
type Routed = Vec<(usize, f32)>;

impl FeedForward {
    /// Loads the part of block `index`, which is at the prefix of `source`.
    pub fn load(config: &TextModelConfig, row: &Block, source: &AnySource, index: usize) -> Result<Self> {
        match config.experts()?.filter(|stated| stated.is_mixture(index)) {
            Some(stated) => Self::load_mixture(config, stated, source),
            None => Ok(Self { experts: vec![Mlp::load(config, row, source)?], mixture: None }),
        }
    }

    /// Loads a mixture. Its experts are stored one below the other, both of their matrices with a row per inner
    /// feature, as MegaBlocks stores them.
    fn load_mixture(config: &TextModelConfig, stated: ExpertsConfig, source: &AnySource) -> Result<Self> {
        const FIRST: &str = "mlp.experts.mlp.w1";
        const LAST: &str = "mlp.experts.mlp.w2";
        let ExpertsConfig { count, top_k, normalized, .. } = stated;
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let router = linear(source, "mlp.router.layer", count, hidden, false)?;
        let all = [element_count("the inner features of all experts", &[count, inner])?, hidden];
        let (first, last) = (source.get(FIRST, &all)?, source.get(LAST, &all)?);
        let mut experts = Vec::with_capacity(count);
        for expert in 0..count {
            // Views, which follow the weights if these change.
            let part = |all: &Tensor| all.narrow(0, expert * inner, inner);
            let linear = |name: &str, weight: Tensor, out, input| {
                Linear::new(&source.full_name(name), LinearWeights::new(weight, None), out, input)
            };
            let first = linear(FIRST, part(&first)?, inner, hidden)?;
            let mut expert = Mlp::plain(first, config.hidden_act, linear(LAST, part(&last)?.t()?, hidden, inner)?);
            for (linear, name) in [(&mut expert.activated, FIRST), (&mut expert.last, LAST)] {
                linear.pack_for(source, name)?;
            }
            experts.push(expert);
        }
        let mixture = Mixture { router, bias: source.get("mlp.experts.bias", &[hidden])?, top_k, normalized };
        Ok(Self { experts, mixture: Some(mixture) })
    }

    /// The format of projections in few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        self.experts.iter().find_map(Mlp::quantization)
    }

    /// Packs the weights now and gives their tensors back, as [`Linear::pack`] does.
    pub fn pack(&mut self) -> Result<()> {
        self.mixture.as_mut().map_or(Ok(()), |mixture| mixture.router.pack())?;
        self.experts.iter_mut().try_for_each(Mlp::pack)
    }

    /// xs `(b, s, hidden_size)` → the same. Differentiable: a router learns from the weights of the experts that it
    /// chose.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let Some(mixture) = &self.mixture else { return self.experts[0].forward(xs) };
        let (b, s, hidden) = xs.dims3()?;
        let tokens = b * s;
        let scores =
            mixture.router.forward_in_dtype(xs, compute_dtype(xs.dtype()))?.reshape((tokens, self.experts.len()))?;
        let weights = softmax(&scores, D::Minus1)?;
        let rows = weights.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let routed = mixture.routed(self.experts.len(), rows.iter().map(Vec::as_slice));
        let flat = xs.reshape((tokens, hidden))?;
        let mut parts = Vec::new();
        let mut sum_of_weights = weights.zeros_like()?.narrow(1, 0, 1)?.contiguous()?;
        for (expert, routed) in routed.iter().enumerate().filter(|(_, routed)| !routed.is_empty()) {
            let places = Tensor::from_iter(routed.iter().map(|(token, _)| *token as u32), xs.device())?;
            let weights = weights.narrow(1, expert, 1)?.contiguous()?.index_select(&places, 0)?;
            if mixture.normalized {
                sum_of_weights = sum_of_weights.index_add(&places, &weights, 0)?;
            }
            parts.push((expert, places, weights));
        }
        let mut sum = flat.zeros_like()?;
        for (expert, places, mut weights) in parts {
            if mixture.normalized {
                weights = (weights / sum_of_weights.index_select(&places, 0)?)?;
            }
            let ys = self.experts[expert].forward(&flat.index_select(&places, 0)?.unsqueeze(0)?)?;
            let ys = ys.squeeze(0)?.broadcast_mul(&weights.to_dtype(xs.dtype())?)?;
            sum = sum.index_add(&places, &ys, 0)?;
        }
        Ok(sum.broadcast_add(&mixture.bias)?.reshape((b, s, hidden))?)
    }

    /// Whether [`forward_rows`](Self::forward_rows) can run.
    pub fn supports_rows(&self) -> bool {
        let routes = self.mixture.as_ref().is_none_or(|mixture| mixture.router.can_pack());
        routes && self.experts.iter().all(Mlp::supports_rows)
    }

    /// Multiply-adds of [`forward_rows`](Self::forward_rows).
    pub fn multiply_adds(&self, tokens: usize) -> Result<usize> {
        let Some(mixture) = &self.mixture else { return self.experts[0].multiply_adds(tokens) };
        let router = mixture.router.packed()?.multiply_adds(tokens);
        Ok(router.saturating_add(self.experts[0].multiply_adds(tokens.saturating_mul(mixture.top_k))?))
    }

    /// [`forward`](Self::forward) on CPU buffers, from rows `(tokens, hidden_size)` to `outer` of the same shape; only
    /// call it if [`supports_rows`](Self::supports_rows).
    pub fn forward_rows(&self, rows: Rows, outer: &mut [f32]) -> Result<()> {
        let Some(mixture) = &self.mixture else { return self.experts[0].forward_rows(rows, outer) };
        let Rows { team, xs, tokens, scratch } = rows;
        let (hidden, count) = (mixture.router.in_features(), self.experts.len());
        let mut weights = scratch.take(element_count("the weights of experts", &[tokens, count])?)?;
        mixture.router.packed()?.multiply_into(team, xs, tokens, Activation::Identity, &mut weights)?;
        weights.chunks_exact_mut(count).for_each(softmax_row);
        let routed = mixture.routed(count, weights.chunks_exact(count));
        let bias = mixture.bias.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        let mut sums = vec![0.0f32; tokens];
        if mixture.normalized {
            routed.iter().flatten().for_each(|(token, weight)| sums[*token] += weight);
        }
        outer.fill(0.0);
        for (expert, routed) in self.experts.iter().zip(&routed).filter(|(_, routed)| !routed.is_empty()) {
            let size = element_count("the tokens of an expert", &[routed.len(), hidden])?;
            let (mut own, mut ys) = (scratch.take(size)?, scratch.take(size)?);
            for (row, (token, _)) in own.chunks_exact_mut(hidden).zip(routed) {
                row.copy_from_slice(&xs[token * hidden..][..hidden]);
            }
            expert.forward_rows(Rows { xs: &own, tokens: routed.len(), ..rows }, &mut ys)?;
            for (row, (token, weight)) in ys.chunks_exact(hidden).zip(routed) {
                let weight = if mixture.normalized { weight / sums[*token] } else { *weight };
                outer[token * hidden..][..hidden].iter_mut().zip(row).for_each(|(sum, y)| *sum += weight * y);
            }
        }
        outer.chunks_exact_mut(hidden).for_each(|row| row.iter_mut().zip(&bias).for_each(|(y, bias)| *y += bias));
        Ok(())
    }
}

impl Mixture {
    /// For each of `count` experts the tokens that are routed to it, given the weights of all experts for each token.
    /// Of equal weights the first ones count.
    fn routed<'a>(&self, count: usize, weights: impl Iterator<Item = &'a [f32]>) -> Vec<Routed> {
        let mut routed = vec![Vec::new(); count];
        let mut order: Vec<usize> = Vec::new();
        for (token, weights) in weights.enumerate() {
            order.clear();
            order.extend(0..weights.len());
            order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
            for expert in &order[..self.top_k] {
                routed[*expert].push((token, weights[*expert]));
            }
        }
        routed
    }
}

/// The softmax of a row, in place.
pub(crate) fn softmax_row(row: &mut [f32]) {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

map_fields!(Mixture { router, bias }..);
map_fields!(FeedForward { experts, mixture });

share_fields!(Mixture { router });
share_fields!(FeedForward { experts, mixture });
