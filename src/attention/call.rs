//! One call of the layer: checked once, prepared once, and run, whether its tokens are padded, ragged or cached.

use std::borrow::Cow;

use candle_core::{DType, Device, Tensor};

use crate::attention::MultiHeadAttention;
use crate::attention::cache::{CrossCache, KeyValues, KvCache, NewTokens, TokenShape};
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::attention::padded::NewPlaces;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::{PendingBias, accumulate_dtype};
use crate::position::{BiasCall, ExplicitPositions, TokenPositions};
use crate::ragged::{BatchCache, RaggedBatch, offsets};
use crate::sdpa;
use crate::sdpa::{AttentionOutput, Backend, Call, DeviceKind, Plan, SdpaOptions};
use crate::tensor::{element_count, same_dtype_and_device};

/// A call that is ready to run.
pub(super) struct PreparedCall<'a> {
    /// Sizes, dtype, device and gradients.
    pub call: Call,
    /// The options of the layer and of the call. Their mask is the whole one: that of the call, of the configuration
    /// and of the cache, and the bias of the position scheme.
    pub options: SdpaOptions<'a>,
    pub route: Route,
    /// The positions that the call gives.
    pub explicit: Option<ExplicitPositions>,
    /// The length of each sequence of a padded batch, if the mask has it.
    pub lengths: Option<Vec<usize>>,
    /// Those of a call with a cache, with their positions.
    pub new_tokens: Option<NewTokens>,
    /// The call in the absorbed form of latent attention, if it runs so, and its backend.
    pub absorbed: Option<(Call, Backend)>,
    /// What the cache adds to the mask, in a call that shares its keys and values.
    pub shared_mask: Option<AttentionMask>,
}

/// What a call returns: its output, whose last bias may be left to the next operation; the attention weights, if the
/// options ask for them; keys and values, if it shares them.
pub(super) struct Ran {
    pub output: PendingBias,
    pub attention_weights: Option<Tensor>,
    pub key_values: Option<KeyValues>,
}

impl Ran {
    fn of(output: PendingBias, attention_weights: Option<Tensor>) -> Self {
        Self { output, attention_weights, key_values: None }
    }
}

/// How a call runs.
pub(super) enum Route {
    /// In the buffers of the CPU kernel: sequences of these lengths, or whole ones, under a mask that is full, causal
    /// or a window.
    Rows { lengths: Option<Vec<usize>>, mask: AttentionMask },
    /// Over tensors, on this backend.
    Tensors(Backend),
    /// A ragged batch that is padded, sequences of like length together.
    Buckets,
}

impl PreparedCall<'_> {
    /// Where the tokens stand.
    pub(super) fn positions<'a>(
        &'a self,
        grid: Option<[usize; 2]>,
        ragged: Option<RaggedBatch<'a>>,
    ) -> TokenPositions<'a> {
        let Some(new) = &self.new_tokens else {
            let (explicit, lengths) = (self.explicit.as_ref(), self.lengths.as_deref());
            return TokenPositions { explicit, lengths, grid, ragged, ..TokenPositions::default() };
        };
        let alike = |all: &[usize]| all.iter().all(|each| *each == all[0]);
        let sequences = if alike(&new.starts) && alike(&new.rotated_for) { 1 } else { usize::MAX };
        let sequences = sequences.min(new.starts.len());
        TokenPositions {
            starts: &new.starts[..sequences],
            explicit: new.explicit.as_ref(),
            cos_sin: None,
            lengths: Some(&new.rotated_for[..sequences]),
            grid: None,
            ragged: None,
        }
    }
}

