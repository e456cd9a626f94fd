//! A convolution of neighboring values, which is added to the output with the values themselves (SAN-M in Fun-ASR).

use candle_core::{DType, Tensor};
use candle_nn::Init;

use crate::attention::call::OpenCall;
use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, boxed};
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::{AttentionConfig, KeyValueSource, MechanismConfig};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::accumulate_dtype;
use crate::weights::{HeadKind, Parameter, Presence};

/// The convolution of the values, `(h · d_v, 1, neighbors)`.
pub(crate) const VALUE_CONVOLUTION: &str = "value_convolution.weight";

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        let (values, neighbors) = (values(config), config.value_convolution());
        vec![Parameter {
            field: "value_convolution",
            heads: HeadKind::KeyValue,
            ..Parameter::new(VALUE_CONVOLUTION, [values, 1, neighbors.unwrap_or(1)], Init::Const(0.0))
                .with_head_axis(0)
                .with_presence(Presence::required_if(neighbors.is_some()))
        }]
    },
    names: &[(VALUE_CONVOLUTION, &[VALUE_CONVOLUTION, "fsmn.conv.weight"])],
    infer: |config, shape| Ok(config.with_value_convolution(shape(VALUE_CONVOLUTION, 3)?.map(|shape| shape[2]))),
    from_layer: |layer| Ok(boxed(ValueConvolution::from_layer(layer))),
};

/// The most neighbors of a convolution: each is one product. Published models have 11.
const MAX_NEIGHBORS: usize = 1024;

/// The number of neighbors.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Neighbors(usize);

impl AttentionConfig {
    /// Sets the number of neighbors, half of them on each side, of a convolution of the values along the sequence, each
    /// element by itself; its result and the values are added to the output (SAN-M in Fun-ASR,
    /// [Gao 2020](https://arxiv.org/abs/2006.01713)). Values of keys that no query sees count as zeros.
    ///
    /// Such a layer has as many elements in its values as in its output, and neither a cache nor a memory.
    #[must_use]
    pub fn with_value_convolution(mut self, value_convolution: impl Into<Option<usize>>) -> Self {
        self.mechanisms.set(value_convolution.into().map(Neighbors));
        self
    }

    /// The number of neighbors of the convolution of the values, if there is one.
    pub fn value_convolution(&self) -> Option<usize> {
        self.mechanisms.get::<Neighbors>().map(|neighbors| neighbors.0)
    }
}

impl MechanismConfig for Neighbors {
    /// Checks that values can be added to the output, element by element.
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let (values, output) = (values(config), config.resolved_output_size());
        if !(1..=MAX_NEIGHBORS).contains(&self.0) {
            return Err(Error::config("value_convolution", self.0, format!("1 to {MAX_NEIGHBORS}")));
        }
        if h != h_kv || values != output {
            let found = format!("{h_kv} heads with {values} elements of values");
            let expected = format!("{h} heads with {output} elements, one for each of the output");
            return Err(Error::value("a layer with a convolution of its values", found, expected));
        }
        let is_shared = matches!(config.key_value_source, KeyValueSource::Shared { .. });
        if config.reshapes() || config.extends_keys() || is_shared || config.latent.is_some() {
            let allowed = "none beside latents, global tokens, pooled queries, pairs of heads, extra keys or those of another layer";
            return Err(Error::config("value_convolution", self.0, allowed));
        }
        Ok(())
    }
}

/// Elements of the values of a token.
fn values(config: &AttentionConfig) -> usize {
    config.resolved_num_key_value_heads() * config.resolved_value_head_dim()
}

/// The weights of the convolution, `(h · d_v, 1, neighbors)`.
struct ValueConvolution(Tensor);

impl ValueConvolution {
    fn from_layer(LayerParts { config, parameters, .. }: LayerParts) -> Option<Self> {
        let (_, weight) = config.value_convolution().zip(parameters.get(VALUE_CONVOLUTION))?;
        Some(Self(weight.clone()))
    }
}

impl Mechanism for ValueConvolution {
    fn check_tokens(&self, _: &dyn CallTokens, counted: &Counted, _: &AttentionMask) -> Result<()> {
        check_whole_sequences(counted, "a call of a layer with a convolution of its values")
    }

    /// `output` `(b, s, h · d_v)` with the values `v` `(b, s, h, d_v)` and their convolution.
    fn add_to_output(&self, call: &OpenCall, output: Tensor, v: &Tensor) -> Result<Tensor> {
        if v.elem_count() == 0 {
            return Ok(output);
        }
        let wide = accumulate_dtype(call.layer.qkv.like());
        let values = visible(call, &v.to_dtype(wide)?.flatten_from(2)?)?; // (b, s, h · d_v)
        let (s, neighbors) = (values.dim(1)?, self.0.dim(2)?);
        let before = (neighbors - 1) / 2;
        let padded = values.pad_with_zeros(1, before, neighbors - 1 - before)?;
        let weight = self.0.to_dtype(wide)?.squeeze(1)?.t()?.contiguous()?; // (neighbors, h · d_v)
        let mut sum = values;
        for i in 0..neighbors {
            sum = (sum + padded.narrow(1, i, s)?.broadcast_mul(&weight.get(i)?)?)?;
        }
        Ok((output.to_dtype(wide)? + sum)?.to_dtype(call.xs[0].dtype())?)
    }
}

/// Checks that the keys of a call are its tokens; `call` names it in the error.
pub(super) fn check_whole_sequences(counted: &Counted, call: &str) -> Result<()> {
    let is_whole = counted.stored.is_none() && counted.new_tokens.is_none() && counted.s_q == counted.s_kv;
    ensure!(is_whole, Error::value(call, "a cache or a memory", "self-attention of whole sequences"));
    Ok(())
}

/// Values `(b, s, ·)` with zeros for the keys that no query sees.
pub(super) fn visible(call: &OpenCall, values: &Tensor) -> Result<Tensor> {
    let mask = call.sdpa.mask.dense(call.sizes.shape, 0, DType::F32, values.device())?;
    let Some(keep) = mask.keep else { return Ok(values.clone()) };
    let is_seen = keep.max(1)?.max(1)?.unsqueeze(2)?.broadcast_as(values.shape())?; // of (b, h, s_q, s_kv)
    Ok(is_seen.where_cond(values, &values.zeros_like()?)?)
}
