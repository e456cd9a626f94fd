//! Making a layer: new, from weights; its weights, and what it prints of them.

use std::fmt;

use candle_core::Tensor;
use candle_nn::{Init, VarBuilder};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::Identity;
use crate::attention::mechanism::{LayerParts, Mechanisms, Routes};
use crate::attention::mechanisms;
use crate::attention::mechanisms::BIAS_KV;
use crate::attention::steps::{find_norms, heads_of};
use crate::config::{AttentionConfig, KeyValueSource, ProjectionBias};
use crate::error::{Error, Result};
use crate::ops::{LatentSizes, Linear, Qkv};
use crate::position::PositionState;
use crate::tensor::{Frozen, check_tensor_memory, same_dtype_and_device};
use crate::weights::{
    AttentionWeights, LOGIT_SCALE, LatentWeights, LinearWeights, NORM_PARTS, NormWeights, Parameter, Parameters,
    Presence, QkvWeights, SCORE, SINKS,
};

/// The name of the gate in this crate's own layout.
const GATE: &str = "gate_proj";

impl MultiHeadAttention {
    /// A new layer, trainable if `vb` is backed by a `VarMap`: `q_proj`, `k_proj`, `v_proj`, `o_proj`, each a `weight`
    /// `(out, in)` and, if `config.bias` has it, a `bias`; `bias_k` and `bias_v` `(1, 1, ·)` for `add_bias_kv`;
    /// `score.weight` `(h, head_dim)` for additive scoring; `gate_proj` for a gate, `attn_sub_norm` for a norm of the
    /// context. Latent attention has `q_a_proj`, `q_a_layernorm`, `q_b_proj` (or `q_proj`), `kv_a_proj_with_mqa`,
    /// `kv_a_layernorm` and `kv_b_proj` instead of the first three, the last not if all heads share one key;
    /// `config.bias.q` and `k` are then the biases of the projections of the layer's input. Other tensors have the
    /// names that [`Parameters`] lists.
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
        let o = init_linear(&vb.pp("o_proj"), config.resolved_output_size(), config.context_size(), bias.o)?;
        let gate = config.gate_projection().map(|(rows, bias)| init_linear(&vb.pp(GATE), rows, inputs[0], bias));
        let gate = gate.transpose()?;
        let parameters = init_parameters(&config.parameters(), &vb)?;
        let position = init_parameters(&config.position.scheme().parameters(&config.sizes()), &vb)?;
        Self::from_weights(config, AttentionWeights { qkv, o, gate, parameters, position })
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
        let AttentionWeights { qkv, o, gate, parameters, position } = weights;
        let fits = match qkv {
            QkvWeights::KeysAsValues(_) => config.key_value_source == KeyValueSource::KeysAsValues,
            QkvWeights::Query(_) => matches!(config.key_value_source, KeyValueSource::Shared { .. }),
            _ => config.key_value_source == KeyValueSource::Projections,
        };
        if !fits {
            let allowed = "the one that the weights have projections for";
            return Err(Error::config("key_value_source", format!("{:?}", config.key_value_source), allowed));
        }
        let (rows, inputs) = qkv_sizes(config);
        let [q, k, v] = qkv.has_biases();
        let bias = ProjectionBias { q, k, v, o: o.bias.is_some() };
        let gate_rows = config.gate_projection().map_or(0, |(rows, _)| rows);
        let qkv = match &config.latent {
            Some(latent) => Qkv::from_latents(qkv, latent.sizes(config), (gate, gate_rows))?,
            None => Qkv::new(qkv, rows, inputs, config.resolved_num_key_value_heads(), (gate, gate_rows))?,
        };
        if qkv.has_gate() != config.projects_more() {
            let found = if qkv.has_gate() { "none" } else { "set" };
            return Err(Error::config("output_gate", found, "set if and only if the weights have a gate"));
        }
        let o_proj = Linear::new("o_proj", o, config.resolved_output_size(), config.context_size())?;
        same_dtype_and_device("o_proj weight", o_proj.like(), qkv.like())?;
        parameters.check(&config.parameters(), qkv.like())?;
        position.check(&config.position.scheme().parameters(&config.sizes()), qkv.like())?;
        let norms = find_norms(config, &parameters, qkv.like())?;
        let config = config.clone().with_bias(bias).with_add_bias_kv(parameters.get(BIAS_KV[0]).is_some());
        let config = config.with_gate_bias(qkv.gate_has_bias());
        let parts = LayerParts { config: &config, parameters: &parameters, like: qkv.like() };
        let mechanisms = mechanisms::from_layer(parts)?;
        let (identity, routes) = (Identity::new(qkv.id()), find_routes(&config, &parameters, &mechanisms));
        Ok(Self {
            config,
            qkv,
            o_proj,
            parameters,
            norms,
            mechanisms,
            routes,
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
            parameters: self.parameters.clone(),
            position: self.position.weights.clone(),
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

/// The routes that the configuration, the tensors and the mechanisms of a layer allow. Whether weights are packed, or
/// track a gradient, may change, and is asked in each call.
pub(super) fn find_routes(config: &AttentionConfig, parameters: &Parameters, mechanisms: &Mechanisms) -> Routes {
    let scheme = config.position.scheme().traits();
    // One vector for all heads, or a tensor of a mechanism, which has routes of its own.
    let is_vector = |name: &str| parameters.get(name).is_none_or(|tensor| tensor.rank() == 1);
    let rows = config.requires.is_empty()
        && [SINKS, SCORE, LOGIT_SCALE].iter().all(|name| parameters.get(name).is_none())
        && NORM_PARTS.as_flattened().iter().all(|name| is_vector(name))
        && config.mask.is_windowed()
        && !matches!(config.key_value_source, KeyValueSource::Shared { .. })
        && config.softcap.is_none()
        && scheme.runs_rows;
    Routes {
        rows: rows && mechanisms.iter().all(|mechanism| mechanism.routes().rows),
        ragged: scheme.runs_ragged && mechanisms.iter().all(|mechanism| mechanism.routes().ragged),
    }
}

/// Output and input sizes of the query, key and value projections.
pub(crate) fn qkv_sizes(config: &AttentionConfig) -> ([usize; 3], [usize; 3]) {
    let [q, k, v] = [0, 1, 2].map(|side| heads_of(config, side).iter().product());
    let is_shared = matches!(config.key_value_source, KeyValueSource::Shared { .. });
    let rows = if is_shared { [q, 0, 0] } else { [q, k, v] };
    (rows, [config.resolved_query_size(), config.resolved_key_size(), config.resolved_value_size()])
}

/// The projections of latent attention.
fn init_latent(vb: &VarBuilder, sizes: &LatentSizes, bias: ProjectionBias) -> Result<LatentWeights> {
    let &LatentSizes { inputs: [q_in, kv_in], heads, nope, rope, value, rank, q_rank, multi_query, .. } = sizes;
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
    let kv_b = || linear("kv_b_proj", heads * (nope + value), rank, false);
    let kv_b = (!multi_query).then(kv_b).transpose()?;
    let normalized = if multi_query { rank + rope } else { rank };
    Ok(LatentWeights::new(q_a, q, kv_a, norm("kv_a_layernorm", normalized)?, kv_b))
}

/// The parameters of a table that a new layer has.
fn init_parameters(table: &[Parameter], vb: &VarBuilder) -> Result<Parameters> {
    let mut parameters = Parameters::default();
    for row in table.iter().filter(|row| row.presence != Presence::Absent) {
        if let Some(init) = row.init {
            parameters.insert(row.name, init_tensor(vb, &row.shape, row.name, init)?);
        }
    }
    Ok(parameters)
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
