//! Multi-head attention: the layer, its options, caches, ragged batches and statistics.
//!
//! Tokens stay in order. The usual implementation transposes queries, keys and values to `(b, h, s, d)` and back, which
//! copies every activation four times. Here one fused projection writes `(tokens, (h + 2 h_kv) · d)`, kernels read
//! heads from it by stride and write `(tokens, h · d)`, and the output projection reads that. Ragged batches follow
//! from it: a batch is the concatenation of its sequences, so nothing is spent on padding
//! ([`AttentionInputs::ragged`]). Where a kernel does not apply (gradients, returned attention weights), the same
//! tensors go through candle's differentiable operations.
//!
//! A plain call, without mask, positions, mechanisms or options, goes straight to the rows of the CPU kernel (`rows`).
//! Every other call takes three steps (`call`): its inputs are checked, a prepared call is made of them, and it
//! runs over rows of the CPU kernel (`rows`), over tensors (`transform`), or padded by buckets (`buckets`). A plan is a
//! prepared call that does not run. Whatever few layers do beyond that is a mechanism (`mechanism`), one file each.

mod buckets;
mod build;
mod cache;
mod call;
mod freeze;
mod latent;
mod mechanism;
pub mod mechanisms;
mod observe;
mod options;
mod parameters;
mod projections;
mod required;
mod rows;
mod steps;
mod tokens;
mod transform;

pub use cache::{CrossCache, KeyValues, KvCache};
pub use observe::{AttentionStats, ObserveOptions, TopKeys};
pub use options::{AttentionInputs, AttentionOptions};

use cache::Identity;
use candle_core::{DType, Device, Module, Tensor};
use mechanism::{Mechanisms, Routes};
use steps::Norms;

use crate::config::AttentionConfig;
use crate::error::Result;
use crate::mask::{AttentionMask, CallMask};
use crate::ops::{Linear, Qkv};
use crate::position::PositionState;
use crate::sdpa::{AttentionOutput, Plan};
use crate::tensor::Frozen;
use crate::weights::Parameters;

