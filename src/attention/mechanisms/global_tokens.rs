//! Global tokens ([Longformer](https://arxiv.org/abs/2004.05150)), which every query sees and which see every token.
//! A call runs all queries under the layer's window, with the global tokens beside it. Then the queries of global
//! tokens run again in a layer with the other projections and no window, and take the place of the first.

use candle_core::{Device, Tensor};

use crate::attention::build::qkv_sizes;
use crate::attention::call::OpenCall;
use crate::attention::mechanism::{Mechanism, Routes};
use crate::attention::mechanisms;
use crate::attention::observe::runs;
use crate::attention::options::Tokens;
use crate::attention::{
    AttentionInputs, AttentionOptions, AttentionStats, MultiHeadAttention, ObserveOptions, TopKeys,
};
use crate::config::{AttentionConfig, ProjectionBias};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::Qkv;
use crate::sdpa::AttentionOutput;
use crate::tensor::select;
use crate::weights::{GLOBAL_PARTS, LinearWeights, Parameters, QkvWeights};

/// Global tokens, which each call says.
pub(super) struct GlobalTokens;

impl GlobalTokens {
    pub(super) fn from_config(config: &AttentionConfig) -> Option<Self> {
        config.global_tokens.then_some(Self)
    }
}

impl Mechanism for GlobalTokens {
    fn routes(&self) -> Routes {
        Routes::ALL
    }

    fn check(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<()> {
        let Some(tokens) = options.global_tokens else { return Ok(()) };
        let (query, key) = (inputs.query.dims(), inputs.key.dims());
        let is_plain = matches!(inputs.tokens, Tokens::Padded) && inputs.cache.is_none() && query[1] == key[1];
        if !is_plain || options.score_bias.is_some() {
            let expected = "none, or padded self-attention without a cache or a score bias";
            return Err(Error::value("`global_tokens` of this call", "given", expected));
        }
        let [b, s] = [query[0], query[1]];
        if tokens.dims() != [b, s] && tokens.dims() != [1, s] {
            return Err(Error::shape("global_tokens", tokens.dims(), format!("[{b} or 1, {s}]")));
        }
        ensure!(tokens.dtype().is_int(), Error::dtype("global_tokens", tokens.dtype(), "an integer dtype"));
        Ok(())
    }

    /// The mask of the layer has the global tokens beside it.
    fn join_masks(
        &self,
        own: &AttentionMask,
        given: &AttentionMask,
        options: &AttentionOptions,
    ) -> Result<Option<AttentionMask>> {
        let Some(tokens) = options.global_tokens else { return Ok(None) };
        Ok(Some(given.clone().and(own.clone().or(AttentionMask::keep_keys(tokens)?)?)))
    }

    fn check_sharing(&self, options: &AttentionOptions) -> Result<()> {
        let expected = "none: they have keys of their own";
        let error = || Error::value("`global_tokens` of a call whose keys are to be shared", "given", expected);
        ensure!(options.global_tokens.is_none(), error());
        Ok(())
    }

    fn finish(&self, call: &OpenCall, result: AttentionOutput) -> Result<AttentionOutput> {
        call.with_global_queries(result)
    }

    fn finish_stats(&self, call: &OpenCall, stats: AttentionStats, what: &ObserveOptions) -> Result<AttentionStats> {
        call.with_global_stats(stats, what)
    }
}

/// The projections of global tokens, if there are some among `parameters`, which are checked.
pub(in crate::attention) fn global_qkv(config: &AttentionConfig, parameters: &Parameters) -> Result<Option<Qkv>> {
    if !config.global_tokens {
        return Ok(None);
    }
    let part = |[weight, bias]: [&str; 2]| {
        Ok::<_, Error>(LinearWeights {
            weight: parameters.require(weight)?.clone(),
            bias: parameters.get(bias).cloned(),
        })
    };
    let [query, key, value] = GLOBAL_PARTS;
    let weights = QkvWeights::Split(Box::new([part(query)?, part(key)?, part(value)?]));
    let (rows, inputs) = qkv_sizes(config);
    Qkv::new(weights, rows, inputs, config.resolved_num_key_value_heads(), (None, 0)).map(Some)
}

impl MultiHeadAttention {
    /// The layer of the queries of global tokens. All but its projections is shared with this one.
    fn global_layer(&self) -> Result<Option<Self>> {
        let Some(qkv) = self.global.clone() else { return Ok(None) };
        let [q, k, v] = GLOBAL_PARTS.map(|[_, bias]| self.parameters.get(bias).is_some());
        let config = self.config.clone().with_mask(AttentionMask::full()).with_global_tokens(false);
        let config = AttentionConfig { bias: ProjectionBias { q, k, v, ..self.config.bias }, ..config };
        let mut layer = Self { config, qkv, global: None, ..self.clone() };
        layer.mechanisms = mechanisms::from_layer(&layer.config, &layer.parameters, layer.qkv.like())?;
        Ok(Some(layer))
    }
}

impl OpenCall<'_> {
    /// Which tokens are global, `(b, s)` of 0 and 1, the layer of their queries and its options, if the call has such.
    fn global(&self) -> Result<Option<(Tensor, MultiHeadAttention, AttentionOptions<'_>)>> {
        let Some(tokens) = self.options.global_tokens else { return Ok(None) };
        let Some(layer) = self.layer.global_layer()? else { return Ok(None) };
        let (b, s, _) = self.xs[0].dims3()?;
        let is_global = tokens.to_device(&Device::Cpu)?.ne(0.0)?.broadcast_as((b, s))?.contiguous()?;
        Ok(Some((is_global, layer, AttentionOptions { global_tokens: None, ..*self.options })))
    }

