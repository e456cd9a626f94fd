//! The tensors of a layer beside its projections, and the rows that describe them.
//!
//! A mechanism that learns something beside the projections has a row for each of its tensors
//! ([`AttentionConfig::parameters`](crate::AttentionConfig), or the parameters of its position scheme). Building,
//! reading, writing, freezing, pruning and looking for gradients are loops over these rows.

use std::collections::BTreeMap;

use candle_core::Tensor;
use candle_nn::Init;

use crate::error::{Error, Result};
use crate::tensor::{MapTensors, same_dtype_and_device};
use crate::weights::NormWeights;

/// A learned key and value that every query sees (`torch.nn.MultiheadAttention`, fairseq), `(1, 1, h_kv · d)` and
/// `(1, 1, h_kv · d_v)`.
pub(crate) const BIAS_KV: [&str; 2] = ["bias_k", "bias_v"];
/// The vector of additive scoring, `(h, d)`.
pub(crate) const SCORE: &str = "score.weight";
/// A score per head that takes part in the softmax without a value, `(h)`.
pub(crate) const SINKS: &str = "sinks";
/// The norms of queries, keys and values that have weights.
pub(crate) const NORMS: [&str; 3] = ["q_norm", "k_norm", "v_norm"];
/// Their weights and biases.
pub(crate) const NORM_PARTS: [[&str; 2]; 3] =
    [["q_norm.weight", "q_norm.bias"], ["k_norm.weight", "k_norm.bias"], ["v_norm.weight", "v_norm.bias"]];
/// The learned factors of queries, keys and values, `(d)`.
pub(crate) const FACTORS: [&str; 3] = ["scaling", "k_scaling", "v_scaling"];
/// The learned factor of the queries of each head, as a logarithm, `(h, 1, 1)`.
pub(crate) const LOGIT_SCALE: &str = "logit_scale";
/// The vectors of differential attention, `(d)`.
pub(crate) const LAMBDAS: [&str; 4] = ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"];
/// The weights `(out, in)` and biases `(out)` of the projections of queries, keys and values of global tokens.
pub(crate) const GLOBAL_PARTS: [[&str; 2]; 3] = [
    ["query_global.weight", "query_global.bias"],
    ["key_global.weight", "key_global.bias"],
    ["value_global.weight", "value_global.bias"],
];
/// The convolution of the values, `(h · d_v, 1, neighbors)`.
pub(crate) const VALUE_CONVOLUTION: &str = "value_convolution.weight";
/// The projections of groups of heads, one below the other, `(groups · rank, h / groups · d_v)`.
pub(crate) const OUTPUT_GROUPS: &str = "o_a_proj.weight";
/// What keys of blocks of tokens are made with: the projections of elements and of gates, the biases of the places in a
/// block, and the norm.
pub(crate) const COMPRESSOR: [&str; 4] = [
    "compressor.kv_proj.weight",
    "compressor.gate_proj.weight",
    "compressor.position_bias",
    "compressor.kv_norm.weight",
];
/// The limits on the inputs and on the outputs of the projections of queries, keys, values and the output, `()`.
pub(crate) const LIMITS: [[&str; 4]; 4] = [
    ["q_proj.input_min", "q_proj.input_max", "q_proj.output_min", "q_proj.output_max"],
    ["k_proj.input_min", "k_proj.input_max", "k_proj.output_min", "k_proj.output_max"],
    ["v_proj.input_min", "v_proj.input_max", "v_proj.output_min", "v_proj.output_max"],
    ["o_proj.input_min", "o_proj.input_max", "o_proj.output_min", "o_proj.output_max"],
];
/// The norm of the context.
pub(crate) const CONTEXT_NORM: &str = "attn_sub_norm";
/// Its weight and its bias.
pub(crate) const CONTEXT_NORM_PARTS: [&str; 2] = ["attn_sub_norm.weight", "attn_sub_norm.bias"];

