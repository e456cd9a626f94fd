//! Multi-head attention: the layer, its options, caches, ragged batches and statistics.
//!
//! Tokens stay in order. The usual implementation transposes queries, keys and values to `(b, h, s, d)` and back, which
//! copies every activation four times. Here one fused projection writes `(tokens, (h + 2 h_kv) · d)`, kernels read
//! heads from it by stride and write `(tokens, h · d)`, and the output projection reads that. Ragged batches follow
//! from it: a batch is the concatenation of its sequences, so nothing is spent on padding ([`attend_ragged`]). Where a
//! kernel does not apply (gradients, returned attention weights), the same tensors go through candle's differentiable
//! operations.
//!
//! [`attend_ragged`]: MultiHeadAttention::attend_ragged

mod build;
pub(crate) mod cache;
mod call;
mod debug;
mod freeze;
mod init;
mod observe;
mod options;
mod plan;
mod positions;
pub(crate) mod ragged;
mod transform;

pub use observe::{AttentionStats, ObserveOptions, TopKeys};
pub use options::{AttentionInputs, AttentionOptions};

use candle_core::{DType, Device, Module, Tensor};

use crate::config::AttentionConfig;
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::ops::{Linear, Qkv};
use crate::position::PositionState;
use crate::sdpa;
use crate::sdpa::AttentionOutput;
use crate::tensor::Frozen;
use crate::weights::NormWeights;

/// Multi-head attention: `concat_h(softmax(Q_h K_hᵀ · scale + M) V_h) W_O`.
///
/// `Q = X_q W_Qᵀ + b_Q`, `K = X_k W_Kᵀ + b_K` and `V = X_v W_Vᵀ + b_V` are cut into heads of `head_dim` elements.
/// `scale` is `head_dim^-0.5` unless set, `M` is the mask ([Vaswani 2017](https://arxiv.org/abs/1706.03762)). There may
/// be fewer key-value heads than query heads ([Ainslie 2023](https://arxiv.org/abs/2305.13245)). Scoring may be
/// additive instead of a dot product ([`Scoring`](crate::Scoring)). Positions are a choice of
/// [`Position`](crate::Position).
///
/// # Shapes
/// Queries `(b, s_q, query_size)`, keys `(b, s_kv, key_size)`, values `(b, s_kv, value_size)` →
/// `(b, s_q, output_size)`; attention weights `(b, h, s_q, s_kv)`. All four sizes are `hidden_size` unless set. A
/// learned extra key (`add_bias_kv`) and an extra key of zeros (`add_zero_attn`) come last and add one column each to
/// the attention weights.
/// # DTypes
/// f16, bf16, f32, f64: the dtype of the weights, which the inputs must share. On the CPU half types are computed in
/// f32 from the projections to the output, which is rounded once. With bf16 instructions (AMX, AVX512-BF16) the
/// operands of each product are rounded to bf16, while sums and softmax stay in f32. A call with a cache rounds queries,
/// keys and values to the dtype of the weights, which the cache holds. On a GPU the softmax is in f32.
/// # Masks
/// [`AttentionMask`]: true = attend. A fully masked query gives zeros before the output projection.
/// # Backends
/// On the CPU, layers whose weights are not variables run fused kernels that store no score matrix. Calls that track a
/// gradient, return attention weights or apply dropout run candle's differentiable operations, on any device.
/// [`Backend`](crate::Backend) lists what GPUs run, and [`plan`](Self::plan) shows the choice for a call.
/// # Gradients
/// Every operation is differentiable. A parameter that is a variable gets its gradient with any mask and scoring.
/// [`frozen`](Self::frozen) is the layer of the moment for inference, with the fused kernels.
/// # Without an output projection
/// The layer has all four projections. Attention on queries, keys and values of one's own, with or without a projection
/// after it, is [`sdpa::attend_bshd`](crate::sdpa::attend_bshd).
/// # Errors
/// A tensor of the wrong shape, dtype or device; the error names it and what was expected. Methods return the crate's
/// [`Error`](crate::Error), which can be matched; `forward` of [`Module`] returns candle's, in which
/// [`Error::find_in`](crate::Error::find_in) finds it.
///
/// # Example
/// ```
/// use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let device = Device::Cpu;
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &device);
/// let attention = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
///
/// let xs = Tensor::randn(0f32, 1., (2, 5, 8), &device)?;
/// assert_eq!(attention.forward(&xs)?.dims(), [2, 5, 8]);
///
/// let memory = Tensor::randn(0f32, 1., (2, 7, 8), &device)?;
/// let mask = AttentionMask::lengths(&[7, 3]);
/// assert_eq!(attention.attend(&xs, &memory, &memory, &mask)?.dims(), [2, 5, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MultiHeadAttention {
    config: AttentionConfig,
    qkv: Qkv,
    o_proj: Linear,
    bias_kv: Option<[Tensor; 2]>,
    score: Option<Tensor>,
    qk_norm: Option<[NormWeights; 2]>,
    sinks: Option<Tensor>,
    position: PositionState,
    frozen: Frozen<Self>,
}

