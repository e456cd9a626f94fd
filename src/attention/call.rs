//! One call of a layer: opened once, whatever its kind of tokens, and then run, planned, observed or shared.

use std::borrow::Cow;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::KeyValues;
use crate::attention::mechanism::Mechanism;
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::attention::tokens::{CallTokens, Counted, Projection, pack, pad};
use crate::attention::transform::OUTPUT;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::accumulate_dtype;
use crate::position::{BiasCall, ExplicitPositions};
use crate::ragged::{BatchCache, offsets};
use crate::sdpa;
use crate::sdpa::{AttentionOutput, Backend, Call, DeviceKind, Plan, SdpaOptions};
use crate::tensor::{element_count, same_dtype_and_device, wide};
use crate::weights::{SCORE, SINKS};

/// A call that is checked and ready: to [run](Self::run), to [plan](Self::plan), to [observe](Self::observe), or to
/// [share](Self::share) its keys.
pub(super) struct OpenCall<'a> {
    pub layer: &'a MultiHeadAttention,
    /// The inputs of queries, keys and values, with the position vectors of the call.
    pub xs: [Tensor; 3],
    /// The mask that the call gives.
    pub mask: &'a AttentionMask,
    pub options: &'a AttentionOptions<'a>,
    pub tokens: Box<dyn CallTokens + 'a>,
    pub counted: Counted,
    /// The length of each sequence, if it is known.
    pub lengths: Option<Vec<usize>>,
    /// Sizes, dtype, device and gradients.
    pub sizes: Call,
    /// The options of the layer and of the call for attention. Their mask is the whole one: that of the call, of the
    /// layer and of the tokens, and the bias of the position scheme.
    pub sdpa: SdpaOptions<'a>,
    route: Route,
    /// The absorbed form of latent attention and its backend, if the call runs so.
    pub absorbed: Option<(Call, Backend)>,
}

/// How a call runs.
enum Route {
    /// In the buffers of the CPU kernel: sequences of these lengths, or whole ones, under a mask that is full, causal
    /// or a window.
    Rows { lengths: Option<Vec<usize>>, mask: AttentionMask },
    /// Over tensors, on this backend.
    Tensors(Backend),
    /// A ragged batch that is padded, sequences of like length together.
    Buckets,
}