/// Tensors of a layer by name: those beside its projections, or those of its position scheme.
///
/// - `bias_k` `(1, 1, h_kv · d)` and `bias_v` `(1, 1, h_kv · d_v)`: one more key and value that every query sees.
/// - `score.weight` `(h, d)`: the vector of additive scoring.
/// - `sinks` `(h)`: one score per head that takes part in the softmax without a value.
/// - `q_norm`, `k_norm`, `v_norm`: norms of queries, keys and values, each a `.weight` and perhaps a `.bias`: `(d)`,
///   shared by all heads, `(heads, d)`, one per head, or `(heads · d)`, over all heads together.
/// - `scaling`, `k_scaling`, `v_scaling` `(d)`: learned factors of queries, keys and values.
/// - `logit_scale` `(h, 1, 1)`: the logarithm of a factor of the queries of each head.
/// - `lambda_q1`, `lambda_k1`, `lambda_q2`, `lambda_k2` `(d)`: the vectors of differential attention.
/// - `query_global`, `key_global`, `value_global`: the projections of global tokens, each a `.weight` and perhaps a
///   `.bias`, of the shapes of the others.
/// - `value_convolution.weight` `(h · d_v, 1, neighbors)`: the convolution of the values.
/// - `o_a_proj.weight` `(groups · rank, h / groups · d_v)`: the projections of groups of heads, one below the other.
/// - `compressor.kv_proj.weight`, `compressor.gate_proj.weight` `(n, key_size)`, `compressor.position_bias` `(rate, n)`
///   and `compressor.kv_norm.weight` `(d)`: keys of blocks of tokens, with `n = d`, or `2 d` if blocks overlap.
/// - `q_proj.input_min`, `q_proj.input_max`, `q_proj.output_min`, `q_proj.output_max` `()`, and the same of `k_proj`,
///   `v_proj` and `o_proj`: limits to which the inputs and the outputs of a projection are clamped.
/// - `attn_sub_norm`: the norm of the context, a `.weight` and perhaps a `.bias`, `(d_v)` or `(h · d_v)`.
///
/// The documentation of each scheme in [`position`](crate::position) lists the names and shapes of its tensors, such as
/// T5's `relative_attention_bias.weight` `(num_buckets, h)`.
#[derive(Debug, Clone, Default)]
pub struct Parameters(BTreeMap<String, Tensor>);

impl Parameters {
    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.get(name)
    }

    /// Adds or replaces a tensor.
    pub fn insert(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.0.insert(name.into(), tensor);
    }

    /// Removes a tensor, and returns it if there was one.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        self.0.remove(name)
    }

    /// The norm of this name, such as `q_norm`, if there is one.
    pub fn norm(&self, name: &str) -> Option<NormWeights> {
        let part = |part: &str| self.get(&format!("{name}.{part}")).cloned();
        Some(NormWeights::new(part("weight")?, part("bias")))
    }

    /// Adds or replaces the norm of this name, such as `q_norm`.
    pub fn insert_norm(&mut self, name: &str, norm: NormWeights) {
        self.insert(format!("{name}.weight"), norm.weight);
        match norm.bias {
            Some(bias) => self.insert(format!("{name}.bias"), bias),
            None => _ = self.remove(&format!("{name}.bias")),
        }
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All names and tensors, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Whether a tensor is a variable or depends on one.
    pub fn tracks_gradient(&self) -> bool {
        self.0.values().any(Tensor::track_op)
    }

    /// The tensor of this name, which a layer that was built has.
    pub fn require(&self, name: &str) -> Result<&Tensor> {
        let why = || "the position scheme of the layer needs it".to_string();
        self.get(name).ok_or_else(|| Error::MissingTensor { name: name.to_string(), why: why() })
    }

    /// Checks that these are the tensors of the rows of `table`, with their shapes, and the dtype and device of `like`.
    pub(crate) fn check(&self, table: &[Parameter], like: &Tensor) -> Result<()> {
        for row in table {
            match (row.presence, self.get(row.name)) {
                (_, Some(tensor)) => row.check(tensor, like)?,
                (Presence::Required | Presence::Shared, None) => return Err(row.missing(row.name.to_string())),
                (Presence::Together(other), None) if self.get(other).is_some() => {
                    return Err(row.missing(row.name.to_string()));
                }
                _ => {}
            }
        }
        match self.iter().find(|(name, _)| table.iter().all(|row| row.name != *name)) {
            Some((name, _)) => {
                let known = table.iter().filter(|row| row.presence != Presence::Absent).map(|row| row.name);
                let expected = format!("one of [{}]", known.collect::<Vec<_>>().join(", "));
                Err(Error::value("a parameter of the layer", format!("`{name}`"), expected))
            }
            None => Ok(()),
        }
    }
}

