//! Making a layer: new, from weights; its weights, and what it prints of them.

use std::fmt;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::Identity;
use crate::attention::steps::{FACTOR_NAMES, NORM_NAMES, StepState};
use crate::config::{
    AttentionConfig, HeadNorm, KeyValueSource, NormKind, NormOver, OutputGate, ProjectionBias, Scoring,
};
use crate::error::{Error, Result};
use crate::ops::{LatentSizes, Linear, Qkv};
use crate::position::{PositionState, Presence};
use crate::tensor::{Frozen, check_tensor_memory, same_dtype_and_device};
use crate::weights::{
    AttentionWeights, LatentWeights, LinearWeights, NormWeights, PositionWeights, QkvWeights, StepWeights,
};

/// The names of the gate and of the norm of the context in this crate's own layout.
const GATE: &str = "gate_proj";
const CONTEXT_NORM: &str = "attn_sub_norm";

impl MultiHeadAttention {
    /// A new layer, trainable if `vb` is backed by a `VarMap`: `q_proj`, `k_proj`, `v_proj`, `o_proj`, each a `weight`
    /// `(out, in)` and, if `config.bias` has it, a `bias`; `bias_k` and `bias_v` `(1, 1, ·)` for `add_bias_kv`;
    /// `score.weight` `(h, head_dim)` for additive scoring; `gate_proj` for a gate, `attn_sub_norm` for a norm of the
    /// context. Latent attention has `q_a_proj`, `q_a_layernorm`, `q_b_proj` (or `q_proj`), `kv_a_proj_with_mqa`,
    /// `kv_a_layernorm` and `kv_b_proj` instead of the first three; `config.bias.q` and `k` are then the biases of the
    /// projections of the layer's input.
    ///
    /// Weights are initialized Xavier-uniform ([Glorot 2010](https://proceedings.mlr.press/v9/glorot10a.html)), biases
    /// to zero, as in PyTorch. Weights of the position scheme have the names that the documentation of the scheme
    /// lists.
    ///
    /// # Errors
    /// The configuration is invalid, or `vb` holds tensors of other shapes.
    pub fn new(config: &AttentionConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let (rows, inputs) = qkv_sizes(config);
        let bias = config.bias;
        let q = || init_linear(&vb.pp("q_proj"), rows[0], inputs[0], bias.q);
        let k = || init_linear(&vb.pp("k_proj"), rows[1], inputs[1], bias.k);
        let v = || init_linear(&vb.pp("v_proj"), rows[2], inputs[2], bias.v);
        let qkv = match (&config.latent, config.key_value_source) {
            (Some(latent), _) => QkvWeights::Latent(Box::new(init_latent(&vb, &latent.sizes(config), bias)?)),
            (None, KeyValueSource::Projections) => QkvWeights::Split(Box::new([q()?, k()?, v()?])),
            (None, KeyValueSource::KeysAsValues) => QkvWeights::KeysAsValues(Box::new([q()?, k()?])),
            (None, KeyValueSource::Shared { .. }) => QkvWeights::Query(q()?),
        };
        let context = config.num_attention_heads * config.resolved_value_head_dim();
        let o = init_linear(&vb.pp("o_proj"), config.resolved_output_size(), context, bias.o)?;
        let extra = |name: &str, rows: usize| {
            // A layer whose heads are all pruned has no rows.
            let init = Init::Randn { mean: 0.0, stdev: (1.0 / rows.max(1) as f64).sqrt() };
            Ok::<_, Error>(init_tensor(&vb, &[1, 1, rows], name, init)?.reshape(rows)?)
        };
        let bias_kv =
            if config.add_bias_kv { Some([extra("bias_k", rows[1])?, extra("bias_v", rows[2])?]) } else { None };
        let score = match config.scoring {
            Scoring::ScaledDotProduct => None,
            Scoring::Additive => {
                let d = config.resolved_head_dim();
                let bound = (1.0 / d as f64).sqrt();
                let init = Init::Uniform { lo: -bound, up: bound };
                Some(init_tensor(&vb.pp("score"), &[config.num_attention_heads, d], "weight", init)?)
            }
        };
        let steps_of = |side: usize| init_steps(config, &vb, side);
        let steps = [steps_of(0)?, steps_of(1)?, steps_of(2)?];
        let (h, d_v) = (config.num_attention_heads, config.resolved_value_head_dim());
        let gate = |gate: OutputGate| init_linear(&vb.pp(GATE), gate.rows(h, d_v), inputs[0], gate.bias);
        let context_norm = config.context_norm.filter(|norm| norm.weighted);
        let context_norm = context_norm.map(|norm| init_norm(&vb.pp(CONTEXT_NORM), &norm, h, d_v)).transpose()?;
        let mut position = PositionWeights::default();
        for parameter in config.position.scheme().parameters(&config.sizes()) {
            position.insert(parameter.name, init_tensor(&vb, &parameter.shape, parameter.name, parameter.init)?);
        }
        let gate = config.output_gate.map(gate).transpose()?;
        let weights = AttentionWeights { qkv, o, gate, context_norm, bias_kv, score, steps, sinks: None, position };
        Self::from_weights(config, weights)
    }

