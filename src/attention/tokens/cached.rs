//! The next tokens of sequences in a cache, which takes their keys and values.

use std::borrow::Cow;
use std::sync::MutexGuard;

use candle_core::Tensor;

use super::padded::check_padded;
use super::{CallTokens, Counted, NewPlaces, Projection};
use crate::attention::MultiHeadAttention;
use crate::attention::cache::{KvCache, NewTokens, Snapshot, TokenShape};
use crate::attention::options::{AttentionInputs, AttentionOptions};
use crate::attention::transform::Stored;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ops::accumulate_dtype;

pub(super) struct Cached<'a, 'b> {
    pub cache: MutexGuard<'a, &'b mut KvCache>,
    /// The new tokens of each sequence, if some of them are padding.
    pub lengths: Option<&'a [usize]>,
    pub places: Option<NewPlaces>,
    /// The cache as it was before it took the new tokens; `None` until then.
    pub before: Option<Snapshot>,
}

impl Cached<'_, '_> {
    /// The new tokens of a call under `mask`, that of the call and of the layer, and the number of keys. Checks
    /// everything that can be checked before the call runs.
    fn new_tokens(
        &self,
        layer: &MultiHeadAttention,
        [query, key, value]: &[Tensor; 3],
        options: &AttentionOptions,
        mask: &AttentionMask,
    ) -> Result<(NewTokens, usize)> {
        let cache = &**self.cache;
        let config = &layer.config;
        let scheme = config.position.scheme();
        if scheme.traits().needs_full_sequence {
            let allowed = "a scheme that works with a cache; this one needs the whole sequence";
            return Err(Error::config("position", &config.position, allowed));
        }
        let (b, s, _) = query.dims3()?;
        if key.dim(1)? != s {
            let found = format!("{s} queries and {} keys", key.dim(1)?);
            return Err(Error::value("a cached call", found, "as many new keys as new queries"));
        }
        let (h_kv, d, d_v) = match &config.latent {
            Some(latent) => (1, latent.cached_size() + config.cached_size(), 0),
            None => {
                (config.resolved_num_key_value_heads(), config.resolved_head_dim(), config.resolved_value_head_dim())
            }
        };
        let shape = cache.stored_shape(TokenShape { b, h_kv, d, d_v, dtype: layer.dtype() });
        cache.check_untracked(layer.tracks_gradient() || [query, key, value].into_iter().any(Tensor::track_op))?;
        let counts = cache.check_chunk(shape, layer.qkv.like(), s, self.lengths)?;
        cache.check_window(mask)?;
        let id = Some(layer.present_id()?);
        cache.check_layer(id)?;
        let explicit = layer.explicit_positions(options, b, s)?;
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
        Ok((NewTokens { layer: id, counts, unequal, starts, rotated_for, explicit }, s_kv))
    }
}

impl CallTokens for Cached<'_, '_> {
    fn check(&self, layer: &MultiHeadAttention, inputs: &AttentionInputs, _: &AttentionOptions) -> Result<usize> {
        check_padded(layer, inputs)
    }

    fn count<'m>(
        &mut self,
        layer: &MultiHeadAttention,
        xs: &[Tensor; 3],
        options: &AttentionOptions,
        mask: Cow<'m, AttentionMask>,
    ) -> Result<(Counted, Cow<'m, AttentionMask>)> {
        let (new, s_kv) = self.new_tokens(layer, xs, options, &mask)?;
        let (b, s, _) = xs[0].dims3()?;
        self.places = self.lengths.and_then(|lengths| NewPlaces::new([b, s], lengths));
        let mask = self.cache.mask(&mask, b, new.unequal.as_ref());
        let dtype = self.cache.call_dtype(layer.dtype(), accumulate_dtype(layer.qkv.like()));
        let stored = Some((dtype, self.cache.tracks_gradient()));
        Ok((Counted { new_tokens: Some(new), stored, ..Counted::new([b, s, s_kv]) }, Cow::Owned(mask)))
    }

    fn places(&self) -> Option<&NewPlaces> {
        self.places.as_ref()
    }

    fn shared_mask(&self, counted: &Counted) -> AttentionMask {
        let unequal = counted.new_tokens.as_ref().and_then(|new| new.unequal.as_ref());
        self.cache.mask(&AttentionMask::full(), counted.b, unequal)
    }

    fn keys(&mut self, projection: &Projection, _: &mut Cow<AttentionMask>) -> Result<[Tensor; 3]> {
        let Projection { layer, xs, counted, positions, dtype, tracks_gradient, .. } = projection;
        let (q, chunk) = layer.project(*xs, self.places.as_ref(), *dtype, positions)?;
        let new = counted.new_tokens.as_ref().expect("the new tokens are counted");
        self.before = Some(self.cache.snapshot());
        let stored = match chunk {
            Stored::KeyValues(chunk) => Stored::KeyValues(self.cache.add(chunk, new, *tracks_gradient)?),
            Stored::Latents(chunk) => Stored::Latents(self.cache.add(chunk, new, *tracks_gradient)?),
        };
        layer.compared(q, stored, projection)
    }

    fn undo(&mut self) {
        if let Some(before) = self.before.take() {
            self.cache.restore(before);
        }
    }
}
