//! What would run a call with a cache.

use std::borrow::Cow;

use candle_core::Tensor;

use super::append::unequal;
use super::cross::CrossCache;
use super::kv_cache::KvCache;
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::sdpa::Plan;

impl MultiHeadAttention {
    /// [`plan`](Self::plan) of [`attend_cached`](Self::attend_cached), or with `lengths` of
    /// [`attend_cached_lengths`](Self::attend_cached_lengths). The cache is not changed.
    ///
    /// # Errors
    /// Those of [`attend_cached_lengths`](Self::attend_cached_lengths).
    pub fn plan_cached(
        &self,
        inputs: &AttentionInputs,
        lengths: Option<&[usize]>,
        cache: &KvCache,
        options: &AttentionOptions,
    ) -> Result<Plan> {
        self.check(inputs, options)?;
        let new = self.check_cached(inputs, lengths, cache, options)?.counts;
        let (s, s_kv) = (inputs.query.dim(1)?, cache.mask_columns(&new));
        let held = cache.rows_of(new.len()).iter().map(|row| row.held).collect();
        let unequal = unequal(held, &new, s);
        let mask = cache.mask(&inputs.mask, unequal.as_ref());
        let inputs = inputs.under(&mask);
        let mask = self.mask_with_bias(&inputs, s, s_kv, unequal.as_ref().map(|[starts, _]| &starts[..]), None)?;
        let inputs = inputs.under(&*mask);
        let sdpa_options = self.sdpa_options(&inputs, options);
        let mut call = self.call(&inputs, &sdpa_options, s_kv)?;
        call.dtype = self.dtype();
        call.tracks_gradient |= cache.tracks_gradient();
        Plan::new(&call, &sdpa_options)
    }

    /// [`plan`](Self::plan) of [`attend_cross_cached`](Self::attend_cross_cached).
    ///
    /// # Errors
    /// Those of [`attend_cross_cached`](Self::attend_cross_cached).
    pub fn plan_cross_cached<'a>(
        &self,
        queries: &'a Tensor,
        mask: impl Into<Cow<'a, AttentionMask>>,
        cache: &CrossCache,
        options: &AttentionOptions,
    ) -> Result<Plan> {
        self.check_cross(queries, cache, options)?;
        let mask = mask.into();
        let mask = self.with_own_mask(&mask);
        let inputs = AttentionInputs::self_attention(queries, &*mask);
        let sdpa_options = self.sdpa_options(&inputs, options);
        let mut call = self.call(&inputs, &sdpa_options, cache.len())?;
        call.dtype = self.dtype();
        call.tracks_gradient |= cache.keys.track_op() || cache.values.track_op();
        inputs.mask.check(call.shape)?;
        Plan::new(&call, &sdpa_options)
    }
}