    /// A layer from its weights.
    ///
    /// The layer's [`config`](Self::config) says which biases the weights have, whatever `config` says.
    ///
    /// A tensor that is a variable, or computed from one, stays connected to it: every call uses its present value.
    ///
    /// Other tensors count as fixed: on the CPU they are packed for the kernels at the first call, and later changes in
    /// place have no effect. That holds for `Var::as_detached_tensor` too, which shares the memory of the variable but
    /// does not say so. For the inference of a layer that is being trained, build it from its variables and call
    /// [`frozen`](Self::frozen). What is packed is a second copy beside the tensors, which may belong to others too; a
    /// frozen layer has only one.
    ///
    /// # Errors
    /// The configuration is invalid, or a weight is missing, not expected, or has the wrong shape, dtype or device.
    pub fn from_weights(config: &AttentionConfig, weights: AttentionWeights) -> Result<Self> {
        config.validate()?;
        let AttentionWeights { qkv, o, gate, context_norm, bias_kv, score, steps, sinks, position } = weights;
        let fits = match (config.key_value_source, &qkv) {
            (KeyValueSource::KeysAsValues, QkvWeights::KeysAsValues(_))
            | (KeyValueSource::Shared { .. }, QkvWeights::Query(_)) => true,
            (source, qkv) => {
                let partial = matches!(qkv, QkvWeights::KeysAsValues(_) | QkvWeights::Query(_));
                source == KeyValueSource::Projections && !partial
            }
        };
        if !fits {
            let allowed = "the one that the weights have projections for";
            return Err(Error::config("key_value_source", format!("{:?}", config.key_value_source), allowed));
        }
        let (rows, inputs) = qkv_sizes(config);
        let [q, k, v] = qkv.has_biases();
        let bias = ProjectionBias { q, k, v, o: o.bias.is_some() };
        let (h, d_v) = (config.num_attention_heads, config.resolved_value_head_dim());
        let gate_rows = config.output_gate.map_or(0, |gate| gate.rows(h, d_v));
        let qkv = match &config.latent {
            Some(latent) => Qkv::of_latents(qkv, latent.sizes(config), (gate, gate_rows))?,
            None => Qkv::new(qkv, rows, inputs, config.resolved_num_key_value_heads(), (gate, gate_rows))?,
        };
        if qkv.has_gate() != config.output_gate.is_some() {
            let found = if qkv.has_gate() { "none" } else { "set" };
            return Err(Error::config("output_gate", found, "set if and only if the weights have a gate"));
        }
        let context = config.num_attention_heads * config.resolved_value_head_dim();
        let o_proj = Linear::new("o_proj", o, config.resolved_output_size(), context)?;
        let fits = |name: &str, tensor: &Tensor, want: &[usize]| {
            if tensor.dims() != want {
                return Err(Error::shape(name, tensor.dims(), format!("{want:?}")));
            }
            same_dtype_and_device(name, tensor, qkv.like())
        };
        same_dtype_and_device("o_proj weight", o_proj.like(), qkv.like())?;
        if let Some([k, v]) = &bias_kv {
            fits("bias_k", k, &rows[1..2])?;
            fits("bias_v", v, &rows[2..])?;
        }
        if let Some(score) = &score {
            fits("score weight", score, &[config.num_attention_heads, config.resolved_head_dim()])?;
        }
        if score.is_some() != (config.scoring == Scoring::Additive) {
            return Err(Error::config(
                "scoring",
                format!("{:?}", config.scoring),
                "additive if and only if the weights have a score vector",
            ));
        }
        if let Some(sinks) = &sinks {
            fits("sinks", sinks, &[config.num_attention_heads])?;
        }
        let steps = StepState::new(config, steps, qkv.like())?;
        check_position(config, &position, qkv.like())?;
        let context_norm = Self::checked_context_norm(config, context_norm, qkv.like())?;
        let mut config = config.clone().with_bias(bias).with_add_bias_kv(bias_kv.is_some());
        config.output_gate = config.output_gate.map(|gate| gate.with_bias(qkv.gate_has_bias()));
        let identity = Identity::new(qkv.id());
        Ok(Self {
            config,
            qkv,
            o_proj,
            bias_kv,
            score,
            steps,
            context_norm,
            sinks,
            position: PositionState::new(position),
            identity,
            frozen: Frozen::default(),
        })
    }

