//! Forward of sequences of unequal length: ragged where the device has a kernel for that, else padded by buckets.

use candle_attention::ragged::{Bucket, buckets, padded_places};
use candle_attention::{AttentionMask, Error, PaddedIds, Result};
use candle_core::Tensor;

use crate::model::bert::BertModel;
use crate::model::hidden_states::HiddenStates;

impl BertModel {
    /// Hidden states of sequences of ids and segment types: without any work on padding, and with the same result for a
    /// sequence in any batch, where the model [supports ragged batches](Self::supports_ragged).
    pub(crate) fn forward_sequences(&self, ids: &[&[u32]], types: &[&[u32]]) -> Result<HiddenStates> {
        let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
        match self.supports_ragged() {
            true => {
                Ok(HiddenStates { tokens: self.forward_ragged(&ids.concat(), &types.concat(), &lengths)?, lengths })
            }
            false => self.forward_buckets(ids, types, None),
        }
    }

    /// Hidden states of sequences, those of like length padded together: in the dtype of the model, differentiable, and
    /// `(b, s, hidden_size)` if they are one bucket. The tokens of sequence `i` attend to all of it, or to its first
    /// `visible[i]` tokens.
    pub(crate) fn forward_buckets(
        &self,
        ids: &[&[u32]],
        types: &[&[u32]],
        visible: Option<&[usize]>,
    ) -> Result<HiddenStates> {
        let lengths: Vec<usize> = ids.iter().map(|ids| ids.len()).collect();
        let buckets = buckets(&lengths);
        let forward = |bucket: &Bucket| {
            let pad = |rows: &[&[u32]], with| {
                let rows: Vec<&[u32]> = bucket.sequences.iter().map(|&i| rows[i]).collect();
                Ok::<_, Error>(PaddedIds::new(&rows, with, self.device())?.ids)
            };
            let (ids, types) = (pad(ids, self.config.pad_token_id)?, pad(types, 0)?);
            let of_bucket = |all: &[usize]| bucket.sequences.iter().map(|&i| all[i]).collect::<Vec<_>>();
            let mask = match visible {
                Some(visible) => AttentionMask::lengths(&of_bucket(visible)),
                None if self.blocks.iter().any(|block| block.attention().rotates_for_length()) => {
                    AttentionMask::padding(&of_bucket(&lengths))
                }
                None => AttentionMask::lengths(&of_bucket(&lengths)),
            };
            self.forward(&ids, Some(&types), &mask)
        };
        let tokens = match buckets.as_slice() {
            [] => Tensor::zeros((0, self.config.hidden_size), self.dtype(), self.device())?,
            [one] if one.sequences.len() == ids.len() => forward(&Bucket::of_all(&lengths))?,
            several => {
                let padded =
                    several.iter().map(|bucket| Ok(forward(bucket)?.flatten(0, 1)?)).collect::<Result<Vec<_>>>()?;
                let places = Tensor::new(padded_places(several, &lengths), self.device())?;
                Tensor::cat(&padded, 0)?.index_select(&places, 0)?
            }
        };
        Ok(HiddenStates { tokens, lengths })
    }
}
