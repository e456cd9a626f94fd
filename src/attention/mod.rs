mod build;
mod cached;
mod init;
pub(crate) mod kv_cache;
mod observe;
mod options;
pub(crate) mod ragged;
mod transform;

use std::borrow::Cow;

use candle_core::{DType, Device, Module, Tensor};

use crate::checkpoint::WeightSource;
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::mask::AttnShape;
use crate::ops::{Linear, Qkv, accumulate_dtype};
use crate::position::ragged::BatchCache;
use crate::position::{BiasCall, PositionState, ScoreCall, TokenPositions};
use crate::sdpa;
use crate::sdpa::{AttentionOutput, Call, DeviceKind, Plan, SdpaOptions};
use crate::weights::{AttentionWeights, NormWeights};
pub use observe::{Observe, Observed, TopKeys};
pub use options::{AttentionInputs, AttentionOptions};

/// Multi-head attention: `concat_h(softmax(Q_h K_hᵀ · scale + M) V_h) W_O`.
///
/// `Q = X_q W_Qᵀ + b_Q`, and likewise K and V, are cut into heads of `head_dim` numbers; `scale` is `head_dim^-0.5`
/// unless set; `M` is the mask ([Vaswani 2017](https://arxiv.org/abs/1706.03762)). Key-value heads may be fewer than
/// query heads ([Ainslie 2023](https://arxiv.org/abs/2305.13245)); scoring may be additive instead of a product
/// ([`Scoring`](crate::Scoring)).
///
/// # Shapes
/// queries `(b, s_q, query_size)`, keys `(b, s_kv, key_size)`, values `(b, s_kv, value_size)` → `(b, s_q, output_size)`;
/// weights `(b, h, s_q, s_kv)`. All four sizes are `hidden_size` unless set. A learned or zero extra key
/// (`add_bias_kv`, `add_zero_attn`) comes last and makes the weights one column wider each.
/// # DTypes
/// f16, bf16, f32, f64: that of the weights, which the inputs must share. On the CPU half types are computed in f32 from
/// the projections to the output, which is rounded once; with instructions for bf16 (AMX, AVX512-BF16) the operands of
/// each product are rounded to bf16, sums and softmax stay f32. On a GPU the softmax is in f32.
/// # Masks
/// [`AttentionMask`]: true = attend. A query that sees nothing gets zeros before the output projection.
/// # Backends
/// On the CPU, layers of fixed weights run fused kernels that keep no score matrix; whatever tracks a gradient, returns
/// weights or drops some takes candle's differentiable operations, on any device. [`Backend`](crate::Backend) has what
/// GPUs run; [`plan`](Self::plan) says which it is for a call.
/// # Gradients
/// Every operation is differentiable; a parameter that is a variable gets its gradient whatever the mask or scoring.
/// # Errors
/// A tensor of the wrong shape, dtype or device, named, with what was expected.
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
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    config: AttentionConfig,
    qkv: Qkv,
    o_proj: Linear,
    bias_kv: Option<[Tensor; 2]>,
    score: Option<Tensor>,
    qk_norm: Option<[NormWeights; 2]>,
    sinks: Option<Tensor>,
    position: PositionState,
}

impl MultiHeadAttention {
    /// The layer of a checkpoint, in any layout of [`LAYOUTS`](crate::checkpoint::LAYOUTS): `source` is a `VarBuilder`
    /// or a [`Checkpoint::at`](crate::checkpoint::Checkpoint::at) whose prefix is that of the layer.
    ///
    /// # Errors
    /// See [`AttentionWeights::read`].
    pub fn load<S: WeightSource>(config: &AttentionConfig, source: S) -> Result<Self> {
        let (weights, _) = AttentionWeights::read(config, &source)?;
        Self::from_weights(config, weights)
    }