    /// The weights (parameters) of the layer, for example to write them in any layout
    /// ([`write_layers`](crate::checkpoint::write_layers)). Projections are separate; shapes are those of
    /// [`AttentionWeights`]. Tensors that are variables stay connected to them. A [frozen](Self::frozen) layer on the
    /// CPU keeps its projections packed and nothing else: each call makes new tensors of them, with the same bits.
    ///
    /// # Errors
    /// The device fails to reorder weights that are stored in another order, or is out of memory.
    pub fn weights(&self) -> Result<AttentionWeights> {
        let qkv = match (self.config.key_value_source, self.qkv.weights()?) {
            (KeyValueSource::KeysAsValues, QkvWeights::Split(parts)) => {
                let [q, k, _] = *parts;
                QkvWeights::KeysAsValues(Box::new([q, k]))
            }
            (KeyValueSource::Shared { .. }, QkvWeights::Split(parts)) => {
                let [q, ..] = *parts;
                QkvWeights::Query(q)
            }
            (_, qkv) => qkv,
        };
        Ok(AttentionWeights {
            qkv,
            o: self.o_proj.weights()?,
            gate: self.qkv.gate_weights()?,
            context_norm: self.context_norm.clone().filter(|_| self.config.context_norm.is_some_and(|n| n.weighted)),
            bias_kv: self.bias_kv.clone(),
            score: self.score.clone(),
            steps: self.steps.weights().clone(),
            sinks: self.sinks.clone(),
            position: self.position.weights().clone(),
        })
    }
}

/// One line, whatever the sizes: the configuration in short, dtype and device, whether the weights are variables, and
/// whether they are packed for the CPU kernels.
impl fmt::Debug for MultiHeadAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        let mut shown = f.debug_struct("MultiHeadAttention");
        shown
            .field("hidden_size", &config.hidden_size)
            .field("num_attention_heads", &config.num_attention_heads)
            .field("num_key_value_heads", &config.resolved_num_key_value_heads())
            .field("head_dim", &config.resolved_head_dim())
            .field("position", &format_args!("{}", config.position))
            .field("mask", &format_args!("{}", config.mask))
            .field("dtype", &self.dtype())
            .field("device", &self.device().location())
            .field("variables", &(self.tracks_gradient() || self.o_proj.tracks_gradient()))
            .field("packed", &self.qkv.is_packed());
        if let Some(format) = self.quantization() {
            shown.field("quantization", &format_args!("{format}"));
        }
        shown.finish_non_exhaustive()
    }
}

/// Checks that the weights of the position scheme are those that the configuration asks for.
fn check_position(config: &AttentionConfig, weights: &PositionWeights, like: &Tensor) -> Result<()> {
    let parameters = config.position.scheme().parameters(&config.sizes());
    for parameter in &parameters {
        let name = parameter.name;
        match weights.get(name) {
            Some(tensor) if tensor.dims() != parameter.shape => {
                return Err(Error::shape(name, tensor.dims(), format!("{:?}", parameter.shape)));
            }
            Some(tensor) => same_dtype_and_device(name, tensor, like)?,
            None if parameter.presence == Presence::Optional => {}
            None => {
                let why = format!("positions are {}; a tensor that layers share is given as a weight", config.position);
                return Err(Error::MissingTensor { name: name.to_string(), why });
            }
        }
    }
    match weights.iter().find(|(name, _)| parameters.iter().all(|parameter| parameter.name != *name)) {
        Some((name, _)) => Err(Error::config(
            "position",
            &config.position,
            format!("a scheme with the weight `{name}`, which is given"),
        )),
        None => Ok(()),
    }
}

/// Output and input sizes of the query, key and value projections.
pub(crate) fn qkv_sizes(config: &AttentionConfig) -> ([usize; 3], [usize; 3]) {
    let h_kv = config.resolved_num_key_value_heads();
    let rows = [
        config.num_attention_heads * config.resolved_head_dim(),
        h_kv * config.resolved_head_dim(),
        h_kv * config.resolved_value_head_dim(),
    ];
    let rows = match config.key_value_source {
        KeyValueSource::Projections | KeyValueSource::KeysAsValues => rows,
        KeyValueSource::Shared { .. } => [rows[0], 0, 0],
    };
    (rows, [config.resolved_query_size(), config.resolved_key_size(), config.resolved_value_size()])
}