impl MapTensors for Parameters {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.0.iter().map(|(name, tensor)| Ok((name.clone(), f(tensor)?))).collect::<Result<_>>().map(Self)
    }
}

/// Where a parameter comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Every layer has its own.
    Required,
    /// A layer may have it.
    Optional,
    /// A layer has it if and only if it has this other one.
    Together(&'static str),
    /// A layer has its own, or the layers of a stack share one that is stored outside them.
    Shared,
    /// No layer of this configuration has it: one that is given shows that the configuration lacks something.
    Absent,
}

/// Heads that a parameter may be divided among.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadKind {
    Query,
    KeyValue,
}

/// A row of a table of parameters: one tensor that a layer has beside its projections.
#[derive(Debug, Clone)]
pub(crate) struct Parameter {
    /// The key in [`Parameters`], which is also the tensor's name in this crate's own layout.
    pub name: &'static str,
    /// The field of the configuration that asks for it.
    pub field: &'static str,
    pub shape: Vec<usize>,
    /// The shape of one for each head, if a layer may have that instead.
    pub shape_per_head: Option<Vec<usize>>,
    /// Initial values in a new layer; `None`: a new layer has none.
    pub init: Option<Init>,
    /// The heads that it belongs to. What belongs to key-value heads changes keys or values.
    pub heads: HeadKind,
    /// The dimension that is divided among the heads, if any. Pruning selects along it.
    pub head_axis: Option<usize>,
    pub presence: Presence,
}

impl Parameter {
    /// A required parameter of the position scheme, which query heads share.
    pub fn new(name: &'static str, shape: impl Into<Vec<usize>>, init: Init) -> Self {
        Self {
            name,
            field: "position",
            shape: shape.into(),
            shape_per_head: None,
            init: Some(init),
            heads: HeadKind::Query,
            head_axis: None,
            presence: Presence::Required,
        }
    }

    /// Sets the dimension that is divided among the query heads.
    pub fn with_head_axis(self, axis: usize) -> Self {
        Self { head_axis: Some(axis), ..self }
    }

    /// Sets where it comes from.
    pub fn with_presence(self, presence: Presence) -> Self {
        Self { presence, ..self }
    }

    /// Whether a tensor is one for each head, where it may also be one for all.
    pub fn is_per_head(&self, tensor: &Tensor) -> bool {
        self.shape_per_head.as_deref() == Some(tensor.dims())
    }

    fn check(&self, tensor: &Tensor, like: &Tensor) -> Result<()> {
        if self.presence == Presence::Absent {
            let allowed = format!("set: the weights have `{}`", self.name);
            return Err(Error::config(self.field, "none", allowed));
        }
        if tensor.dims() != self.shape && !self.is_per_head(tensor) {
            let per_head = self.shape_per_head.iter().map(|shape| format!(" or {shape:?}"));
            let expected = format!("{:?}{}", self.shape, per_head.collect::<String>());
            return Err(Error::shape(self.name, tensor.dims(), expected));
        }
        same_dtype_and_device(self.name, tensor, like)
    }

    /// The error for a tensor that is not there under this name.
    pub fn missing(&self, name: String) -> Error {
        let set = format!("the configuration sets {}", self.field);
        let why = match self.presence {
            Presence::Shared => format!("{set}; one that layers share is given as a weight"),
            Presence::Together(other) => format!("the layer has `{other}`"),
            _ => set,
        };
        Error::MissingTensor { name, why }
    }
}
