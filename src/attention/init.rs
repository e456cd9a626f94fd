//! Random initialization of a new layer.

use candle_nn::{Init, VarBuilder};

use crate::attention::MultiHeadAttention;
use crate::attention::build::qkv_sizes;
use crate::config::{AttentionConfig, NormKind, NormOver, QkNorm, Scoring};
use crate::error::Result;
use crate::tensor::check_tensor_memory;
use crate::weights::{AttentionWeights, LinearWeights, NormWeights, PositionWeights, QkvWeights};

impl MultiHeadAttention {
    /// A new layer, trainable if `vb` is backed by a `VarMap`: `q_proj`, `k_proj`, `v_proj`, `o_proj`, each a `weight`
    /// `(out, in)` and, if `config.bias` has it, a `bias`; `bias_k` and `bias_v` `(1, 1, ·)` for `add_bias_kv`;
    /// `score.weight` `(h, head_dim)` for additive scoring.
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
        let qkv = QkvWeights::Split(Box::new([
            init_linear(&vb.pp("q_proj"), rows[0], inputs[0], bias.q)?,
            init_linear(&vb.pp("k_proj"), rows[1], inputs[1], bias.k)?,
            init_linear(&vb.pp("v_proj"), rows[2], inputs[2], bias.v)?,
        ]));
        let context = config.num_attention_heads * config.resolved_value_head_dim();
        let o = init_linear(&vb.pp("o_proj"), config.resolved_output_size(), context, bias.o)?;
        let extra = |name: &str, rows: usize| {
            // A layer whose heads are all pruned has no rows.
            let init = Init::Randn { mean: 0.0, stdev: (1.0 / rows.max(1) as f64).sqrt() };
            vb.get_with_hints((1, 1, rows), name, init)?.reshape(rows)
        };
        let bias_kv =
            if config.add_bias_kv { Some([extra("bias_k", rows[1])?, extra("bias_v", rows[2])?]) } else { None };
        let score = match config.scoring {
            Scoring::ScaledDotProduct => None,
            Scoring::Additive => {
                let d = config.resolved_head_dim();
                let bound = (1.0 / d as f64).sqrt();
                let init = Init::Uniform { lo: -bound, up: bound };
                Some(vb.pp("score").get_with_hints((config.num_attention_heads, d), "weight", init)?)
            }
        };
        let qk_norm = match config.qk_norm {
            Some(norm) => {
                let norm_of =
                    |name: &str, heads: usize| init_norm(&vb.pp(name), &norm, heads, config.resolved_head_dim());
                Some([
                    norm_of("q_norm", config.num_attention_heads)?,
                    norm_of("k_norm", config.resolved_num_key_value_heads())?,
                ])
            }
            None => None,
        };
        let mut position = PositionWeights::default();
        for parameter in config.position.scheme().parameters(&config.sizes()) {
            position.insert(parameter.name, vb.get_with_hints(parameter.shape, parameter.name, parameter.init)?);
        }
        let weights = AttentionWeights { qkv, o, bias_kv, score, qk_norm, sinks: None, position };
        Self::from_weights(config, weights)
    }
}

fn init_norm(vb: &VarBuilder, norm: &QkNorm, heads: usize, d: usize) -> Result<NormWeights> {
    let size = if norm.over == NormOver::AllHeads { heads * d } else { d };
    // Either way the norm starts with a factor of 1.
    let one = if norm.kind == NormKind::RmsOffset { 0.0 } else { 1.0 };
    let weight = vb.get_with_hints(size, "weight", Init::Const(one))?;
    let layer = norm.kind == NormKind::Layer;
    let bias = layer.then(|| vb.get_with_hints(size, "bias", Init::Const(0.0))).transpose()?;
    Ok(NormWeights { weight, bias })
}

fn init_linear(vb: &VarBuilder, out: usize, input: usize, bias: bool) -> Result<LinearWeights> {
    check_tensor_memory("the number of outputs of a projection", out, &[out, input], vb.dtype(), vb.device())?;
    let bound = (6.0 / (out + input) as f64).sqrt();
    let weight = vb.get_with_hints((out, input), "weight", Init::Uniform { lo: -bound, up: bound })?;
    let bias = bias.then(|| vb.get_with_hints(out, "bias", Init::Const(0.0))).transpose()?;
    Ok(LinearWeights { weight, bias })
}
