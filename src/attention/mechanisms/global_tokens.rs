//! Global tokens ([Longformer](https://arxiv.org/abs/2004.05150)), which every query sees and which see every token.
//! A call runs all queries under the layer's window, with the global tokens beside it. Then the queries of global
//! tokens run again in a layer with the other projections and no window, and take the place of the first.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use candle_nn::Init;

use crate::attention::build::qkv_sizes;
use crate::attention::call::OpenCall;
use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, Routes, boxed};
use crate::attention::options::Tokens;
use crate::attention::{
    AttentionInputs, AttentionOptions, AttentionStats, MultiHeadAttention, ObserveOptions, TopKeys,
};
use crate::config::{AttentionConfig, KeyValueSource, MechanismConfig, ProjectionBias};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::Qkv;
use crate::sdpa::AttentionOutput;
use crate::tensor::select;
use crate::weights::{HeadKind, LinearWeights, Parameter, Presence, QkvWeights};

/// The projections of queries, keys and values of global tokens.
pub(crate) const GLOBAL: [&str; 3] = ["query_global", "key_global", "value_global"];
/// Their weights `(out, in)` and biases `(out)`.
pub(crate) const GLOBAL_PARTS: [[&str; 2]; 3] = [
    ["query_global.weight", "query_global.bias"],
    ["key_global.weight", "key_global.bias"],
    ["value_global.weight", "value_global.bias"],
];

/// The names of these projections: this crate's own, Longformer's and LED's.
pub(crate) const GLOBAL_NAMES: [[&str; 3]; 3] = [
    [GLOBAL[0], "self.query_global", "longformer_self_attn.query_global"],
    [GLOBAL[1], "self.key_global", "longformer_self_attn.key_global"],
    [GLOBAL[2], "self.value_global", "longformer_self_attn.value_global"],
];

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| (0..3).flat_map(|i| rows(config, i)).collect(),
    names: &[(GLOBAL[0], &GLOBAL_NAMES[0]), (GLOBAL[1], &GLOBAL_NAMES[1]), (GLOBAL[2], &GLOBAL_NAMES[2])],
    from_layer: |layer| GlobalTokens::from_layer(layer).map(boxed),
    ..MechanismRow::NONE
};

/// Tokens may be global.
#[derive(Debug, Clone, Copy, PartialEq)]
struct GlobalTokensConfig;

impl AttentionConfig {
    /// Sets whether tokens may be global ([Longformer](https://arxiv.org/abs/2004.05150)), as each call says
    /// ([`AttentionOptions::global_tokens`]): every query sees them beside its window, and their own queries see every
    /// token, with projections of queries, keys and values of their own.
    #[must_use]
    pub fn with_global_tokens(mut self, global_tokens: bool) -> Self {
        self.mechanisms.set(global_tokens.then_some(GlobalTokensConfig));
        self
    }

    /// Whether tokens may be global.
    pub fn global_tokens(&self) -> bool {
        self.mechanisms.get::<GlobalTokensConfig>().is_some()
    }
}

impl MechanismConfig for GlobalTokensConfig {
    /// Checks that the layer has nothing that is made of its projections alone.
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let has_more = config.latent.is_some() || config.projects_more() || config.reshapes();
        let has_other_keys = config.key_value_source != KeyValueSource::Projections;
        if has_more || has_other_keys || !config.position.is_none() {
            let allowed = "false beside latents, a gate, positions, pooled queries or keys of another kind";
            return Err(Error::config("global_tokens", true, allowed));
        }
        Ok(())
    }

    fn extends_keys(&self) -> bool {
        true
    }
}

/// The rows of the weight and of the bias of one of the projections of queries (0), keys (1) and values (2).
fn rows(config: &AttentionConfig, i: usize) -> [Parameter; 2] {
    let (sizes, inputs) = qkv_sizes(config);
    let (out, input) = (sizes[i], inputs[i]);
    let bound = (6.0 / (out as f64 + input as f64)).sqrt();
    let row = |part: usize, shape: Vec<usize>, init: Init, presence: Presence| Parameter {
        field: "global_tokens",
        heads: if i == 0 { HeadKind::Query } else { HeadKind::KeyValue },
        ..Parameter::new(GLOBAL_PARTS[i][part], shape, init)
            .with_head_axis(0)
            .with_presence(if config.global_tokens() { presence } else { Presence::Absent })
    };
    [
        row(0, vec![out, input], Init::Uniform { lo: -bound, up: bound }, Presence::Required),
        row(1, vec![out], Init::Const(0.0), Presence::Optional),
    ]
}

/// The projections of global tokens, which each call says.
struct GlobalTokens(Qkv);

