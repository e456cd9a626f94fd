//! One call of a layer: opened once, whatever its kind of tokens, and then run, planned, observed or shared.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::KeyValues;
use crate::attention::limits::OUTPUT;
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::attention::tokens::{CallTokens, Counted, Projection};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::{PendingBias, Quantization, accumulate_dtype};
use crate::position::{BiasCall, ExplicitPositions};
use crate::ragged::{BatchCache, offsets};
use crate::sdpa;
use crate::sdpa::{AttentionOutput, Backend, Call, DeviceKind, Plan, SdpaOptions};
use crate::tensor::{check_float, element_count, same_dtype_and_device, wide};
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
    /// The format of few bits that products round their inputs to.
    quantization: Option<Quantization>,
}

/// What a call returns: its output, whose last bias may be left to the next operation, and the attention weights, if
/// the options ask for them.
pub(super) struct CallOutput {
    pub output: PendingBias,
    pub attention_weights: Option<Tensor>,
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
    /// Opens a call and gives it to `then`. Every call of the layer comes through here.
    pub(super) fn open<T>(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        then: impl FnOnce(OpenCall) -> Result<T>,
    ) -> Result<T> {
        self.check_required(inputs, options)?;
        self.open_given(inputs, options, then)
    }

    /// [`open`](Self::open) for inputs that hold what the layer requires.
    pub(super) fn open_given<T>(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        then: impl FnOnce(OpenCall) -> Result<T>,
    ) -> Result<T> {
        let mut tokens = inputs.kind()?;
        let b = tokens.check(self, inputs, options)?;
        self.check_options(inputs.query, b, options)?;
        self.check_given(inputs, options)?;
        self.check_global(inputs, options)?;
        let [query, key] = inputs.with_vectors()?;
        let xs = [query, key, inputs.value.clone()];
        let mask = match options.global_tokens {
            Some(global) => Cow::Owned(self.with_global_keys(&inputs.mask, global)?),
            None => self.with_own_mask(&inputs.mask),
        };
        let (counted, mask) = tokens.count(self, &xs, options, mask)?;
        let exact = self.exact_for(&xs, &counted, &mask, options);
        let layer = exact.as_ref().unwrap_or(self);
        let call = layer.prepare(xs, &inputs.mask, options, tokens, counted, mask)?;
        then(OpenCall { quantization: call.quantization.filter(|_| exact.is_none()), ..call })
    }

