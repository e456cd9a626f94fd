//! Plans: what would run a call, for every kind of call.

use candle_core::Tensor;

use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::error::Result;
use crate::mask::AttentionMask;
use crate::sdpa;
use crate::sdpa::Plan;

impl MultiHeadAttention {
    /// The backend that would run [`attend_with`](Self::attend_with), why each other one would not, and the scratch memory
    /// in bytes.
    ///
    /// # Errors
    /// Those of [`attend_with`](Self::attend_with).
    pub fn plan(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<Plan> {
        self.check(inputs, options)?;
        let s_kv = inputs.key.dim(1)?;
        let mask = self.mask_with_bias(inputs, inputs.query.dim(1)?, s_kv, None, None)?;
        let inputs = inputs.under(&*mask);
        let options = self.sdpa_options(&inputs, options);
        let call = self.call(&inputs, &options, s_kv)?;
        inputs.mask.check(call.shape)?;
        Plan::new(&call, &options)
    }

    /// [`plan`](Self::plan) of [`attend_ragged_with`](Self::attend_ragged_with). Where the batch has to be padded, it is
    /// the plan of the padded batch.
    ///
    /// # Errors
    /// Those of [`attend_ragged_with`](Self::attend_ragged_with).
    pub fn plan_ragged(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        mask: &AttentionMask,
        options: &AttentionOptions,
    ) -> Result<Plan> {
        self.check_ragged(xs, lengths, mask)?;
        let (b, s) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        let xs = xs.unsqueeze(0)?;
        let inputs = AttentionInputs::self_attention(&xs, mask);
        let mask = self.mask_with_bias(&inputs, s, s, None, None)?;
        let inputs = inputs.under(&*mask);
        let sdpa_options = self.sdpa_options(&inputs, options);
        let mut call = self.call(&inputs, &sdpa_options, s)?;
        (call.shape.b, call.shape.s_q) = (b, s);
        let appended = sdpa_options.appended_keys > 0;
        let on_tensors = self.config.position.scheme().ragged_support().on_tensors();
        let unpadded = !appended && (on_tensors || self.supports_cpu_ragged());
        if unpadded
            && !options.need_padding(self.config.dropout)
            && sdpa::ragged_backend(&call, &sdpa_options)?.is_some()
        {
            return Plan::new(&call, &sdpa_options);
        }
        let padded = sdpa_options.mask.clone().into_owned().and(AttentionMask::padding(lengths));
        Plan::new(&call, &sdpa_options.with_mask(padded))
    }
}