/// Multi-head attention: `concat_h(softmax(Q_h K_hᵀ · scale + M) V_h) W_O`.
///
/// `Q = X_q W_Qᵀ + b_Q`, `K = X_k W_Kᵀ + b_K` and `V = X_v W_Vᵀ + b_V` are cut into heads of `head_dim` elements.
/// `scale` is `head_dim^-0.5` unless set, `M` is the mask ([Vaswani 2017](https://arxiv.org/abs/1706.03762)). There may
/// be fewer key-value heads than query heads ([Ainslie 2023](https://arxiv.org/abs/2305.13245)). Scoring may be
/// additive instead of a dot product ([`Scoring`](crate::Scoring)). Positions are a choice of
/// [`Position`](crate::Position). Between the heads and `W_O` there may be a [norm](crate::HeadNorm) and a
/// [gate](crate::OutputGate).
///
/// # Shapes
/// Queries `(b, s_q, query_size)`, keys `(b, s_kv, key_size)`, values `(b, s_kv, value_size)` →
/// `(b, s_q, output_size)`; attention weights `(b, h, s_q, s_kv)`. All four sizes are `hidden_size` unless set. A
/// learned extra key (`add_bias_kv`) and an extra key of zeros (`add_zero_attn`) come last and add one column each to
/// the attention weights.
/// # DTypes
/// f16, bf16, f32, f64: the dtype of the weights, which the inputs must share. On the CPU half types are computed in
/// f32 from the projections to the output, which is rounded once. With bf16 instructions (AMX, AVX512-BF16) the
/// operands of each product are rounded to bf16, while sums and softmax stay in f32. A call with a cache rounds
/// queries, keys and values to the dtype of the weights, which the cache holds. On a GPU the softmax is in f32.
/// # Masks
/// [`AttentionMask`]: true = attend. A fully masked query gives zeros before the output projection.
/// # Backends
/// On the CPU, layers whose weights are not variables run fused kernels that store no score matrix. Calls that track a
/// gradient, return attention weights or apply dropout run candle's differentiable operations, on any device.
/// [`Backend`](crate::Backend) lists what GPUs run, and [`plan`](Self::plan) shows the choice for a call.
/// # Gradients
/// Every operation is differentiable. A parameter that is a variable gets its gradient with any mask and scoring. They
/// are of first order: those of fused kernels are constants also with candle's `CANDLE_GRAD_DO_NOT_DETACH`.
/// [`frozen`](Self::frozen) is the layer of the moment for inference, with the fused kernels.
/// # Projections of one's own
/// [`projection`](Self::projection) reads one out as a [`Linear`], [`with_projection`](Self::with_projection) puts one
/// in, and [`with_module`](Self::with_module) a module, such as a quantized product.
/// # Without an output projection
/// The layer has all four projections. Attention on queries, keys and values of one's own, with or without a projection
/// after it, is [`sdpa::attend_bshd`](crate::sdpa::attend_bshd); their rotation is
/// [`Rotary::apply`](crate::position::Rotary::apply).
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
    /// The tensors beside the projections and the position scheme.
    parameters: Parameters,
    norms: Norms,
    /// The mechanisms of the layer, in the order in which they act.
    mechanisms: Mechanisms,
    /// The routes that the layer allows, whatever its weights track.
    routes: Routes,
    position: PositionState,
    /// The identity by which caches know the layer.
    identity: Identity,
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

    /// A copy of the layer with another mask of its own ([`AttentionConfig::mask`]). It
    /// shares the weights, packed ones included, and the caches of one are caches of the other.
    ///
    /// The mask of a call hides keys besides the layer's own. Where a call has to show more keys than that, give the
    /// layer no mask of its own, and every call the whole one:
    /// ```
    /// use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    ///
    /// let config = AttentionConfig::new(8, 2).with_mask(AttentionMask::window(Some(2), Some(0)));
    /// let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    /// let layer = MultiHeadAttention::new(&config, vb)?;
    /// let free = layer.with_mask(AttentionMask::full())?;
    ///
    /// let xs = Tensor::randn(0f32, 1., (1, 6, 8), &Device::Cpu)?;
    /// // The first four tokens see each other.
    /// let mask = layer.config().mask.clone().or(AttentionMask::query_lengths(&[[4, 4, 4, 4, 0, 0]]))?;
    /// assert_eq!(free.attend(&xs, &xs, &xs, &mask)?.dims(), [1, 6, 8]);
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// The mask is not full, causal, a window, chunks or a function.
    pub fn with_mask(&self, mask: AttentionMask) -> Result<Self> {
        let config = self.config.clone().with_mask(mask);
        config.validate()?;
        // A frozen copy has the mask of the layer that it is made from: each has its own.
        let frozen = if self.is_frozen() { Frozen::itself() } else { Frozen::default() };
        let routes = build::find_routes(&config, &self.parameters, &self.mechanisms);
        Ok(Self { config, routes, frozen, ..self.clone() })
    }

    /// Whether the layer is a [frozen](Self::frozen) copy.
    pub fn is_frozen(&self) -> bool {
        self.frozen.is_itself()
    }

    /// [`forward`](Module::forward), with dropout if `train`.
    ///
    /// candle gives every `Module` a `ModuleT` whose `forward_t` ignores `train`. This method is here so that
    /// `layer.forward_t(&xs, true)` is right; generic code such as `candle_nn::seq_t` calls candle's. There, wrap the
    /// layer in a closure.
    ///
    /// # Errors
    /// `xs` has the wrong shape, dtype or device.
    pub fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let inputs = AttentionInputs::self_attention(xs, AttentionMask::full());
        self.attend_with(&inputs, &AttentionOptions { train, ..AttentionOptions::default() })
            .map(|attended| attended.output)
    }

    /// Attention of `queries` `(b, s_q, query_size)` to `keys` `(b, s_kv, key_size)` and `values`
    /// `(b, s_kv, value_size)` under `mask` → `(b, s_q, output_size)`.
    ///
    /// The mask of a call can only hide more than the layer's own ([`AttentionConfig::mask`]): a causal layer stays
    /// causal under a full mask. [`with_mask`](Self::with_mask) gives a layer another one.
    ///
    /// # Errors
    /// An input has the wrong shape, dtype or device, or the mask does not fit the call.
    pub fn attend<'a>(
        &self,
        queries: &'a Tensor,
        keys: &'a Tensor,
        values: &'a Tensor,
        mask: impl Into<CallMask<'a>>,
    ) -> Result<Tensor> {
        let inputs = AttentionInputs::new(queries, keys, values, mask);
        self.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
    }

    /// A decoder's step: the next tokens `xs` `(b, s, query_size)` of the sequences in `cache`, which keeps their keys
    /// and values → `(b, s, output_size)`. With a mask or lengths it is [`step_with`](Self::step_with), with other
    /// options [`attend_with`](Self::attend_with) over inputs [with this cache](AttentionInputs::with_cache).
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with). The cache is unchanged then.
    pub fn step(&self, xs: &Tensor, cache: &mut KvCache) -> Result<Tensor> {
        let inputs = AttentionInputs::self_attention(xs, AttentionMask::full());
        self.attend_with(&inputs.with_cache(cache), &AttentionOptions::default()).map(|attended| attended.output)
    }

    /// [`step`](Self::step) of a batch whose sequences have unequal lengths, or under a mask: sequence `i` has
    /// `lengths[i]` new tokens, which are padded on the right, or all of them have `s`.
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with). The cache is unchanged then.
    pub fn step_with<'a>(
        &self,
        xs: &'a Tensor,
        cache: &'a mut KvCache,
        mask: impl Into<CallMask<'a>>,
        lengths: impl Into<Option<&'a [usize]>>,
    ) -> Result<Tensor> {
        let inputs = AttentionInputs { new_lengths: lengths.into(), ..AttentionInputs::self_attention(xs, mask) };
        self.attend_with(&inputs.with_cache(cache), &AttentionOptions::default()).map(|attended| attended.output)
    }

    /// An empty cache for the layer: [rotating](KvCache::rotating) if it has a window, and nothing in its mask counts
    /// tokens from the first one; else [growing](KvCache::growing).
    pub fn new_cache(&self) -> KvCache {
        let mask = &self.config.mask;
        match mask.window_sizes() {
            (Some(left), _) if !mask.counts_tokens() => KvCache::rotating(left.saturating_add(1)),
            _ => KvCache::growing(),
        }
    }

    /// A step of cross-attention: `queries` `(b, s_q, query_size)` over `memory`, whose keys and values are projected
    /// already ([`cross_cache`](Self::cross_cache)), under `mask` → `(b, s_q, output_size)`. With other options it is
    /// [`attend_with`](Self::attend_with) over [`AttentionInputs::cross_cached`].
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with).
    pub fn cross_step<'a>(
        &self,
        queries: &'a Tensor,
        memory: &'a CrossCache,
        mask: impl Into<CallMask<'a>>,
    ) -> Result<Tensor> {
        let inputs = AttentionInputs::cross_cached(queries, memory, mask);
        self.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
    }

    /// Attention over [`AttentionInputs`], which are padded, ragged, the next tokens of a cache, or queries over a
    /// cached memory; with [`AttentionOptions`]: training, returned attention weights, a forced backend, a head mask.
    ///
    /// # Errors
    /// - [`Error::MissingInput`](crate::Error::MissingInput): the call lacks an input that the layer
    ///   [requires](AttentionConfig::requires).
    /// - A tensor has the wrong shape, dtype or device, or the mask does not fit the call.
    /// - A forced backend cannot run the call.
    /// - Ragged: the lengths do not add up to the tokens, the mask is neither full, causal nor a window, or the
    ///   positions are those of image patches and the sequences have different lengths.
    /// - With a cache, which is unchanged after any error: [`Error::CacheFull`](crate::Error::CacheFull);
    ///   [`Error::CachedRotation`](crate::Error::CachedRotation), where LongRoPE or dynamic scaling would rotate the
    ///   cached keys otherwise; a cache of another batch, of another layer, or of this one with other weights; a
    ///   rotating cache that keeps less than the mask lets a query see; a layer with `add_bias_kv`, `add_zero_attn` or
    ///   positions of image patches.
    /// - Over a cached memory: a cache of another layer, of other weights, or of another batch.
    pub fn attend_with(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<AttentionOutput> {
        if self.is_plain(inputs, options) {
            return Ok(AttentionOutput { output: self.attend_plain(inputs.query)?, attention_weights: None });
        }
        self.for_call(inputs, options).open(inputs, options)?.run()
    }

    /// [`attend_with`](Self::attend_with), and the keys and values that the queries attended to, for later layers that
    /// have none of their own ([`KeyValueSource::Shared`](crate::KeyValueSource)): with a cache, those in it before the
    /// call and the new ones. Differentiable.
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with). The inputs are ragged or a cross-cached memory, or the layer
    /// has no heads, has extra keys (`add_bias_kv`, `add_zero_attn`), or has no keys of its own either.
    pub fn attend_sharing(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> Result<(AttentionOutput, KeyValues)> {
        self.check_sharing(inputs, options)?;
        self.for_call(inputs, options).open(inputs, options)?.share()
    }

    /// The backend that would run [`attend_with`](Self::attend_with), why each other one would not, and the scratch
    /// memory in bytes. A cache is not changed. Where a ragged batch has to be padded, it is the plan of the padded
    /// batch.
    ///
    /// # Errors
    /// The errors of [`attend_with`](Self::attend_with).
    pub fn plan(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<Plan> {
        self.for_call(inputs, options).open(inputs, options)?.plan()
    }
}

impl Module for MultiHeadAttention {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.forward_t(xs, false)?)
    }
}