impl MultiHeadAttention {
    /// The output of a call, whose last bias may be left to the next operation, and the attention weights, if the
    /// options ask for them.
    pub(super) fn attended(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> Result<(PendingBias, Option<Tensor>)> {
        self.check_required(inputs, options)?;
        self.attended_as_given(inputs, options)
    }

    /// [`attended`](Self::attended) of inputs that hold what the layer requires.
    pub(super) fn attended_as_given(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> Result<(PendingBias, Option<Tensor>)> {
        let Ran { output, attention_weights, .. } = self.attended_in(inputs, options, false)?;
        Ok((output, attention_weights))
    }

    /// [`attended_as_given`](Self::attended_as_given), and the keys and values of a call that `shares` them.
    pub(super) fn attended_in(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        shares: bool,
    ) -> Result<Ran> {
        self.check(inputs, options)?;
        if self.config.num_attention_heads == 0 {
            return Ok(Ran::of(self.without_heads(inputs.query)?.into(), None));
        }
        let exact = self.exact_for(inputs, options);
        let layer = exact.as_ref().unwrap_or(self);
        let (mut cache, sums) = (inputs.lock_cache(), inputs.with_vectors()?);
        let inputs = &inputs.with_sums(&sums);
        let mut prepared = layer.prepare(inputs, options, cache.as_deref().map(|cache| &**cache))?;
        if shares {
            prepared.share(cache.as_deref().map(|cache| &**cache))?;
        }
        match cache.as_deref_mut() {
            Some(cache) => cache.or_unchanged(|cache| layer.run_call(inputs, options, prepared, Some(cache))),
            None => layer.run_call(inputs, options, prepared, None),
        }
    }

    fn run_call(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        mut prepared: PreparedCall,
        cache: Option<&mut KvCache>,
    ) -> Result<Ran> {
        let ragged = if let Tokens::Ragged(lengths) = inputs.tokens { Some(lengths) } else { None };
        let backend = match prepared.route {
            Route::Rows { lengths, mask } => {
                return Ok(Ran::of(self.attend_sequences(inputs.query, lengths, &mask)?.into(), None));
            }
            Route::Buckets => {
                let lengths = ragged.unwrap_or(&[]);
                let padded = self.attend_buckets(inputs, lengths, options)?;
                return Ok(Ran::of(padded.output.into(), padded.attention_weights));
            }
            Route::Tensors(backend) => backend,
        };
        let dtype = prepared.call.dtype;
        let [q, k, v] = self.transformed(inputs, &mut prepared, dtype, options, cache)?;
        let offsets = ragged.map(offsets);
        let (call, backend) = prepared.absorbed.unwrap_or((prepared.call, backend));
        let mut attended = sdpa::attend_call(backend, [&q, &k, &v], offsets.as_deref(), &call, &prepared.options)?;
        if let (Some(latent), Some(_)) = (self.qkv.latent(), prepared.absorbed) {
            attended.output = latent.values(&attended.output)?;
        }
        let (output, attention_weights) = self.finish(attended, inputs, options)?;
        let output = if ragged.is_some() { output.map(|ys| ys.squeeze(0))? } else { output };
        Ok(Ran { key_values: prepared.key_values([k, v], inputs), ..Ran::of(output, attention_weights) })
    }

    /// Checks inputs and options against the configuration and each other.
    pub(super) fn check(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<()> {
        let AttentionInputs { query, key, value, .. } = *inputs;
        if inputs.cache.is_some() && !matches!(inputs.tokens, Tokens::Padded) {
            return Err(Error::value("inputs with a key-value cache", "ragged or cross-cached", "new tokens, padded"));
        }
        self.check_source(inputs)?;
        let b = match &inputs.tokens {
            Tokens::Ragged(lengths) => {
                self.check_ragged(query, lengths, &inputs.mask)?;
                lengths.len()
            }
            _ => query.dims().first().copied().unwrap_or(0),
        };
        self.check_options(query, b, options)?;
        match &inputs.tokens {
            Tokens::Ragged(_) => {}
            Tokens::Memory(memory) => self.check_cross(query, memory)?,
            Tokens::Shared(shared) => self.check_shared(query, shared, options)?,
            Tokens::Padded => {
                self.check_input("query", query, self.config.resolved_query_size())?;
                self.check_input("key", key, self.config.resolved_key_size())?;
                if key.dims()[0] != b {
                    let [_, s_kv, size] = [0, 1, 2].map(|i| key.dims()[i]);
                    return Err(Error::shape("key", key.dims(), format!("[{b}, {s_kv}, {size}]")));
                }
                self.check_memory(key, value)?;
            }
        }
        self.check_given(inputs, options)
    }

    /// Checks what a call over `b` sequences asks for.
    fn check_options(&self, query: &Tensor, b: usize, options: &AttentionOptions) -> Result<()> {
        if let Some([rows, columns]) = options.grid
            && !self.config.position.scheme().uses_grid()
        {
            let allowed = format!("none: the layer's positions are {}", self.config.position);
            return Err(Error::config("grid", format!("{rows} x {columns}"), allowed));
        }
        if let Some(mask) = options.head_mask {
            let h = self.config.num_attention_heads;
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

    /// Checks queries against the layer and its cache for cross-attention.
    fn check_cross(&self, queries: &Tensor, cache: &CrossCache) -> Result<()> {
        self.check_input("query", queries, self.config.resolved_query_size())?;
        cache.check_layer(self)?;
        let b = queries.dim(0)?;
        if b != cache.batch_size() {
            let expected = format!("{}, as in the cache for cross-attention", cache.batch_size());
            return Err(Error::value("the batch size", b, expected));
        }
        Ok(())
    }

    /// Checks a ragged batch.
    fn check_ragged(&self, xs: &Tensor, lengths: &[usize], mask: &AttentionMask) -> Result<()> {
        let size = self.config.resolved_query_size();
        let tokens = lengths.iter().copied().fold(0, usize::saturating_add);
        match xs.dims() {
            [found, width] if *width == size => {
                if *found != tokens {
                    return Err(Error::value("the sum of lengths", tokens, format!("{found}, the tokens of xs")));
                }
            }
            dims => return Err(Error::shape("xs", dims, format!("(tokens, {size})"))),
        }
        if !mask.is_windowed() {
            return Err(Error::value("the mask of a ragged batch", mask, "full, causal or a window"));
        }
        if self.config.position.scheme().counts_tokens() && lengths.iter().any(|length| *length != lengths[0]) {
            let expected = format!("equal ones for {}", self.config.position);
            return Err(Error::value("the list of lengths", format!("{lengths:?}"), expected));
        }
        same_dtype_and_device("xs", xs, self.qkv.like())
    }

    /// Prepares a call that is [checked](Self::check): its sizes, its whole mask, its positions, and how it runs.
    /// Nothing is computed and `cache` does not change, so that this is also the plan of the call.
    pub(super) fn prepare<'a>(
        &'a self,
        inputs: &'a AttentionInputs,
        options: &AttentionOptions,
        cache: Option<&KvCache>,
    ) -> Result<PreparedCall<'a>> {
        let config = &self.config;
        let (query, device) = (inputs.query, inputs.query.device());
        let mut mask = self.with_own_mask(&inputs.mask);
        let (mut explicit, mut new_tokens) = (None, None);
        let (b, s_q, s_kv) = match (&inputs.tokens, cache) {
            (Tokens::Ragged(lengths), _) => {
                let longest = lengths.iter().copied().max().unwrap_or(0);
                (lengths.len(), longest, longest)
            }
            (Tokens::Memory(memory), _) => (query.dim(0)?, query.dim(1)?, memory.len()),
            (Tokens::Shared(shared), _) => {
                mask = Cow::Owned(mask.into_owned().and(shared.mask.clone()));
                (explicit, new_tokens) = (shared.explicit.clone(), shared.new_tokens.clone());
                (query.dim(0)?, query.dim(1)?, shared.len())
            }
            (Tokens::Padded, None) => {
                let (b, s_kv) = (query.dim(0)?, inputs.key.dim(1)?);
                explicit = self.explicit_positions(options, b, s_kv)?;
                (b, query.dim(1)?, s_kv)
            }
            (Tokens::Padded, Some(cache)) => {
                let (new, s_kv) = self.check_cached(inputs, options, cache, &mask)?;
                mask = Cow::Owned(cache.mask(&mask, new.unequal.as_ref()));
                new_tokens = Some(new);
                (query.dim(0)?, query.dim(1)?, s_kv)
            }
        };
        let shape = AttnShape { b, h: config.num_attention_heads, s_q, s_kv };
        mask = self.with_score_bias(mask, shape, options)?;
        self.check_latent(inputs, s_kv)?;
        self.check_key_count(s_kv)?;
        mask.check(shape)?;
        if query.rank() == 3 {
            element_count("the output of attention", &[b, s_q, shape.h, config.resolved_value_head_dim()])?;
        }
        let is_padded = matches!(inputs.tokens, Tokens::Padded) && cache.is_none();
        let end = |(sequence, &tokens): (usize, &usize)| {
            explicit.as_ref().map_or(tokens, |positions| positions.end(sequence, tokens))
        };
        let lengths = mask.padded_lengths().filter(|_| is_padded).map(|all| all.iter().enumerate().map(end).collect());
        let lengths = if let Tokens::Shared(shared) = inputs.tokens { shared.lengths.clone() } else { lengths };

        let mut sdpa_options = self.sdpa_options(mask, options)?;
        let from_cache = match &inputs.tokens {
            Tokens::Memory(memory) => Some(memory.tracks_gradient()),
            Tokens::Shared(shared) => Some(shared.tracks_gradient()),
            _ => cache.map(KvCache::tracks_gradient),
        };
        let tracked = [query, inputs.key, inputs.value].into_iter().any(Tensor::track_op)
            || self.tracks_gradient()
            || from_cache.unwrap_or(false)
            || sdpa_options.mask.tracks_gradient();
        let mut call = Call {
            shape,
            h_kv: config.resolved_num_key_value_heads(),
            d: config.resolved_head_dim(),
            d_v: config.resolved_value_head_dim(),
            // A cache holds keys and values in the dtype of the layer.
            dtype: match inputs.tokens {
                Tokens::Shared(shared) => shared.keys.dtype(),
                _ if from_cache.is_some() => self.dtype(),
                _ => accumulate_dtype(self.qkv.like()),
            },
            device: DeviceKind::of(device),
            distance_embeddings: config.position.scheme().distance_embedding_count(s_kv),
            tracks_gradient: tracked,
        };
        let on_cpu_kernel = from_cache.is_none() && sdpa::runs_on_cpu_kernel(&call, &sdpa_options);
        // Elements that would be rounded before their next product anyway are not kept in f32.
        if on_cpu_kernel && self.dtype() == DType::BF16 && self.qkv.rounds_to_bf16()? {
            call.dtype = DType::BF16;
        }
        let needs_padding = options.need_padding(config.dropout);
        let is_self_attention = inputs.key.id() == query.id() && inputs.value.id() == query.id();
        let mut rows = None;
        if on_cpu_kernel && is_self_attention && !needs_padding && self.supports_rows() {
            let mask = &sdpa_options.mask;
            rows = match &inputs.tokens {
                Tokens::Ragged(lengths) => Some((Some(lengths.to_vec()), AttentionMask::clone(mask))),
                _ if mask.is_windowed() => Some((None, AttentionMask::clone(mask))),
                _ => mask.as_padding().map(|(lengths, band)| (Some(lengths.to_vec()), band)),
            };
        }
        // Buffers hold a few sequences at a time, which have a bias of their own.
        let is_ragged = matches!(inputs.tokens, Tokens::Ragged(_));
        if rows.is_none() || !is_ragged {
            let own_batch = BatchCache::default();
            let batch = is_ragged.then(|| inputs.buffers.map_or(&own_batch, |buffers| &buffers.positions));
            let starts = new_tokens.as_ref().and_then(|new| new.unequal.as_ref()).map(|[starts, _]| &starts[..]);
            if let Some(bias) = self.position_bias(shape, options.grid, starts, device, batch)? {
                bias.check(shape)?;
                sdpa_options.mask = Cow::Owned(sdpa_options.mask.into_owned().and(bias));
                rows = None;
            }
        }
        let route = match rows {
            Some((lengths, mask)) => Route::Rows { lengths, mask },
            None if !is_ragged => Route::Tensors(Plan::choose(&call, &sdpa_options)?),
            None => {
                let on_tensors = config.position.scheme().ragged_support().on_tensors();
                let on_tensors = on_tensors && sdpa_options.mask.is_windowed();
                let whole = needs_padding || query.dim(0)? == 0 || sdpa_options.appended_keys > 0 || !on_tensors;
                let backend = if whole { None } else { sdpa::ragged_backend(&call, &sdpa_options)? };
                backend.map_or(Route::Buckets, Route::Tensors)
            }
        };
        let absorbed = if new_tokens.is_some() { self.absorbed_call(&call, &sdpa_options) } else { None };
        let shared_mask = None;
        Ok(PreparedCall { call, options: sdpa_options, route, explicit, lengths, new_tokens, absorbed, shared_mask })
    }

    /// Checks everything about a call with a cache that can be checked before it runs, under the mask of the call and
    /// of the configuration. Returns its new tokens and the number of keys.
    fn check_cached(
        &self,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
        cache: &KvCache,
        mask: &AttentionMask,
    ) -> Result<(NewTokens, usize)> {
        let config = &self.config;
        let scheme = config.position.scheme();
        if self.bias_kv.is_some() || config.add_zero_attn {
            return Err(Error::config("add_bias_kv or add_zero_attn", true, "false with a cache"));
        }
        if scheme.needs_full_sequence() {
            let allowed = "a scheme that works with a cache; this one needs the whole sequence";
            return Err(Error::config("position", &config.position, allowed));
        }
        let (b, s, _) = inputs.query.dims3()?;
        if inputs.key.dim(1)? != s {
            let found = format!("{s} queries and {} keys", inputs.key.dim(1)?);
            return Err(Error::value("a cached call", found, "as many new keys as new queries"));
        }
        let (h_kv, d, d_v) = match &config.latent {
            Some(latent) => (1, latent.cached_size(), 0),
            None => {
                (config.resolved_num_key_value_heads(), config.resolved_head_dim(), config.resolved_value_head_dim())
            }
        };
        let of = TokenShape { b, h_kv, d, d_v, dtype: self.dtype() };
        let counts = cache.check_chunk(of, self.device(), s, inputs.new_lengths)?;
        cache.check_window(mask)?;
        let layer = Some(self.present_id()?);
        cache.check_layer(layer)?;
        let explicit = self.explicit_positions(options, b, s)?;
        let sequences = cache.sequences_of(b);
        let starts: Vec<usize> = sequences.iter().map(|sequence| sequence.next_position()).collect();
        let last = |(start, count): (&usize, &usize)| start.saturating_add(*count).saturating_sub(1);
        let lasts =
            starts.iter().zip(&counts).map(last).filter(|last| explicit.is_none() && u32::try_from(*last).is_err());
        if let Some(last) = lasts.max() {
            return Err(Error::value("a position", last, "a number from 0 to 2^32 - 1"));
        }
        let length = |i: usize| match &explicit {
            Some(positions) => starts[i].max(positions.end(i, counts[i])),
            None => starts[i] + counts[i],
        };
        let rotated_for: Vec<usize> = (0..b).map(length).collect();
        // One run over all tokens must not rotate the cached keys otherwise.
        for (i, cached) in sequences.iter().enumerate().filter(|(i, cached)| cached.retained > 0 && counts[*i] > 0) {
            if scheme.rotation_class(cached.rotated_for) != scheme.rotation_class(rotated_for[i]) {
                return Err(Error::CachedRotation {
                    sequence: i,
                    cached: cached.retained,
                    rotated_for: cached.rotated_for,
                    length: rotated_for[i],
                    position: config.position.to_string(),
                });
            }
        }
        let unequal = cache.unequal(&counts, s);
        let s_kv = cache.mask_columns(&counts);
        Ok((NewTokens { layer, counts, unequal, starts, rotated_for, explicit }, s_kv))
    }

    /// Checks that a sequence has no more keys than the layer takes.
    pub(super) fn check_key_count(&self, keys: usize) -> Result<()> {
        match self.config.max_keys.filter(|most| keys > *most) {
            None => Ok(()),
            Some(most) => {
                let beyond = "beyond it an indexer chooses the keys, which this version does not run";
                Err(Error::value("the number of keys", keys, format!("at most `max_keys` = {most}: {beyond}")))
            }
        }
    }

    /// The positions that a call gives its `b` sequences of `s_kv` keys, if it does.
    fn explicit_positions(
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
        let mut others = self.bias_kv.iter().flatten().chain(&self.score).chain(&self.sinks);
        self.position.tracks_gradient()
            || self.qkv.tracks_gradient()
            || self.steps.tracks_gradient()
            || others.any(Tensor::track_op)
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
            appended_keys: usize::from(self.bias_kv.is_some()) + usize::from(self.config.add_zero_attn),
            softcap: self.config.softcap,
            sinks: self.sinks.as_ref(),
            additive: self.score.as_ref(),
            value_distances: self.config.position.scheme().value_distances(&self.position)?,
            dropout: if options.train { self.config.dropout } else { 0.0 },
            dropout_seed: options.dropout_seed,
            return_attention_weights: options.return_attention_weights,
            backend: options.backend,
            ..SdpaOptions::new(mask)
        })
    }

    /// Applies the head mask, the norm and the gate of the context and the output projection to the result of `sdpa`.
    pub(super) fn finish(
        &self,
        attended: AttentionOutput,
        inputs: &AttentionInputs,
        options: &AttentionOptions,
    ) -> Result<(PendingBias, Option<Tensor>)> {
        let (b, s_q, h, d_v) = attended.output.dims4()?;
        let dtype = inputs.query.dtype();
        let by_head = match options.head_mask {
            Some(mask) => {
                let sequences = if mask.rank() == 2 { b } else { 1 };
                let mask = mask.to_dtype(attended.output.dtype())?.reshape((sequences, 1, h, 1))?;
                attended.output.broadcast_mul(&mask)?
            }
            None => attended.output,
        };
        let (mut context, places) = (by_head.reshape((b, s_q, h * d_v))?, NewPlaces::of(inputs));
        let query =
            if let Tokens::Ragged(_) = inputs.tokens { inputs.query.unsqueeze(0)? } else { inputs.query.clone() };
        if let Some(places) = &places {
            context = self.gated(places.pack(&context)?, &places.pack(&query)?)?;
        } else {
            context = self.gated(context, &query)?;
        }
        let mut output = if context.dtype() == dtype {
            self.o_proj.forward_pending_bias(&context)?
        } else {
            self.o_proj.forward_in_dtype(&context, dtype)?.into()
        };
        if let Some(places) = &places {
            output = output.map(|ys| Ok(places.pad(&ys)?))?;
        }
        let attention_weights = attended.attention_weights.map(|weights| weights.to_dtype(dtype)).transpose()?;
        Ok((output, attention_weights))
    }

    /// The output of a layer without heads: the bias of the output projection for each query.
    pub(super) fn without_heads(&self, query: &Tensor) -> Result<Tensor> {
        let mut shape = query.dims().to_vec();
        shape.pop();
        shape.push(self.config.resolved_output_size());
        Ok(match self.o_proj.bias()? {
            Some(bias) => bias.broadcast_as(shape)?,
            None => Tensor::zeros(shape, query.dtype(), query.device())?,
        })
    }
}
