//! Token ids of a padded batch with their mask.

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::tensor::{element_count, try_reserve};

/// Token ids of sequences of unequal length, padded at the end to the longest one.
///
/// ```
/// use candle_attention::PaddedIds;
/// use candle_core::Device;
/// let padded = PaddedIds::new(&[vec![5, 6, 7], vec![8]], 0, &Device::Cpu)?;
/// assert_eq!(padded.ids.to_vec2::<u32>()?, [[5, 6, 7], [8, 0, 0]]);
/// assert_eq!(padded.lengths, [3, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PaddedIds {
    /// Token ids and padding, `(b, s)` u32.
    pub ids: Tensor,
    /// `[b]`: the number of token ids of each sequence, without padding.
    pub lengths: Vec<usize>,
}

impl PaddedIds {
    /// Pads `sequences` with `pad_id` to the longest of them. A sequence may be empty.
    ///
    /// # Errors
    /// If there is no sequence, if all of them are empty, or if the padded ids do not fit into memory.
    pub fn new<S: AsRef<[u32]>>(sequences: &[S], pad_id: u32, device: &Device) -> Result<Self> {
        let lengths: Vec<usize> = sequences.iter().map(|s| s.as_ref().len()).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            let found = format!("{} sequences of 0 ids", sequences.len());
            return Err(Error::value("the list of sequences", found, "at least one id"));
        }
        let mut ids = Vec::new();
        try_reserve("padded ids", &mut ids, element_count("padded ids", &[sequences.len(), longest])?)?;
        for sequence in sequences {
            ids.extend_from_slice(sequence.as_ref());
            ids.resize(ids.len() + longest - sequence.as_ref().len(), pad_id);
        }
        Ok(Self { ids: Tensor::from_vec(ids, (sequences.len(), longest), device)?, lengths })
    }

    /// The mask for self-attention, [`AttentionMask::padding`]: padding is hidden as keys and, as queries, sees
    /// nothing. For cross-attention to these tokens use [`AttentionMask::lengths`] with [`lengths`](Self::lengths).
    pub fn mask(&self) -> AttentionMask {
        AttentionMask::padding(&self.lengths)
    }
}