    /// Prepares a call that is checked: its sizes, its whole mask, its positions, and how it runs. Nothing is computed,
    /// and a cache does not change.
    fn prepare<'a>(
        &'a self,
        xs: [Tensor; 3],
        given: &'a AttentionMask,
        options: &'a AttentionOptions<'a>,
        tokens: Box<dyn CallTokens + 'a>,
        counted: Counted,
        mask: Cow<'a, AttentionMask>,
    ) -> Result<OpenCall<'a>> {
        let Counted { b, s_q, s_kv, .. } = counted;
        let shape = AttnShape { b, h: self.config.num_attention_heads, s_q, s_kv };
        let mask = self.with_score_bias(mask, shape, options)?;
        self.check_keys(&xs, s_kv)?;
        mask.check(shape)?;
        if tokens.ragged().is_none() {
            element_count("the output of attention", &[b, s_q, shape.h, self.config.resolved_value_head_dim()])?;
        }
        let lengths = tokens.lengths(&mask, &counted);
        self.check_convolved(&counted)?;
        // Sequences of a ragged batch have blocks of their own, once they are padded.
        let (mask, shape) = if tokens.ragged().is_some() {
            (mask, shape)
        } else {
            self.check_blocks(&counted)?;
            self.with_blocks(mask, shape, xs[0].device())?
        };
        let mut sdpa = self.sdpa_options(mask, options)?;
        if self.capabilities.reshapes {
            self.check_whole(&*tokens, &counted, &sdpa.mask)?;
            if self.config.between_channels && s_q > 0 {
                sdpa.scale = Some((s_q as f64).powf(-0.5));
            }
        }
        let (sizes, on_cpu_kernel) = self.sizes(shape, &xs, &counted, &sdpa)?;
        let route = self.route(&xs, options, (&*tokens, &counted), (&sizes, on_cpu_kernel), &mut sdpa)?;
        let absorbed = counted.new_tokens.as_ref().and_then(|_| self.absorbed_call(&sizes, &sdpa));
        let (layer, mask, quantization) = (self, given, self.quantization());
        Ok(OpenCall { layer, xs, mask, options, tokens, counted, lengths, sizes, sdpa, route, absorbed, quantization })
    }

    /// The layer for a call in training, whose weights in few bits are multiplied exactly in all projections; `None`
    /// for every other call and layer. `mask` is that of the call, of the layer and of the tokens.
    fn exact_for(
        &self,
        xs: &[Tensor; 3],
        counted: &Counted,
        mask: &AttentionMask,
        options: &AttentionOptions,
    ) -> Option<Self> {
        let cos_sin = options.cos_sin.into_iter().flatten();
        let given = [options.head_mask, options.score_bias].into_iter().flatten().chain(cos_sin);
        let in_training = options.train
            || xs.iter().chain(given).any(Tensor::track_op)
            || counted.stored.is_some_and(|(_, tracked)| tracked)
            || mask.tracks_gradient();
        self.exact_if(in_training)
    }

    /// The layer with exact products of its weights in few bits, if it has such and is `in_training`, or has variables.
    pub(super) fn exact_if(&self, in_training: bool) -> Option<Self> {
        self.quantization()?;
        (in_training || self.tracks_gradient() || self.o_proj.tracks_gradient()).then(|| {
            let mut exact = self.clone();
            exact.set_exact();
            exact
        })
    }

    /// Sizes, dtype, device and gradients of a call, and whether it runs on the CPU kernel for inference.
    fn sizes(&self, shape: AttnShape, xs: &[Tensor; 3], counted: &Counted, sdpa: &SdpaOptions) -> Result<(Call, bool)> {
        let config = &self.config;
        let mut sizes = Call {
            shape,
            h_kv: config.resolved_num_key_value_heads(),
            d: config.resolved_head_dim(),
            d_v: config.resolved_value_head_dim(),
            dtype: counted.stored.map_or_else(|| accumulate_dtype(self.qkv.like()), |(dtype, _)| dtype),
            device: DeviceKind::from_device(xs[0].device()),
            distance_embeddings: config.position.scheme().distance_embedding_count(shape.s_kv),
            tracks_gradient: xs.iter().any(Tensor::track_op)
                || self.tracks_gradient()
                || counted.stored.is_some_and(|(_, tracked)| tracked)
                || sdpa.mask.tracks_gradient(),
        };
        if self.capabilities.reshapes {
            sizes = self.reshaped_sizes(sizes);
        }
        // Elements that would be rounded before their next product anyway are not kept in f32.
        let on_cpu_kernel = counted.stored.is_none() && sdpa::runs_on_cpu_kernel(&sizes, sdpa);
        if on_cpu_kernel && self.dtype() == DType::BF16 && self.qkv.rounds_to_bf16()? {
            sizes.dtype = DType::BF16;
        }
        Ok((sizes, on_cpu_kernel))
    }

    /// How a call runs. Joins the mask of `sdpa` with the bias of the position scheme, where the route needs it there.
    fn route(
        &self,
        xs: &[Tensor; 3],
        options: &AttentionOptions,
        (tokens, counted): (&dyn CallTokens, &Counted),
        (sizes, on_cpu_kernel): (&Call, bool),
        sdpa: &mut SdpaOptions,
    ) -> Result<Route> {
        let needs_padding = options.need_padding(self.config.dropout);
        let is_self_attention = xs[1].id() == xs[0].id() && xs[2].id() == xs[0].id();
        let on_rows = on_cpu_kernel && is_self_attention && !needs_padding && self.supports_rows();
        let rows = if on_rows { tokens.rows(&sdpa.mask) } else { None };
        let ragged = tokens.ragged();
        // Buffers hold a few sequences at a time, which have a bias of their own.
        if rows.is_none() || ragged.is_none() {
            let batch = ragged.map(|(_, batch)| batch);
            let bias = self.position_bias(sizes.shape, options.grid, counted.starts(), xs[0].device(), batch)?;
            match (bias, rows) {
                (None, Some((lengths, mask))) => return Ok(Route::Rows { lengths, mask }),
                (None, None) => {}
                (Some(bias), _) => {
                    bias.check(sizes.shape)?;
                    sdpa.mask = Cow::Owned(AttentionMask::clone(&sdpa.mask).and(bias));
                }
            }
        } else if let Some((lengths, mask)) = rows {
            return Ok(Route::Rows { lengths, mask });
        }
        if ragged.is_none() {
            return Ok(Route::Tensors(Plan::choose(sizes, sdpa)?));
        }
        let on_tensors = self.capabilities.ragged_tensors && sdpa.mask.is_windowed();
        let whole = needs_padding || xs[0].dim(0)? == 0 || sdpa.appended_keys > 0 || !on_tensors;
        let backend = if whole { None } else { sdpa::ragged_backend(sizes, sdpa)? };
        Ok(backend.map_or(Route::Buckets, Route::Tensors))
    }

    /// Checks what a call over `b` sequences asks for.
    fn check_options(&self, query: &Tensor, b: usize, options: &AttentionOptions) -> Result<()> {
        if let Some([rows, columns]) = options.grid
            && !self.config.position.scheme().traits().uses_grid
        {
            let allowed = format!("none: the layer's positions are {}", self.config.position);
            return Err(Error::config("grid", format!("{rows} x {columns}"), allowed));
        }
        if let Some(mask) = options.head_mask {
            let h = self.config.num_attention_heads;
            if mask.dims() != [h] && mask.dims() != [b, h] {
                return Err(Error::shape("head_mask", mask.dims(), format!("[{h}] or [{b}, {h}]")));
            }
            check_float("head_mask", mask)?;
            same_dtype_and_device("head_mask", &mask.to_dtype(query.dtype())?, query)?;
        }
        Ok(())
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
        if position.scheme().accepts_positions(explicit.axes()) {
            // Without a sequence there is no position to be asked for.
            return Ok(Some(explicit).filter(|_| b > 0));
        }
        if position.scheme().accepts_positions(1) {
            let found = format!("{} per token", explicit.axes());
            return Err(Error::value("the number of positions", found, format!("1: the layer has {position}")));
        }
        let allowed = format!("none: the layer's positions are {position}, which follow from the order of the tokens");
        Err(Error::config("positions", "given by the call", allowed))
    }

    /// Whether a weight is a variable or depends on one, except for those of the output projection, which comes after
    /// the choice of a backend.
    pub(super) fn tracks_gradient(&self) -> bool {
        self.parameters.tracks_gradient() || self.position.tracks_gradient() || self.qkv.tracks_gradient()
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

    /// The options of the layer and of the call for `sdpa`.
    fn sdpa_options<'a>(&'a self, mask: Cow<'a, AttentionMask>, options: &AttentionOptions) -> Result<SdpaOptions<'a>> {
        Ok(SdpaOptions {
            scale: Some(self.config.resolved_scale()),
            appended_keys: usize::from(self.config.add_bias_kv) + usize::from(self.config.add_zero_attn),
            softcap: self.config.softcap,
            sinks: self.parameters.get(SINKS),
            additive: self.parameters.get(SCORE),
            value_distances: self.config.position.scheme().value_distances(&self.position)?,
            dropout: if options.train { self.config.dropout } else { 0.0 },
            dropout_seed: options.dropout_seed,
            return_attention_weights: options.return_attention_weights,
            backend: options.backend,
            ..SdpaOptions::new(mask)
        })
    }

    /// The output of a layer without heads: the bias of the output projection for each query.
    pub(super) fn without_heads(&self, query: &Tensor) -> Result<Tensor> {
        let mut shape = query.dims().to_vec();
        shape.pop();
        shape.push(self.config.resolved_output_size());
        let zeros = || Tensor::zeros(&*shape, query.dtype(), query.device());
        let output = self.o_proj.bias()?.map_or_else(zeros, |bias| bias.broadcast_as(&*shape))?;
        self.limited_output(OUTPUT, &output)
    }
}