    /// What the call returns, with the queries of global tokens. Differentiable.
    fn with_global_queries(&self, own: AttentionOutput) -> Result<AttentionOutput> {
        let Some((is_global, layer, options)) = self.global()? else { return Ok(own) };
        let marks: Vec<Vec<u8>> = is_global.to_vec2()?;
        let is_place = |place: &usize| marks.iter().any(|sequence| sequence[*place] != 0);
        let places: Vec<usize> = (0..is_global.dim(1)?).filter(is_place).collect();
        let (mut output, mut weights) = (own.output, own.attention_weights);
        for run in runs(&places, usize::MAX) {
            let narrow = |xs: &Tensor, dim: usize| xs.narrow(dim, run.start, run.len());
            let [query, key, value] = &self.xs;
            let query = narrow(query, 1)?;
            let mask = self.mask.select_queries(run.clone(), self.sizes.shape)?;
            let inputs = AttentionInputs::new(&query, key, value, mask);
            let here = layer.open_given(&inputs, &options, |call| call.run())?;
            let is_global = narrow(&is_global, 1)?;
            output = with_rows(&output, &here.output, &is_global, 1, run.start)?;
            if let (Some(all), Some(here)) = (&weights, here.attention_weights) {
                weights = Some(with_rows(all, &here, &is_global, 2, run.start)?);
            }
        }
        Ok(AttentionOutput { output, attention_weights: weights })
    }

    /// The statistics of the call, with the queries of global tokens.
    fn with_global_stats(&self, own: AttentionStats, what: &ObserveOptions) -> Result<AttentionStats> {
        let Some((is_global, layer, options)) = self.global()? else { return Ok(own) };
        let [query, key, value] = &self.xs;
        let inputs = AttentionInputs::new(query, key, value, self.mask);
        let here = layer.open_given(&inputs, &options, |call| call.observe(what))?;
        let queries = what.queries.as_deref().map(|queries| select(&is_global, queries, 1)).transpose()?;
        let queries = queries.as_ref().unwrap_or(&is_global);
        let join = |own: &Tensor, here: &Tensor| with_rows(own, here, queries, 2, 0);
        let both =
            |own: Option<Tensor>, here: Option<Tensor>| own.zip(here).map(|(own, here)| join(&own, &here)).transpose();
        let tops = own.top_keys.zip(here.top_keys).map(|(own, here)| {
            let attention_weights = join(&own.attention_weights, &here.attention_weights)?;
            Ok::<_, Error>(TopKeys { keys: join(&own.keys, &here.keys)?, attention_weights })
        });
        Ok(AttentionStats {
            output: with_rows(&own.output, &here.output, &is_global, 1, 0)?,
            attention_weights: both(own.attention_weights, here.attention_weights)?,
            entropy: both(own.entropy, here.entropy)?,
            mean_distance: both(own.mean_distance, here.mean_distance)?,
            top_keys: tops.transpose()?,
        })
    }
}

/// `all` with rows of `here` in place of those from `start` along `dim` on, in each sequence where `is_global`
/// `(b, rows)` is 1. Differentiable.
fn with_rows(all: &Tensor, here: &Tensor, is_global: &Tensor, dim: usize, start: usize) -> Result<Tensor> {
    if here.elem_count() == 0 {
        return Ok(all.clone());
    }
    let (rows, end) = (here.dim(dim)?, start + here.dim(dim)?);
    let mut shape = vec![1; here.rank()];
    (shape[0], shape[dim]) = (here.dim(0)?, rows);
    let is_global = is_global.to_device(here.device())?.reshape(shape)?.broadcast_as(here.shape())?;
    let joined = is_global.where_cond(here, &all.narrow(dim, start, rows)?)?;
    let parts = [all.narrow(dim, 0, start)?, joined, all.narrow(dim, end, all.dim(dim)? - end)?];
    let parts: Vec<&Tensor> = parts.iter().filter(|part| part.elem_count() > 0).collect();
    Ok(Tensor::cat(&parts, dim)?)
}
