//! The layer made of tensors, and the tensors of a layer.

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::disentangled::DistanceEmbeddings;
use crate::attention::transform::norm_shape;
use crate::config::{AttentionConfig, Scoring};
use crate::error::{Error, Result};
use crate::ops::{Linear, Qkv};
use crate::weights::{AttentionWeights, NormWeights};

impl MultiHeadAttention {
    /// The layer made of these tensors.
    ///
    /// On the CPU, weights that are no variables are taken to be fixed: at the first call they are packed for the
    /// kernels, and a later change in place would not be seen.
    ///
    /// # Errors
    /// An invalid configuration; a tensor that does not fit it.
    pub fn from_weights(config: &AttentionConfig, weights: AttentionWeights) -> Result<Self> {
        config.validate()?;
        let AttentionWeights { qkv, o, bias_kv, score, qk_norm, sinks, relative_bias, disentangled } = weights;
        let (rows, inputs) = qkv_sizes(config);
        let qkv = Qkv::new(qkv, rows, inputs, config.num_key_value_heads())?;
        let context = config.num_attention_heads * config.value_head_dim();
        let o_proj = Linear::new("o_proj", o, config.output_size(), context)?;
        let fits = |name: &str, tensor: &Tensor, want: &[usize]| match tensor.dims() == want {
            true => crate::tensor::same_dtype_and_device(name, tensor, qkv.weight()),
            false => Err(Error::shape(name, tensor.dims(), format!("{want:?}"))),
        };
        fits("o_proj weight", o_proj.weight(), &[config.output_size(), context])?;
        if let Some([k, v]) = &bias_kv {
            fits("bias_k", k, &rows[1..2])?;
            fits("bias_v", v, &rows[2..])?;
        }
        if let Some(score) = &score {
            fits("score weight", score, &[config.num_attention_heads, config.head_dim()])?;
        }
        if score.is_some() != (config.scoring == Scoring::Additive) {
            return Err(Error::config(
                "scoring",
                format!("{:?}", config.scoring),
                "additive if, and only if, there is a score vector",
            ));
        }
        if let Some(sinks) = &sinks {
            fits("sinks", sinks, &[config.num_attention_heads])?;
        }
        if qk_norm.is_some() != config.qk_norm.is_some() {
            let found = if qk_norm.is_some() { "none" } else { "set" };
            return Err(Error::config("qk_norm", found, "set if, and only if, there are norms"));
        }
        if let (Some(norm), Some([q, k])) = (&config.qk_norm, &qk_norm) {
            let h_kv = config.num_key_value_heads();
            for (name, NormWeights { weight, bias }, h) in
                [("q_norm", q, config.num_attention_heads), ("k_norm", k, h_kv)]
            {
                for tensor in [Some(weight), bias.as_ref()].into_iter().flatten() {
                    fits(name, tensor, &norm_shape(norm.over, tensor, h, config.head_dim()))?;
                }
            }
        }
        match (config.position.bias_table_rows(), &relative_bias) {
            (Some(rows), Some(table)) => fits("relative_bias", table, &[rows, config.num_attention_heads])?,
            (Some(_), None) => {
                let position = &config.position;
                let why = format!("positions are {position}; a table that layers share is given as a weight");
                return Err(Error::MissingTensor { name: "relative_attention_bias.weight".to_string(), why });
            }
            (None, Some(_)) => {
                let allowed = "one with a table of biases: there is a table";
                return Err(Error::config("position", &config.position, allowed));
            }
            (None, None) => {}
        }
        let distances = DistanceEmbeddings::new(config, disentangled, qkv.weight())?;
        Ok(Self { config: config.clone(), qkv, o_proj, bias_kv, score, qk_norm, sinks, relative_bias, distances })
    }

    /// The layer's weights, to be written in any layout
    /// ([`write_layers`](crate::checkpoint::write_layers)).
    ///
    /// # Errors
    /// If the device cannot put them in order.
    pub fn weights(&self) -> Result<AttentionWeights> {
        Ok(AttentionWeights {
            qkv: self.qkv.weights()?,
            o: self.o_proj.weights(),
            bias_kv: self.bias_kv.clone(),
            score: self.score.clone(),
            qk_norm: self.qk_norm.clone(),
            sinks: self.sinks.clone(),
            relative_bias: self.relative_bias.clone(),
            disentangled: self.distances.as_ref().map(|distances| distances.weights().clone()),
        })
    }
}

/// `(outputs, inputs)` of the query, key and value projections.
pub(crate) fn qkv_sizes(config: &AttentionConfig) -> ([usize; 3], [usize; 3]) {
    let h_kv = config.num_key_value_heads();
    let rows =
        [config.num_attention_heads * config.head_dim(), h_kv * config.head_dim(), h_kv * config.value_head_dim()];
    (rows, [config.query_size(), config.key_size(), config.value_size()])
}