    /// The configuration.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// Self-attention; with `train`, dropout is applied.
    ///
    /// Call it on the layer itself: candle gives every `Module` a `ModuleT` whose `forward_t` leaves `train` unused, and
    /// generic code such as `candle_nn::seq_t` takes that one. There, wrap the layer in a closure.
    ///
    /// # Errors
    /// If `xs` does not fit.
    pub fn forward_t(&self, xs: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let mask = AttentionMask::full();
        let inputs = AttentionInputs::self_attention(xs, &mask);
        self.attend_with(&inputs, &AttentionOptions::default().with_train(train)).map(|attended| attended.output)
    }

    /// Attention of `queries` to `keys` and `values` under `mask`: `(b, s_q, output_size)`.
    ///
    /// # Errors
    /// If an input or the mask does not fit, named.
    pub fn attend(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: &AttentionMask,
    ) -> candle_core::Result<Tensor> {
        let inputs = AttentionInputs { query: queries, key: keys, value: values, mask };
        self.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
    }

    /// Attention with everything that can be asked of it: see [`AttentionOptions`].
    ///
    /// # Errors
    /// As [`attend`](Self::attend); a forced backend that cannot run the call.
    pub fn attend_with(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> candle_core::Result<AttentionOutput> {
        Ok(self.run(inputs, options)?)
    }

    /// Which backend would run this call, the reason against each other one, and the scratch memory needed.
    ///
    /// # Errors
    /// As [`attend_with`](Self::attend_with).
    pub fn plan(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> candle_core::Result<Plan> {
        Ok(self.plan_of(inputs, options)?)
    }

    fn plan_of(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<Plan> {
        self.check(inputs, options)?;
        let s_kv = inputs.key.dim(1)?;
        let mask = self.mask_with_bias(inputs, inputs.query.dim(1)?, s_kv, None, None)?;
        let inputs = AttentionInputs { mask: &mask, ..*inputs };
        let options = self.sdpa_options(&inputs, options);
        let call = self.call(&inputs, &options, s_kv)?;
        inputs.mask.check(call.shape)?;
        Plan::new(&call, &options)
    }

    /// The attention of a call of this layer over `s_kv` keys.
    fn call(&self, inputs: &AttentionInputs, options: &SdpaOptions, s_kv: usize) -> Result<Call> {
        let config = &self.config;
        let (b, s_q, _) = inputs.query.dims3()?;
        let norms = self.qk_norm.iter().flatten().flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten();
        let tracked = [inputs.query, inputs.key, inputs.value].into_iter().chain(self.bias_kv.iter().flatten());
        let tracked = tracked.chain(&self.score).chain(&self.sinks).chain(norms).any(Tensor::track_op);
        let mut call = Call {
            shape: AttnShape { b, h: config.num_attention_heads, s_q, s_kv },
            h_kv: config.num_key_value_heads(),
            d: config.head_dim(),
            d_v: config.value_head_dim(),
            dtype: accumulate_dtype(self.qkv.weight()),
            device: DeviceKind::of(inputs.query.device()),
            tracks_gradient: tracked
                || self.position.tracks_gradient()
                || self.qkv.tracks_gradient()
                || inputs.mask.tracks_gradient(),
        };
        // What would be rounded before its next product anyway is not kept wider.
        if self.qkv.weight().dtype() == DType::BF16
            && sdpa::runs_on_cpu_kernel(&call, options)
            && self.qkv.rounds_to_bf16()?
        {
            call.dtype = DType::BF16;
        }
        Ok(call)
    }

    fn run(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<AttentionOutput> {
        self.check(inputs, options)?;
        if self.config.num_attention_heads == 0 {
            return self.without_heads(inputs.query);
        }
        let s_kv = inputs.key.dim(1)?;
        let mask = self.mask_with_bias(inputs, inputs.query.dim(1)?, s_kv, None, None)?;
        let inputs = &AttentionInputs { mask: &mask, ..*inputs };
        let sdpa_options = self.sdpa_options(inputs, options);
        let call = self.call(inputs, &sdpa_options, s_kv)?;
        if let Some((lengths, band)) = inputs.mask.as_padding()
            && options.head_mask.is_none()
            && self.runs_unpadded(inputs, &call, &sdpa_options)
        {
            inputs.mask.check(call.shape)?;
            return Ok(AttentionOutput {
                output: self.unpadded(inputs.query, lengths, &band)?,
                attention_weights: None,
            });
        }
        let Compared { q, k, v, mask } = self.compared(inputs, call.dtype, options.grid)?;
        self.finish(sdpa::attend_bshd(&q, &k, &v, &SdpaOptions { mask: &mask, ..sdpa_options })?, inputs, options)
    }

    /// The mask of a call with the bias that depends on positions alone. `starts` and `cache` as in [`BiasCall`].
    pub(crate) fn mask_with_bias<'a>(
        &self,
        inputs: &AttentionInputs<'a>,
        s_q: usize,
        s_kv: usize,
        starts: Option<&[usize]>,
        cache: Option<&BatchCache>,
    ) -> Result<Cow<'a, AttentionMask>> {
        Ok(match self.position_bias(s_q, s_kv, starts, inputs.query.device(), cache)? {
            Some(bias) => Cow::Owned(inputs.mask.clone().and(bias)),
            None => Cow::Borrowed(inputs.mask),
        })
    }

    fn position_bias(
        &self,
        s_q: usize,
        s_kv: usize,
        starts: Option<&[usize]>,
        device: &Device,
        cache: Option<&BatchCache>,
    ) -> Result<Option<AttentionMask>> {
        let (heads, scale) = (self.config.num_attention_heads, self.config.scale());
        let state = &self.position;
        self.config.position.scheme().bias(&BiasCall { heads, scale, s_q, s_kv, starts, device, state, cache })
    }

    /// What is compared in a call whose mask knows positions already.
    fn compared<'a>(
        &self,
        inputs: &AttentionInputs<'a>,
        dtype: DType,
        grid: Option<[usize; 2]>,
    ) -> Result<Compared<'a>> {
        let [q, k, v] = self.project(inputs, dtype, &TokenPositions { grid, ..TokenPositions::default() })?;
        let call = ScoreCall { q: &q, k: &k, qkv: &self.qkv, scale: self.config.scale(), state: &self.position };
        let mask = match self.config.position.scheme().score_bias(&call)? {
            Some(scores) => Cow::Owned(inputs.mask.clone().and(AttentionMask::additive(&scores)?)),
            None => Cow::Borrowed(inputs.mask),
        };
        Ok(Compared { q, k: self.append(k, 0)?, v: self.append(v, 1)?, mask })
    }