impl MultiHeadAttention {
    /// The configuration of the layer.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// The device of the weights, which the inputs must share.
    pub fn device(&self) -> &Device {
        self.qkv.like().device()
    }

    /// The dtype of the weights, which the inputs must share.
    pub fn dtype(&self) -> DType {
        self.qkv.like().dtype()
    }

    /// Whether the layer is a [frozen](Self::frozen) copy.
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_itself()
    }

    /// Self-attention under the mask of the configuration, `(b, s, hidden_size)` → `(b, s, output_size)`; with `train`,
    /// dropout is applied.
    ///
    /// Call it on the layer itself: candle gives every `Module` a `ModuleT` whose `forward_t` ignores `train`, and
    /// generic code such as `candle_nn::seq_t` calls that one. There, wrap the layer in a closure.
    ///
    /// # Errors
    /// `xs` has the wrong shape, dtype or device.
    pub fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let inputs = AttentionInputs::self_attention(xs, AttentionMask::full());
        self.attend_with(&inputs, &AttentionOptions::default().with_train(train)).map(|attended| attended.output)
    }

    /// Attention of `queries` `(b, s_q, query_size)` to `keys` `(b, s_kv, key_size)` and `values`
    /// `(b, s_kv, value_size)` under `mask` → `(b, s_q, output_size)`.
    ///
    /// # Errors
    /// An input has the wrong shape, dtype or device, or the mask does not fit the call.
    pub fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, mask: &AttentionMask) -> Result<Tensor> {
        let inputs = AttentionInputs::new(queries, keys, values, mask);
        self.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
    }

    /// Attention with [`AttentionOptions`]: training, returned attention weights, a forced backend, a head mask.
    ///
    /// # Errors
    /// Those of [`attend`](Self::attend), or a forced backend that cannot run the call.
    pub fn attend_with(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<AttentionOutput> {
        self.check(inputs, options)?;
        if self.config.num_attention_heads == 0 {
            return self.without_heads(inputs.query);
        }
        let s_kv = inputs.key.dim(1)?;
        let mask = self.mask_with_bias(inputs, inputs.query.dim(1)?, s_kv, None, None)?;
        let inputs = &inputs.under(&*mask);
        let sdpa_options = self.sdpa_options(inputs, options);
        let call = self.call(inputs, &sdpa_options, s_kv)?;
        if options.head_mask.is_none()
            && options.positions.is_none()
            && options.grid.is_none()
            && self.supports_unpadding(inputs, &call, &sdpa_options)
        {
            let output = match inputs.mask.as_padding() {
                _ if inputs.mask.is_windowed() => Some(self.attend_whole(inputs.query, &inputs.mask)?),
                Some((lengths, band)) => {
                    inputs.mask.check(call.shape)?;
                    Some(self.attend_unpadded(inputs.query, lengths, &band)?)
                }
                None => None,
            };
            if let Some(output) = output {
                return Ok(AttentionOutput { output, attention_weights: None });
            }
        }
        let ready = self.transformed(inputs, call.dtype, options)?;
        let sdpa_options = sdpa_options.with_mask(&*ready.mask);
        self.finish(sdpa::attend_bshd(&ready.q, &ready.k, &ready.v, &sdpa_options)?, inputs, options)
    }

    /// Applies the head mask and the output projection to the result of `sdpa`.
    fn finish(
        &self,
        attended: AttentionOutput,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> Result<AttentionOutput> {
        let (b, s_q, h, d_v) = attended.output.dims4()?;
        let dtype = inputs.query.dtype();
        let by_head = match options.head_mask {
            Some(mask) => {
                let sequences = if mask.rank() == 2 { b } else { 1 };
                attended
                    .output
                    .broadcast_mul(&mask.to_dtype(attended.output.dtype())?.reshape((sequences, 1, h, 1))?)?
            }
            None => attended.output,
        };
        let output = self.o_proj.forward(&by_head.reshape((b, s_q, h * d_v))?, dtype)?;
        let attention_weights = attended.attention_weights.map(|weights| weights.to_dtype(dtype)).transpose()?;
        Ok(AttentionOutput { output, attention_weights })
    }

    /// The output of a layer without heads: the bias of the output projection for each query.
    fn without_heads(&self, query: &Tensor) -> Result<AttentionOutput> {
        let (b, s_q, _) = query.dims3()?;
        let shape = (b, s_q, self.config.resolved_output_size());
        let output = match self.o_proj.bias()? {
            Some(bias) => bias.broadcast_as(shape)?,
            None => Tensor::zeros(shape, query.dtype(), query.device())?,
        };
        Ok(AttentionOutput { output, attention_weights: None })
    }
}

impl Module for MultiHeadAttention {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.forward_t(xs, false)?)
    }
}