impl MultiHeadAttention {
    /// Opens a call. Every call of the layer comes through here.
    pub(super) fn open<'a>(
        &'a self,
        inputs: &'a AttentionInputs,
        options: &'a AttentionOptions,
    ) -> Result<OpenCall<'a>> {
        self.check_required(inputs, options)?;
        self.open_given(inputs, options)
    }

    /// [`open`](Self::open) for inputs that hold what the layer requires. Nothing is computed, and a cache does not
    /// change.
    pub(super) fn open_given<'a>(
        &'a self,
        inputs: &'a AttentionInputs,
        options: &'a AttentionOptions,
    ) -> Result<OpenCall<'a>> {
        let mut tokens = inputs.kind()?;
        let b = tokens.check(self, inputs, options)?;
        options.check(&self.config, inputs.query, b)?;
        self.check_given(inputs, options)?;
        self.mechanisms.iter().try_for_each(|mechanism| mechanism.check(inputs, options))?;
        let [query, key] = inputs.with_vectors()?;
        let xs = [query, key, inputs.value.clone()];
        let (counted, mask) = tokens.count(self, &xs, options, self.joined_mask(&inputs.mask, options)?)?;
        let Counted { b, s_q, s_kv, .. } = counted;
        let mut shape = AttnShape { b, h: self.config.num_attention_heads, s_q, s_kv };
        let mut mask = self.with_score_bias(mask, shape, options)?;
        self.check_keys(&xs, s_kv)?;
        mask.check(shape)?;
        let is_padded = tokens.ragged().is_none();
        if is_padded {
            element_count("the output of attention", &[b, s_q, shape.h, self.config.resolved_value_head_dim()])?;
        }
        self.mechanisms.iter().try_for_each(|mechanism| mechanism.check_tokens(&*tokens, &counted, &mask))?;
        let lengths = tokens.lengths(&mask, &counted);
        for mechanism in self.mechanisms.iter().filter(|_| is_padded) {
            if let Some((joined, more)) = mechanism.add_keys(&mask, shape, xs[0].device())? {
                (mask, shape) = (Cow::Owned(joined), more);
            }
        }
        let sizes = self.sizes(&xs, &counted, shape, &mask);
        let sdpa = self.sdpa_options(mask, s_q, options)?;
        let (mask, route, absorbed) = (&*inputs.mask, Route::Buckets, None);
        let mut call =
            OpenCall { layer: self, xs, mask, options, tokens, counted, lengths, sizes, sdpa, route, absorbed };
        call.choose_route()?;
        Ok(call)
    }

    /// The options of the layer and of a call of `s_q` queries under `mask` for `sdpa`.
    fn sdpa_options<'a>(
        &'a self,
        mask: Cow<'a, AttentionMask>,
        s_q: usize,
        options: &AttentionOptions,
    ) -> Result<SdpaOptions<'a>> {
        let config = &self.config;
        let scale = self.mechanisms.iter().find_map(|mechanism| mechanism.scale(s_q));
        Ok(SdpaOptions {
            scale: Some(scale.unwrap_or_else(|| config.resolved_scale())),
            appended_keys: self.mechanisms.iter().map(|mechanism| mechanism.appended_keys()).sum(),
            softcap: config.softcap,
            sinks: self.parameters.get(SINKS),
            additive: self.parameters.get(SCORE),
            value_distances: config.position.scheme().value_distances(&self.position)?,
            dropout: if options.train { config.dropout } else { 0.0 },
            dropout_seed: options.dropout_seed,
            return_attention_weights: options.return_attention_weights,
            backend: options.backend,
            ..SdpaOptions::new(mask)
        })
    }

    /// Sizes, dtype, device and gradients of a call of this shape under `mask`.
    fn sizes(&self, xs: &[Tensor; 3], counted: &Counted, shape: AttnShape, mask: &AttentionMask) -> Call {
        let (config, stored) = (&self.config, counted.stored);
        let sizes = Call {
            shape,
            h_kv: config.resolved_num_key_value_heads(),
            d: config.resolved_head_dim(),
            d_v: config.resolved_value_head_dim(),
            dtype: stored.map_or_else(|| accumulate_dtype(self.qkv.like()), |(dtype, _)| dtype),
            device: DeviceKind::from_device(xs[0].device()),
            distance_embeddings: config.position.scheme().distance_embedding_count(shape.s_kv),
            tracks_gradient: xs.iter().any(Tensor::track_op)
                || self.tracks_gradient()
                || stored.is_some_and(|(_, tracked)| tracked)
                || mask.tracks_gradient(),
        };
        self.mechanisms.iter().fold(sizes, |sizes, mechanism| mechanism.sizes(sizes))
    }

    /// The mask of a call and that of the layer, which a mechanism may join in its own way.
    fn joined_mask<'a>(&self, given: &'a AttentionMask, options: &AttentionOptions) -> Result<Cow<'a, AttentionMask>> {
        let join = |each: &Arc<dyn Mechanism>| each.join_masks(&self.config.mask, given, options).transpose();
        let joined = self.mechanisms.iter().find_map(join).transpose()?;
        Ok(joined.map_or_else(|| self.with_own_mask(given), Cow::Owned))
    }

    /// Checks that a sequence has no more keys than the layer takes.
    pub(super) fn check_key_count(&self, keys: usize) -> Result<()> {
        self.mechanisms.iter().try_for_each(|mechanism| mechanism.check_keys(keys))
    }

    /// The layer that runs a call: a copy with exact products if the call trains a layer with weights in few bits.
    pub(super) fn for_call(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Cow<'_, Self> {
        let in_training = || options.train || inputs.tracks_gradient() || options.tracks_gradient();
        self.exact_if(in_training).map_or(Cow::Borrowed(self), Cow::Owned)
    }

    /// The layer with exact products of its weights in few bits, if it has such and is `in_training`, or has variables.
    pub(super) fn exact_if(&self, in_training: impl FnOnce() -> bool) -> Option<Self> {
        self.quantization()?;
        (in_training() || self.tracks_gradient() || self.o_proj.tracks_gradient()).then(|| {
            let mut exact = self.clone();
            exact.set_exact();
            exact
        })
    }

    /// Checks that a call of these inputs and options may share its keys and values.
    pub(super) fn check_sharing(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<()> {
        let what = "a call that shares its keys and values";
        if !matches!(inputs.tokens, Tokens::Padded) {
            return Err(Error::value(what, "one with ragged or cross-cached inputs", "padded inputs"));
        }
        if self.config.num_attention_heads == 0 {
            let expected = "one of a layer with heads, without add_bias_kv and add_zero_attn";
            return Err(Error::value(what, "another one", expected));
        }
        self.mechanisms.iter().try_for_each(|mechanism| mechanism.check_sharing(options))
    }

    /// Checks the keys and values of a call against the configuration and each other.
    pub(super) fn check_memory(&self, key: &Tensor, value: &Tensor) -> Result<()> {
        self.check_input("key", key, self.config.resolved_key_size())?;
        self.check_values(key, value)
    }

    /// Checks values against the configuration and their keys.
    pub(super) fn check_values(&self, key: &Tensor, value: &Tensor) -> Result<()> {
        let size = self.config.resolved_value_size();
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

    /// The positions that a call gives its `b` sequences of `s_kv` keys, if it does.
    pub(super) fn explicit_positions(
        &self,
        options: &AttentionOptions,
        b: usize,
        s_kv: usize,
    ) -> Result<Option<ExplicitPositions>> {
        let Some(positions) = options.positions else { return Ok(None) };
        let position = &self.config.position;
        let explicit = ExplicitPositions::new(positions, b, s_kv)?;
        if position.scheme().accepts_positions(explicit.axes) {
            // Without a sequence there is no position to be asked for.
            return Ok(Some(explicit).filter(|_| b > 0));
        }
        if position.scheme().accepts_positions(1) {
            let found = format!("{} per token", explicit.axes);
            return Err(Error::value("the number of positions", found, format!("1: the layer has {position}")));
        }
        let allowed = format!("none: the layer's positions are {position}, which follow from the order of the tokens");
        Err(Error::config("positions", "given by the call", allowed))
    }

    /// Whether a weight is a variable or depends on one, except for those of the output projection, which comes after
    /// the choice of a backend.
    pub(super) fn tracks_gradient(&self) -> bool {
        self.parameters.tracks_gradient() || self.position.weights.tracks_gradient() || self.qkv.tracks_gradient()
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
        AttnShape { b, s_q, s_kv, .. }: AttnShape,
        grid: Option<[usize; 2]>,
        starts: Option<&[usize]>,
        device: &Device,
        cache: Option<&BatchCache>,
    ) -> Result<Option<AttentionMask>> {
        let (heads, scale) = (self.config.num_attention_heads, self.config.resolved_scale());
        let state = &self.position;
        self.config.position.scheme().bias(&BiasCall { heads, scale, b, s_q, s_kv, grid, starts, device, state, cache })
    }

    /// The output of a layer without heads: the bias of the output projection for each query.
    pub(super) fn without_heads(&self, query: &Tensor) -> Result<Tensor> {
        let mut shape = query.dims().to_vec();
        shape.pop();
        shape.push(self.config.resolved_output_size());
        let zeros = || Tensor::zeros(&*shape, query.dtype(), query.device());
        let output = self.o_proj.bias()?.map_or_else(zeros, |bias| bias.broadcast_as(&*shape))?;
        self.wrapped_output(OUTPUT, output)
    }
}

impl OpenCall<'_> {
    /// Chooses the route of the call, and joins its mask with the bias of the position scheme where the route needs it
    /// there.
    fn choose_route(&mut self) -> Result<()> {
        let layer = self.layer;
        let on_cpu_kernel = self.counted.stored.is_none() && sdpa::runs_on_cpu_kernel(&self.sizes, &self.sdpa);
        // Keep bf16: the next product rounds to it anyway.
        if layer.dtype() == DType::BF16 && on_cpu_kernel && layer.qkv.rounds_to_bf16()? {
            self.sizes.dtype = DType::BF16;
        }
        let needs_padding = self.options.need_padding(layer.config.dropout);
        let is_self_attention = self.xs[1].id() == self.xs[0].id() && self.xs[2].id() == self.xs[0].id();
        let on_rows = is_self_attention && !needs_padding && on_cpu_kernel && layer.supports_rows();
        let rows = if on_rows { self.tokens.rows(&self.sdpa.mask) } else { None };
        let ragged = self.tokens.ragged();
        let (batch, device, shape) = (ragged.map(|(_, batch)| batch), self.xs[0].device(), self.sizes.shape);
        let bias = match (&rows, ragged) {
            // Buffers hold a few sequences at a time, which have a bias of their own.
            (Some(_), Some(_)) => None,
            _ => layer.position_bias(shape, self.options.grid, self.counted.starts(), device, batch)?,
        };
        if let Some(bias) = bias {
            bias.check(shape)?;
            self.sdpa.mask = Cow::Owned(AttentionMask::clone(&self.sdpa.mask).and(bias));
        } else if let Some((lengths, mask)) = rows {
            self.route = Route::Rows { lengths, mask };
            return Ok(());
        }
        self.route = if ragged.is_none() {
            Route::Tensors(Plan::choose(&self.sizes, &self.sdpa)?)
        } else {
            let whole = needs_padding
                || self.xs[0].dim(0)? == 0
                || self.sdpa.appended_keys > 0
                || !layer.routes.ragged
                || !self.sdpa.mask.is_windowed();
            let backend = if whole { None } else { sdpa::ragged_backend(&self.sizes, &self.sdpa)? };
            backend.map_or(Route::Buckets, Route::Tensors)
        };
        self.absorbed = self.counted.new_tokens.as_ref().and_then(|_| layer.absorbed_call(&self.sizes, &self.sdpa));
        Ok(())
    }

    /// Runs the call. After an error, a cache is as it was.
    pub(super) fn run(mut self) -> Result<AttentionOutput> {
        let result = self.run_queries()?;
        self.layer.mechanisms.iter().try_fold(result, |result, mechanism| mechanism.finish(&self, result))
    }

    /// [`run`](Self::run) with all queries alike.
    fn run_queries(&mut self) -> Result<AttentionOutput> {
        if self.layer.config.num_attention_heads == 0 {
            let output = self.layer.without_heads(&self.xs[0])?;
            return Ok(AttentionOutput { output, attention_weights: None });
        }
        match std::mem::replace(&mut self.route, Route::Buckets) {
            Route::Rows { lengths, mask } => {
                let output = self.layer.attend_sequences(&self.xs[0], lengths, &mask)?;
                Ok(AttentionOutput { output, attention_weights: None })
            }
            Route::Buckets => self.run_buckets(self.tokens.ragged().map_or(&[], |(lengths, _)| lengths)),
            Route::Tensors(backend) => self.or_undone(|call| Ok(call.run_tensors(backend)?.0)),
        }
    }

    /// Runs the call over tensors, and returns its keys and values, too, for layers that have none of their own.
    pub(super) fn share(mut self) -> Result<(AttentionOutput, KeyValues)> {
        // Keys and values are shared, not latents.
        self.absorbed = None;
        let backend = match self.route {
            Route::Tensors(backend) => backend,
            _ => Plan::choose(&self.sizes, &self.sdpa)?,
        };
        let mask = self.tokens.shared_mask(&self.counted);
        let (output, key_values) = self.or_undone(|call| call.run_tensors(backend))?;
        let [keys, values] = wide(key_values, self.sizes.dtype)?;
        let tokens = self.xs[1].dim(1)?;
        let Counted { explicit, new_tokens, .. } = self.counted;
        Ok((output, KeyValues { keys, values, tokens, explicit, lengths: self.lengths, new_tokens, mask }))
    }

    /// The plan of the call: where a ragged batch has to be padded, that of the padded batch.
    pub(super) fn plan(self) -> Result<Plan> {
        let sizes = self.absorbed.map_or(self.sizes, |(sizes, _)| sizes);
        let plan = match (self.route, self.tokens.ragged()) {
            (Route::Buckets, Some((lengths, _))) => {
                let padded = self.sdpa.mask.clone().into_owned().and(AttentionMask::padding(lengths));
                Plan::new(&sizes, &self.sdpa.with_mask(padded))?
            }
            _ => Plan::new(&sizes, &self.sdpa)?,
        };
        Ok(Plan { quantization: self.layer.quantization().filter(|_| !self.layer.is_exact()), ..plan })
    }

    /// Calls `run`. After an error, a cache is as it was before.
    pub(super) fn or_undone<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let result = run(self);
        if result.is_err() {
            self.tokens.undo();
        }
        result
    }

    /// Runs the call over tensors on `backend`: its output, and its keys and values.
    fn run_tensors(&mut self, backend: Backend) -> Result<(AttentionOutput, [Tensor; 2])> {
        let [q, k, v] = self.keys(self.sizes.dtype)?;
        let offsets = self.tokens.ragged().map(|(lengths, _)| offsets(lengths));
        let (sizes, backend) = self.absorbed.unwrap_or((self.sizes, backend));
        let mut attended = sdpa::attend_call(backend, [&q, &k, &v], offsets.as_deref(), &sizes, &self.sdpa)?;
        if let (Some(latent), Some(_)) = (self.layer.qkv.latent(), self.absorbed) {
            attended.output = latent.values(&attended.output)?;
        }
        let mut attended = self.finish(attended, &v)?;
        if offsets.is_some() {
            attended.output = attended.output.squeeze(0)?;
        }
        Ok((attended, [k, v]))
    }

    /// Queries, keys and values in `dtype`, ready for attention.
    pub(super) fn keys(&mut self, dtype: DType) -> Result<[Tensor; 3]> {
        let (layer, xs, counted, options) = (self.layer, self.xs.each_ref(), &self.counted, self.options);
        let positions = counted.positions(self.lengths.as_deref(), options);
        let (tracks_gradient, absorbed) = (self.sizes.tracks_gradient, self.absorbed.is_some());
        let projection = Projection { layer, xs, counted, positions, dtype, tracks_gradient, absorbed, options };
        let qkv = self.tokens.keys(&projection, &mut self.sdpa.mask)?;
        self.layer.mechanisms.iter().try_fold(qkv, |qkv, mechanism| mechanism.qkv(qkv))
    }

    /// Applies the head mask, the norm and the gate of the context and the output projection to what attention returns.
    /// `values` are those that attention had.
    pub(super) fn finish(&self, attended: AttentionOutput, values: &Tensor) -> Result<AttentionOutput> {
        let (layer, dtype) = (self.layer, self.xs[0].dtype());
        let mut by_head = attended.output;
        if let Some(mask) = self.options.head_mask {
            let (b, _, h, _) = by_head.dims4()?;
            let sequences = if mask.rank() == 2 { b } else { 1 };
            by_head = by_head.broadcast_mul(&mask.to_dtype(by_head.dtype())?.reshape((sequences, 1, h, 1))?)?;
        }
        by_head = layer.mechanisms.iter().try_fold(by_head, |context, mechanism| mechanism.heads(self, context))?;
        let query = if self.tokens.ragged().is_some() { self.xs[0].unsqueeze(0)? } else { self.xs[0].clone() };
        let places = self.tokens.places();
        let context = layer.context(pack(places, &by_head)?, &pack(places, &query)?)?;
        let context = layer.wrapped_input(OUTPUT, &context)?;
        let output = layer.wrapped_output(OUTPUT, layer.o_proj.forward_in_dtype(&context, dtype)?)?;
        let output = pad(places, output)?;
        let add = |output: Tensor, each: &Arc<dyn Mechanism>| each.add_to_output(self, output, values);
        let output = layer.mechanisms.iter().try_fold(output, add)?;
        let attention_weights = attended.attention_weights.map(|weights| weights.to_dtype(dtype)).transpose()?;
        Ok(AttentionOutput { output, attention_weights })
    }
}