impl OpenCall<'_> {
    /// Runs the call. After an error, a cache is as it was.
    pub(super) fn run(mut self) -> Result<CallOutput> {
        let output = self.run_own()?;
        self.with_global_queries(output)
    }

    /// [`run`](Self::run) with all queries alike.
    fn run_own(&mut self) -> Result<CallOutput> {
        if self.layer.config.num_attention_heads == 0 {
            let output = self.layer.without_heads(&self.xs[0])?.into();
            return Ok(CallOutput { output, attention_weights: None });
        }
        match std::mem::replace(&mut self.route, Route::Buckets) {
            Route::Rows { lengths, mask } => {
                let output = self.layer.attend_sequences(&self.xs[0], lengths, &mask)?.into();
                Ok(CallOutput { output, attention_weights: None })
            }
            Route::Buckets => self.run_buckets(self.tokens.ragged().map_or(&[], |(lengths, _)| lengths)),
            Route::Tensors(backend) => self.or_undone(|call| Ok(call.run_tensors(backend)?.0)),
        }
    }

    /// Runs the call over tensors, and returns its keys and values, too, for layers that have none of their own.
    pub(super) fn share(mut self) -> Result<(CallOutput, KeyValues)> {
        if self.layer.capabilities.reshapes {
            let found = "channels in place of tokens, pooled queries, or pairs of heads";
            return Err(Error::value("the layer whose keys are to be shared", found, "one that compares its tokens"));
        }
        if self.layer.config.latent.is_some_and(|latent| latent.multi_query) {
            return Err(Error::value(
                "the layer whose keys are to be shared",
                "a key that is its value, too",
                "another",
            ));
        }
        if self.options.global_tokens.is_some() {
            let expected = "none: they have keys of their own";
            return Err(Error::value("`global_tokens` of a call whose keys are to be shared", "given", expected));
        }
        // What is shared is keys and values, not latents.
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
        Ok(Plan { quantization: self.quantization, ..plan })
    }

    /// What `run` returns; after an error, a cache is as it was before.
    pub(super) fn or_undone<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let result = run(self);
        if result.is_err() {
            self.tokens.undo();
        }
        result
    }

    /// Runs the call over tensors on `backend`: its output, and its keys and values.
    fn run_tensors(&mut self, backend: Backend) -> Result<(CallOutput, [Tensor; 2])> {
        let [q, k, v] = self.keys(self.sizes.dtype)?;
        let offsets = self.tokens.ragged().map(|(lengths, _)| offsets(lengths));
        let (sizes, backend) = self.absorbed.unwrap_or((self.sizes, backend));
        let mut attended = sdpa::attend_call(backend, [&q, &k, &v], offsets.as_deref(), &sizes, &self.sdpa)?;
        if let (Some(latent), Some(_)) = (self.layer.qkv.latent(), self.absorbed) {
            attended.output = latent.values(&attended.output)?;
        }
        let CallOutput { output, attention_weights } = self.finish(attended, &v)?;
        let output = if offsets.is_some() { output.map(|ys| ys.squeeze(0))? } else { output };
        Ok((CallOutput { output, attention_weights }, [k, v]))
    }

    /// Queries, keys and values in `dtype`, ready for attention.
    pub(super) fn keys(&mut self, dtype: DType) -> Result<[Tensor; 3]> {
        let projection = Projection {
            layer: self.layer,
            xs: self.xs.each_ref(),
            counted: &self.counted,
            positions: self.counted.positions(self.lengths.as_deref(), self.options),
            dtype,
            tracks_gradient: self.sizes.tracks_gradient,
            absorbed: self.absorbed.is_some(),
            grid: self.options.grid,
            token_types: self.options.token_types,
        };
        let qkv = self.tokens.keys(&projection, &mut self.sdpa.mask)?;
        if self.layer.capabilities.reshapes { self.layer.reshaped(qkv) } else { Ok(qkv) }
    }

    /// Applies the head mask, the norm and the gate of the context and the output projection to what attention returns.
    /// `values` are those that attention had.
    pub(super) fn finish(&self, attended: AttentionOutput, values: &Tensor) -> Result<CallOutput> {
        let (layer, dtype) = (self.layer, self.xs[0].dtype());
        let mut by_head = self.rotated_back(attended.output)?;
        if let Some(mask) = self.options.head_mask {
            let (b, _, h, _) = by_head.dims4()?;
            let sequences = if mask.rank() == 2 { b } else { 1 };
            by_head = by_head.broadcast_mul(&mask.to_dtype(by_head.dtype())?.reshape((sequences, 1, h, 1))?)?;
        }
        if layer.capabilities.reshapes {
            by_head = layer.reshaped_back(by_head)?;
        }
        let (b, s_q, h, d_v) = by_head.dims4()?;
        let (mut context, places) = (by_head.reshape((b, s_q, h * d_v))?, self.tokens.places());
        let query = if self.tokens.ragged().is_some() { self.xs[0].unsqueeze(0)? } else { self.xs[0].clone() };
        context = match places {
            Some(places) => layer.gated(places.pack(&context)?, &places.pack(&query)?)?,
            None => layer.gated(context, &query)?,
        };
        let context = layer.limited_input(OUTPUT, &context)?;
        let mut output = if layer.capabilities.has_limits {
            layer.limited_output(OUTPUT, &layer.o_proj.forward_in_dtype(&context, dtype)?)?.into()
        } else if context.dtype() == dtype {
            layer.o_proj.forward_pending_bias(&context)?
        } else {
            layer.o_proj.forward_in_dtype(&context, dtype)?.into()
        };
        if let Some(places) = places {
            output = output.map(|ys| Ok(places.pad(&ys)?))?;
        }
        let output = self.with_convolved_values(output, values)?;
        let attention_weights = attended.attention_weights.map(|weights| weights.to_dtype(dtype)).transpose()?;
        Ok(CallOutput { output, attention_weights })
    }
}