    /// The mask of heads and the output projection.
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
                let rows = if mask.rank() == 2 { b } else { 1 };
                attended.output.broadcast_mul(&mask.to_dtype(attended.output.dtype())?.reshape((rows, 1, h, 1))?)?
            }
            None => attended.output,
        };
        let output = self.o_proj.forward(&by_head.reshape((b, s_q, h * d_v))?, dtype)?;
        let attention_weights = attended.attention_weights.map(|weights| weights.to_dtype(dtype)).transpose()?;
        Ok(AttentionOutput { output, attention_weights })
    }

    /// The output projection of nothing: its bias, for each query.
    fn without_heads(&self, query: &Tensor) -> Result<AttentionOutput> {
        let (b, s_q, _) = query.dims3()?;
        let shape = (b, s_q, self.config.output_size());
        let output = match self.o_proj.weights().bias {
            Some(bias) => bias.broadcast_as(shape)?,
            None => Tensor::zeros(shape, query.dtype(), query.device())?,
        };
        Ok(AttentionOutput { output, attention_weights: None })
    }

    fn sdpa_options<'a>(&'a self, inputs: &AttentionInputs<'a>, options: &AttentionOptions) -> SdpaOptions<'a> {
        SdpaOptions {
            scale: Some(self.config.scale()),
            appended_keys: usize::from(self.bias_kv.is_some()) + usize::from(self.config.add_zero_attn),
            softcap: self.config.softcap,
            sinks: self.sinks.as_ref(),
            additive: self.score.as_ref(),
            dropout: if options.train { self.config.dropout } else { 0.0 },
            return_attention_weights: options.return_attention_weights,
            backend: options.backend,
            ..SdpaOptions::new(inputs.mask)
        }
    }

    /// Queries, keys and values by head, `(b, s, h, d)` in `dtype`.
    fn project(&self, inputs: &AttentionInputs, dtype: DType, tokens: &TokenPositions) -> Result<[Tensor; 3]> {
        let sizes = [self.config.head_dim(), self.config.head_dim(), self.config.value_head_dim()];
        let xs = [inputs.query, inputs.key, inputs.value];
        if self.is_untransformed() {
            return self.qkv.forward(xs, sizes, dtype);
        }
        // Rounded once, after the transformations.
        let wide = self.qkv.forward(xs, sizes, accumulate_dtype(self.qkv.weight()))?;
        let [q, k, v] = self.transform(wide, tokens)?;
        Ok([q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?])
    }

    /// `xs` `(b, s, h_kv, d)` with the learned row of `bias_kv` (0: key, 1: value) and the row of zeros after it.
    fn append(&self, xs: Tensor, which: usize) -> Result<Tensor> {
        let (b, s, h_kv, d) = xs.dims4()?;
        // candle cannot join an empty tensor to another.
        let mut rows = if s == 0 { Vec::new() } else { vec![xs.clone()] };
        if let Some(bias) = &self.bias_kv {
            rows.push(bias[which].to_dtype(xs.dtype())?.reshape((1, 1, h_kv, d))?.broadcast_as((b, 1, h_kv, d))?);
        }
        if self.config.add_zero_attn {
            rows.push(Tensor::zeros((b, 1, h_kv, d), xs.dtype(), xs.device())?);
        }
        match rows.as_slice() {
            [] => Ok(xs),
            [only] => Ok(only.clone()),
            _ => Ok(Tensor::cat(&rows, 1)?),
        }
    }

    fn check(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<()> {
        if let Some([rows, columns]) = options.grid
            && !self.config.position.scheme().uses_grid()
        {
            let allowed = format!("none: the layer's positions are {}", self.config.position);
            return Err(Error::config("grid", format!("{rows} x {columns}"), allowed));
        }
        let AttentionInputs { query, key, value, .. } = *inputs;
        if let Some(mask) = options.head_mask {
            let (b, h) = (query.dims().first().copied().unwrap_or(0), self.config.num_attention_heads);
            if mask.dims() != [h] && mask.dims() != [b, h] {
                return Err(Error::shape("head_mask", mask.dims(), format!("[{h}] or [{b}, {h}]")));
            }
            if !mask.dtype().is_float() {
                return Err(Error::dtype("head_mask", mask.dtype(), "a floating dtype"));
            }
            crate::tensor::same_dtype_and_device("head_mask", &mask.to_dtype(query.dtype())?, query)?;
        }
        let sizes = [self.config.query_size(), self.config.key_size(), self.config.value_size()];
        let named = [("query", query, sizes[0]), ("key", key, sizes[1]), ("value", value, sizes[2])];
        for (name, tensor, size) in named {
            if tensor.rank() != 3 || tensor.dims()[2] != size {
                let s = if name == "query" { "s_q" } else { "s_kv" };
                return Err(Error::shape(name, tensor.dims(), format!("(b, {s}, {size})")));
            }
            crate::tensor::same_dtype_and_device(name, tensor, self.qkv.weight())?;
        }
        let (b, s_kv) = (query.dims()[0], key.dims()[1]);
        for (name, tensor, size) in [("key", key, sizes[1]), ("value", value, sizes[2])] {
            if tensor.dims()[..2] != [b, s_kv] {
                return Err(Error::shape(name, tensor.dims(), format!("[{b}, {s_kv}, {size}]")));
            }
        }
        Ok(())
    }
}

impl Module for MultiHeadAttention {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        self.forward_t(xs, false)
    }
}

/// Queries, keys and values `(b, s, heads, d)` as attention compares them, the extra keys among them, and the mask.
struct Compared<'a> {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Cow<'a, AttentionMask>,
}
