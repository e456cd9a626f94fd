//! A convolution beside the heads, whose kernels are made of the tokens around each token
//! ([ConvBERT](https://arxiv.org/abs/2008.02496)): as many heads again, which see a few neighbors and no scores.
//!
//! ```text
//! kernels = softmax(W_k (q · separable convolution of x) + b_k)    `neighbors` per head and token
//! context = [attention, sum over neighbors of kernel · (W_o x + b_o)]    2 h heads of d elements
//! ```

use candle_core::{D, Tensor};
use candle_nn::Init;
use candle_nn::ops::softmax;

use super::value_convolution::{check_whole_sequences, visible};
use crate::attention::call::OpenCall;
use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, boxed};
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::{AttentionConfig, KeyValueSource, MechanismConfig};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::accumulate_dtype;
use crate::weights::{Parameter, Parameters, Presence};

/// The separable convolution, `(query_size, 1, neighbors)`, `(h · d, query_size, 1)` and `(h · d, 1)`; the projection
/// to kernels, `(h · neighbors, h · d)` and `(h · neighbors)`; and that to what they sum, `(h · d, query_size)` and
/// `(h · d)`.
const TENSORS: [&str; 7] = [
    "key_conv_attn_layer.depthwise.weight",
    "key_conv_attn_layer.pointwise.weight",
    "key_conv_attn_layer.bias",
    "conv_kernel_layer.weight",
    "conv_kernel_layer.bias",
    "conv_out_layer.weight",
    "conv_out_layer.bias",
];

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        let neighbors = config.span_convolution();
        let (h, input, k) = (config.num_attention_heads, config.resolved_query_size(), neighbors.unwrap_or(1));
        let heads = h * config.resolved_head_dim();
        let shapes: [&[usize]; 7] =
            [&[input, 1, k], &[heads, input, 1], &[heads, 1], &[h * k, heads], &[h * k], &[heads, input], &[heads]];
        let row = |(name, shape): (&'static str, &[usize])| {
            let bound = (3.0 / shape[1..].iter().product::<usize>().max(1) as f64).sqrt();
            let is_bias = name.ends_with("bias");
            let init = if is_bias { Init::Const(0.0) } else { Init::Uniform { lo: -bound, up: bound } };
            Parameter {
                field: "span_convolution",
                ..Parameter::new(name, shape, init).with_presence(Presence::required_if(neighbors.is_some()))
            }
        };
        TENSORS.into_iter().zip(shapes).map(row).collect()
    },
    names: &[
        ("key_conv_attn_layer", &["key_conv_attn_layer", "self.key_conv_attn_layer"]),
        ("conv_kernel_layer", &["conv_kernel_layer", "self.conv_kernel_layer"]),
        ("conv_out_layer", &["conv_out_layer", "self.conv_out_layer"]),
    ],
    infer: |config, shape| Ok(config.with_span_convolution(shape(TENSORS[0], 3)?.map(|shape| shape[2]))),
    from_layer: |layer| SpanConvolution::from_layer(layer).map(boxed),
};

/// The most neighbors of a convolution: each is one product. Published models have 9.
const MAX_NEIGHBORS: usize = 1023;

/// The number of neighbors that a kernel covers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Neighbors(usize);

impl AttentionConfig {
    /// Sets the number of neighbors, an odd one with the token itself in the middle, of a convolution beside the heads
    /// ([ConvBERT](https://arxiv.org/abs/2008.02496)): each head has a second one, whose weights are not scores but a
    /// softmax over the neighbors, made of the token and those around it. Tokens that no query sees count as zeros.
    ///
    /// The output projection has `2 · num_attention_heads · head_dim` inputs. Such a layer has neither a cache nor a
    /// memory.
    #[must_use]
    pub fn with_span_convolution(mut self, span_convolution: impl Into<Option<usize>>) -> Self {
        self.mechanisms.set(span_convolution.into().map(Neighbors));
        self
    }

    /// The number of neighbors of the convolution beside the heads, if there is one.
    pub fn span_convolution(&self) -> Option<usize> {
        self.mechanisms.get::<Neighbors>().map(|neighbors| neighbors.0)
    }
}

