//! One call of a layer: its checks, its options and its description for `sdpa`.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::accumulate_dtype;
use crate::position::BiasCall;
use crate::position::ragged::BatchCache;
use crate::sdpa;
use crate::sdpa::{Call, DeviceKind, SdpaOptions};
use crate::tensor::same_dtype_and_device;

impl MultiHeadAttention {
    /// The description of a call over `s_kv` keys, from which backends are chosen.
    pub(super) fn call(&self, inputs: &AttentionInputs, options: &SdpaOptions, s_kv: usize) -> Result<Call> {
        let config = &self.config;
        let (b, s_q, _) = inputs.query.dims3()?;
        let tracked = [inputs.query, inputs.key, inputs.value].into_iter().any(Tensor::track_op);
        let mut call = Call {
            shape: AttnShape { b, h: config.num_attention_heads, s_q, s_kv },
            h_kv: config.resolved_num_key_value_heads(),
            d: config.resolved_head_dim(),
            d_v: config.resolved_value_head_dim(),
            dtype: accumulate_dtype(self.qkv.like()),
            device: DeviceKind::of(inputs.query.device()),
            distance_embeddings: config.position.scheme().distance_embedding_count(),
            tracks_gradient: tracked || self.tracks_gradient() || inputs.mask.tracks_gradient(),
        };
        // Elements that would be rounded before their next product anyway are not kept in f32.
        if self.qkv.like().dtype() == DType::BF16
            && sdpa::runs_on_cpu_kernel(&call, options)
            && self.qkv.rounds_to_bf16()?
        {
            call.dtype = DType::BF16;
        }
        Ok(call)
    }

    /// Whether a weight is a variable or depends on one, except for those of the output projection, which comes after
    /// the choice of a backend.
    pub(super) fn tracks_gradient(&self) -> bool {
        let norms = self.qk_norm.iter().flatten().flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten();
        let others = self.bias_kv.iter().flatten().chain(&self.score).chain(&self.sinks).chain(norms);
        self.position.tracks_gradient() || self.qkv.tracks_gradient() || others.into_iter().any(Tensor::track_op)
    }

    /// The mask of a call and that of the configuration, with the bias that depends on positions alone. `starts` and
    /// `cache` as in [`BiasCall`].
    pub(super) fn mask_with_bias<'a>(
        &self,
        inputs: &'a AttentionInputs,
        s_q: usize,
        s_kv: usize,
        starts: Option<&[usize]>,
        cache: Option<&BatchCache>,
    ) -> Result<Cow<'a, AttentionMask>> {
        let mask = self.with_own_mask(&inputs.mask);
        Ok(match self.position_bias(s_q, s_kv, starts, inputs.query.device(), cache)? {
            Some(bias) => Cow::Owned(mask.into_owned().and(bias)),
            None => mask,
        })
    }

    /// The mask of a call and that of the configuration.
    pub(super) fn with_own_mask<'a>(&self, mask: &'a AttentionMask) -> Cow<'a, AttentionMask> {
        match &self.config.mask {
            own if own.is_full() => Cow::Borrowed(mask),
            own => Cow::Owned(mask.clone().and(own.clone())),
        }
    }

    /// The term that positions alone add to the scores, if the scheme has one. `starts` and `cache` as in [`BiasCall`].
    pub(super) fn position_bias(
        &self,
        s_q: usize,
        s_kv: usize,
        starts: Option<&[usize]>,
        device: &Device,
        cache: Option<&BatchCache>,
    ) -> Result<Option<AttentionMask>> {
        let (heads, scale) = (self.config.num_attention_heads, self.config.resolved_scale());
        let state = &self.position;
        self.config.position.scheme().bias(&BiasCall { heads, scale, s_q, s_kv, starts, device, state, cache })
    }

    /// The options of the layer and of the call for `sdpa`.
    pub(super) fn sdpa_options<'a>(
        &'a self,
        inputs: &'a AttentionInputs,
        options: &AttentionOptions,
    ) -> SdpaOptions<'a> {
        SdpaOptions {
            scale: Some(self.config.resolved_scale()),
            appended_keys: usize::from(self.bias_kv.is_some()) + usize::from(self.config.add_zero_attn),
            softcap: self.config.softcap,
            sinks: self.sinks.as_ref(),
            additive: self.score.as_ref(),
            dropout: if options.train { self.config.dropout } else { 0.0 },
            dropout_seed: options.dropout_seed,
            return_attention_weights: options.return_attention_weights,
            backend: options.backend,
            ..SdpaOptions::new(&*inputs.mask)
        }
    }

    /// Checks inputs and options against the configuration.
    pub(super) fn check(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<()> {
        let AttentionInputs { query, key, value, .. } = *inputs;
        self.check_options(query, options)?;
        self.check_input("query", query, self.config.resolved_query_size())?;
        self.check_input("key", key, self.config.resolved_key_size())?;
        if key.dims()[0] != query.dims()[0] {
            let [_, s_kv, size] = [0, 1, 2].map(|i| key.dims()[i]);
            return Err(Error::shape("key", key.dims(), format!("[{}, {s_kv}, {size}]", query.dims()[0])));
        }
        self.check_memory(key, value)
    }

    /// Checks what a call over `query` asks for.
    pub(super) fn check_options(&self, query: &Tensor, options: &AttentionOptions) -> Result<()> {
        if let Some([rows, columns]) = options.grid
            && !self.config.position.scheme().uses_grid()
        {
            let allowed = format!("none: the layer's positions are {}", self.config.position);
            return Err(Error::config("grid", format!("{rows} x {columns}"), allowed));
        }
        if let Some(mask) = options.head_mask {
            let (b, h) = (query.dims().first().copied().unwrap_or(0), self.config.num_attention_heads);
            if mask.dims() != [h] && mask.dims() != [b, h] {
                return Err(Error::shape("head_mask", mask.dims(), format!("[{h}] or [{b}, {h}]")));
            }
            if !mask.dtype().is_float() {
                return Err(Error::dtype("head_mask", mask.dtype(), "a floating dtype"));
            }
            same_dtype_and_device("head_mask", &mask.to_dtype(query.dtype())?, query)?;
        }
        Ok(())
    }

    /// Checks the keys and values of a call against the configuration and each other.
    pub(super) fn check_memory(&self, key: &Tensor, value: &Tensor) -> Result<()> {
        let size = self.config.resolved_value_size();
        self.check_input("key", key, self.config.resolved_key_size())?;
        self.check_input("value", value, size)?;
        if value.dims()[..2] != key.dims()[..2] {
            let (b, s_kv, _) = key.dims3()?;
            return Err(Error::shape("value", value.dims(), format!("[{b}, {s_kv}, {size}]")));
        }
        Ok(())
    }

    pub(super) fn check_input(&self, name: &str, tensor: &Tensor, size: usize) -> Result<()> {
        if tensor.rank() != 3 || tensor.dims()[2] != size {
            let s = if name == "query" { "s_q" } else { "s_kv" };
            return Err(Error::shape(name, tensor.dims(), format!("(b, {s}, {size})")));
        }
        same_dtype_and_device(name, tensor, self.qkv.like())
    }
}