/// The projections of latent attention.
fn init_latent(vb: &VarBuilder, sizes: &LatentSizes, bias: ProjectionBias) -> Result<LatentWeights> {
    let &LatentSizes { inputs: [q_in, kv_in], heads, nope, rope, value, rank, q_rank, .. } = sizes;
    let norm = |name: &str, size: usize| -> Result<NormWeights> {
        Ok(NormWeights::new(init_tensor(&vb.pp(name), &[size], "weight", Init::Const(1.0))?, None))
    };
    let linear = |name: &str, out: usize, input: usize, bias: bool| init_linear(&vb.pp(name), out, input, bias);
    let (q_a, q) = match q_rank {
        Some(q_rank) => {
            let q_a = (linear("q_a_proj", q_rank, q_in, bias.q)?, norm("q_a_layernorm", q_rank)?);
            (Some(q_a), linear("q_b_proj", heads * (nope + rope), q_rank, false)?)
        }
        None => (None, linear("q_proj", heads * (nope + rope), q_in, bias.q)?),
    };
    let kv_a = linear("kv_a_proj_with_mqa", rank + rope, kv_in, bias.k)?;
    let kv_b = linear("kv_b_proj", heads * (nope + value), rank, false)?;
    Ok(LatentWeights::new(q_a, q, kv_a, norm("kv_a_layernorm", rank)?, kv_b))
}

/// The weights of the steps of queries (0), keys (1) or values (2): `q_norm`, `k_norm`, `v_norm`, each a `weight` and,
/// for a layer norm, a `bias`; `scaling`, `k_scaling`, `v_scaling`.
fn init_steps(config: &AttentionConfig, vb: &VarBuilder, side: usize) -> Result<StepWeights> {
    let h = if side == 0 { config.num_attention_heads } else { config.resolved_num_key_value_heads() };
    let d = if side == 2 { config.resolved_value_head_dim() } else { config.resolved_head_dim() };
    let norm = config.steps.weighted_norm(side);
    let norm = norm.map(|norm| init_norm(&vb.pp(NORM_NAMES[side]), norm, h, d)).transpose()?;
    let factor = config.steps.has_learned_factor(side);
    let factor = factor.then(|| init_tensor(vb, &[d], FACTOR_NAMES[side], Init::Const(0.0))).transpose()?;
    Ok(StepWeights { norm, factor })
}

fn init_norm(vb: &VarBuilder, norm: &HeadNorm, heads: usize, d: usize) -> Result<NormWeights> {
    let size = if norm.over == NormOver::AllHeads { heads * d } else { d };
    // Either way the norm starts with a factor of 1.
    let one = if norm.kind == NormKind::RmsOffset { 0.0 } else { 1.0 };
    let weight = init_tensor(vb, &[size], "weight", Init::Const(one))?;
    let layer = norm.kind == NormKind::Layer;
    let bias = layer.then(|| init_tensor(vb, &[size], "bias", Init::Const(0.0))).transpose()?;
    Ok(NormWeights { weight, bias })
}

/// A variable of a new layer, or the tensor that `vb` holds in its place.
///
/// # Errors
/// A tensor of another shape; one that a `vb` without a `VarMap` does not hold. Layers of checkpoints have other names,
/// and positions that their configuration says: the error names what reads them.
fn init_tensor(vb: &VarBuilder, shape: &[usize], name: &str, init: Init) -> Result<Tensor> {
    vb.get_with_hints(shape, name, init).map_err(|error| {
        let full_name = [&vb.prefix(), name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
        // Sources have errors of their own for a name that they lack; each has the name.
        if vb.contains_tensor(name) || !error.to_string().contains(&full_name) {
            return error.into();
        }
        let why = "`new` makes variables, or reads those of another `new`; a layer of a checkpoint is read by \
                   `ModelAttention::load`, with its config.json, or by `MultiHeadAttention::load`; a layer without \
                   biases is configured by `with_bias(ProjectionBias::NONE)`";
        Error::MissingTensor { name: full_name, why: why.to_string() }
    })
}

fn init_linear(vb: &VarBuilder, out: usize, input: usize, bias: bool) -> Result<LinearWeights> {
    check_tensor_memory("the number of outputs of a projection", out, &[out, input], vb.dtype(), vb.device())?;
    let bound = (6.0 / (out + input) as f64).sqrt();
    let weight = init_tensor(vb, &[out, input], "weight", Init::Uniform { lo: -bound, up: bound })?;
    let bias = bias.then(|| init_tensor(vb, &[out], "bias", Init::Const(0.0))).transpose()?;
    Ok(LinearWeights { weight, bias })
}