impl MechanismConfig for Neighbors {
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let allowed = format!("an odd number from 1 to {MAX_NEIGHBORS}");
        let fits = self.0 % 2 == 1 && self.0 <= MAX_NEIGHBORS;
        ensure!(fits, Error::config("span_convolution", self.0, allowed));
        let [d, d_v] = [config.resolved_head_dim(), config.resolved_value_head_dim()];
        ensure!(d == d_v, Error::config("value_head_dim", d_v, format!("{d}, with a convolution beside the heads")));
        let has_other_keys = config.extends_keys() || config.key_value_source != KeyValueSource::Projections;
        if config.latent.is_some() || config.reshapes() || config.projects_more() || has_other_keys {
            let allowed = "none beside latents, a gate, global tokens, pooled queries, pairs of heads or other keys";
            return Err(Error::config("span_convolution", self.0, allowed));
        }
        Ok(())
    }

    fn context_size(&self, config: &AttentionConfig) -> Option<usize> {
        Some(2 * config.num_attention_heads * config.resolved_value_head_dim())
    }

    fn check_pruning(&self, _: &Parameters) -> Result<()> {
        let expected = "one whose heads depend on no other: a convolution beside them mixes all";
        Err(Error::value("a layer to prune", "one with a convolution beside the heads", expected))
    }
}

/// The tensors of the convolution, in the order of [`TENSORS`].
struct SpanConvolution([Tensor; 7]);

impl SpanConvolution {
    fn from_layer(LayerParts { config, parameters, .. }: LayerParts) -> Result<Option<Self>> {
        if config.span_convolution().is_none() {
            return Ok(None);
        }
        let [a, b, c, d, e, f, g] = TENSORS.map(|name| parameters.require(name).cloned());
        Ok(Some(Self([a?, b?, c?, d?, e?, f?, g?])))
    }
}

impl Mechanism for SpanConvolution {
    fn check_tokens(&self, _: &dyn CallTokens, counted: &Counted, _: &AttentionMask) -> Result<()> {
        check_whole_sequences(counted, "a call of a layer with a convolution beside its heads")
    }

    /// The context `(b, s, h, d)` with that of the convolution: `(b, s, 2 h, d)`.
    fn heads(&self, call: &OpenCall, context: Tensor) -> Result<Tensor> {
        let (b, s, h, d) = context.dims4()?;
        if b * s * h == 0 {
            return Ok(Tensor::cat(&[&context, &context], 2)?);
        }
        let wide = accumulate_dtype(call.layer.qkv.like());
        let mut tensors = Vec::with_capacity(TENSORS.len());
        for tensor in &self.0 {
            tensors.push(tensor.to_dtype(wide)?);
        }
        let [depthwise, pointwise, bias, to_kernels, kernel_bias, to_values, value_bias] = &tensors[..] else {
            unreachable!("there are seven tensors")
        };
        let linear = |xs: &Tensor, weight: &Tensor, bias: &Tensor| -> Result<Tensor> {
            Ok(xs.broadcast_matmul(&weight.t()?)?.broadcast_add(bias)?)
        };
        let xs = visible(call, &call.xs[0].to_dtype(wide)?)?; // (b, s, query_size)
        let taps = depthwise.squeeze(1)?.t()?.contiguous()?; // (neighbors, query_size)
        let around = sum_of_neighbors(&xs, taps.dim(0)?, |xs, i| Ok(xs.broadcast_mul(&taps.get(i)?)?))?;
        let spans = linear(&around, &pointwise.squeeze(2)?, &bias.squeeze(1)?)?; // (b, s, h · d)
        let queries = call.layer.qkv.query(&call.xs[0], d, wide)?.reshape((b, s, h * d))?;
        let kernels = linear(&(spans * queries)?, to_kernels, kernel_bias)?.reshape((b, s, h, ()))?;
        let kernels = softmax(&kernels, D::Minus1)?; // (b, s, h, neighbors)
        let values = visible(call, &linear(&xs, to_values, value_bias)?)?;
        let convolved = sum_of_neighbors(&values, kernels.dim(3)?, |values, i| {
            Ok(values.reshape((b, s, h, d))?.broadcast_mul(&kernels.narrow(3, i, 1)?)?)
        })?;
        Ok(Tensor::cat(&[&context, &convolved.to_dtype(context.dtype())?], 2)?)
    }
}

/// The sum over neighbors `i` of `weigh(xs of the neighbor, i)`, zeros around the sequences `(b, s, ·)`.
fn sum_of_neighbors(xs: &Tensor, neighbors: usize, weigh: impl Fn(&Tensor, usize) -> Result<Tensor>) -> Result<Tensor> {
    let (s, side) = (xs.dim(1)?, neighbors / 2);
    let padded = xs.pad_with_zeros(1, side, side)?;
    let mut sum = weigh(&padded.narrow(1, 0, s)?, 0)?;
    for i in 1..neighbors {
        sum = (sum + weigh(&padded.narrow(1, i, s)?, i)?)?;
    }
    Ok(sum)
}