impl GlobalTokens {
    fn from_layer(LayerParts { config, parameters, .. }: LayerParts) -> Result<Option<Self>> {
        if !config.global_tokens() {
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
        Qkv::new(weights, rows, inputs, config.resolved_num_key_value_heads(), (None, 0)).map(|qkv| Some(Self(qkv)))
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
        match self.queries(call)? {
            Some(queries) => queries.join_output(call, result),
            None => Ok(result),
        }
    }

    fn finish_stats(&self, call: &OpenCall, stats: AttentionStats, what: &ObserveOptions) -> Result<AttentionStats> {
        match self.queries(call)? {
            Some(queries) => queries.join_stats(call, stats, what),
            None => Ok(stats),
        }
    }
}

impl GlobalTokens {
    /// The queries of global tokens of a call, if it has such.
    fn queries<'a>(&self, call: &OpenCall<'a>) -> Result<Option<GlobalQueries<'a>>> {
        let Some(tokens) = call.options.global_tokens else { return Ok(None) };
        let (b, s, _) = call.xs[0].dims3()?;
        let is_global = tokens.to_device(&Device::Cpu)?.ne(0.0)?.broadcast_as((b, s))?.contiguous()?;
        let options = AttentionOptions { global_tokens: None, ..*call.options };
        Ok(Some(GlobalQueries { is_global, layer: self.layer(call.layer), options }))
    }

    /// The layer of the queries of global tokens. All but its projections is shared with `layer`.
    fn layer(&self, layer: &MultiHeadAttention) -> MultiHeadAttention {
        let [q, k, v] = GLOBAL_PARTS.map(|[_, bias]| layer.parameters.get(bias).is_some());
        let config = layer.config.clone().with_mask(AttentionMask::full()).with_global_tokens(false);
        let config = AttentionConfig { bias: ProjectionBias { q, k, v, ..layer.config.bias }, ..config };
        let others = layer.mechanisms.iter().filter(|other| !std::ptr::addr_eq(Arc::as_ptr(other), self)).cloned();
        MultiHeadAttention { config, qkv: self.0.clone(), mechanisms: others.collect(), ..layer.clone() }
    }
}

/// The queries of the global tokens of a call.
struct GlobalQueries<'a> {
    /// Which tokens are global, `(b, s)` of 0 and 1.
    is_global: Tensor,
    layer: MultiHeadAttention,
    options: AttentionOptions<'a>,
}

impl GlobalQueries<'_> {
    /// The output of the call with that of these queries. Differentiable.
    fn join_output(&self, call: &OpenCall, own: AttentionOutput) -> Result<AttentionOutput> {
        let runs = runs(&self.is_global.to_vec2()?);
        if runs.is_empty() {
            return Ok(own);
        }
        let [query, key, value] = &call.xs;
        let memory = self.layer.cross_cache(key, value)?;
        let (mut outputs, mut weights, mut rows) = (Vec::new(), Vec::new(), vec![0; self.is_global.dim(1)?]);
        let mut next = 0..;
        for run in runs {
            rows[run.clone()].iter_mut().zip(&mut next).for_each(|(row, i)| *row = i);
            let query = query.narrow(1, run.start, run.len())?;
            let mask = call.mask.select_queries(run, call.sizes.shape)?;
            let inputs = AttentionInputs::cross_cached(&query, &memory, mask);
            let here = self.layer.open_given(&inputs, &self.options)?.run()?;
            outputs.push(here.output);
            weights.extend(here.attention_weights);
        }
        let join = |own: &Tensor, here: &[Tensor], dim: usize| {
            with_rows(own, &select(&Tensor::cat(here, dim)?, &rows, dim)?, &self.is_global, dim)
        };
        let attention_weights = own.attention_weights.map(|own| join(&own, &weights, 2)).transpose()?;
        Ok(AttentionOutput { output: join(&own.output, &outputs, 1)?, attention_weights })
    }

    /// The statistics of the call with those of these queries.
    fn join_stats(&self, call: &OpenCall, own: AttentionStats, what: &ObserveOptions) -> Result<AttentionStats> {
        let is_global = &self.is_global;
        let [query, key, value] = &call.xs;
        let inputs = AttentionInputs::new(query, key, value, call.mask);
        let here = self.layer.open_given(&inputs, &self.options)?.observe(what)?;
        let queries = what.queries.as_deref().map(|queries| select(is_global, queries, 1)).transpose()?;
        let queries = queries.as_ref().unwrap_or(is_global);
        let join = |own: &Tensor, here: &Tensor| with_rows(own, here, queries, 2);
        let both =
            |own: Option<Tensor>, here: Option<Tensor>| own.zip(here).map(|(own, here)| join(&own, &here)).transpose();
        let tops = own.top_keys.zip(here.top_keys).map(|(own, here)| {
            let attention_weights = join(&own.attention_weights, &here.attention_weights)?;
            Ok::<_, Error>(TopKeys { keys: join(&own.keys, &here.keys)?, attention_weights })
        });
        Ok(AttentionStats {
            output: with_rows(&own.output, &here.output, is_global, 1)?,
            attention_weights: both(own.attention_weights, here.attention_weights)?,
            entropy: both(own.entropy, here.entropy)?,
            mean_distance: both(own.mean_distance, here.mean_distance)?,
            top_keys: tops.transpose()?,
        })
    }
}

/// Runs of queries that hold all global tokens of all sequences (rows of 0 and 1). Tokens between two of them run with
/// them where they are few: a run reads all keys, so that a query more costs less than a run more.
fn runs(is_global: &[Vec<u8>]) -> Vec<Range<usize>> {
    const FEW: usize = 16;
    let tokens = is_global.first().map_or(0, Vec::len);
    let mut runs: Vec<Range<usize>> = Vec::new();
    for i in (0..tokens).filter(|&i| is_global.iter().any(|sequence| sequence[i] != 0)) {
        match runs.last_mut() {
            Some(run) if i <= run.end + FEW => run.end = i + 1,
            _ => runs.push(i..i + 1),
        }
    }
    runs
}

/// `all` with rows of `here` along `dim` in their place in each sequence where `is_global` `(b, rows)` is 1.
/// Differentiable.
fn with_rows(all: &Tensor, here: &Tensor, is_global: &Tensor, dim: usize) -> Result<Tensor> {
    if here.elem_count() == 0 {
        return Ok(all.clone());
    }
    let mut shape = vec![1; here.rank()];
    (shape[0], shape[dim]) = (here.dim(0)?, here.dim(dim)?);
    let is_global = is_global.to_device(here.device())?.reshape(shape)?.broadcast_as(here.shape())?;
    Ok(is_global.where_cond(here, all)?)
}
