//! Queries that are the largest values of blocks of patches, so that there are as many queries as blocks (SAM 2).

use candle_core::Tensor;

use super::channels::{check_reshaped, check_whole, not_shared};
use crate::attention::AttentionOptions;
use crate::attention::mechanism::{Mechanism, MechanismRow, boxed};
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::{AttentionConfig, MechanismConfig};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::Call;

pub(super) const ROW: MechanismRow = MechanismRow {
    from_layer: |layer| Ok(boxed(layer.config.mechanisms.get::<PooledQueries>())),
    ..MechanismRow::NONE
};

/// The largest side of a block: the number of its patches is a `u32`.
const MAX_SIDE: usize = u16::MAX as usize;

/// The side of the blocks of patches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PooledQueries(usize);

impl AttentionConfig {
    /// Sets the side of the blocks of patches of which queries are the largest values, element by element, so that
    /// there are as many queries as blocks (Hiera as SAM 2 has it). Patches come row by row, in a square, such as a
    /// window of the image; such a layer has neither positions nor masks nor a cache.
    #[must_use]
    pub fn with_query_pool(mut self, query_pool: impl Into<Option<usize>>) -> Self {
        self.mechanisms.set(query_pool.into().map(PooledQueries));
        self
    }

    /// The side of the blocks of patches that make one query, if queries are pooled.
    pub fn query_pool(&self) -> Option<usize> {
        self.mechanisms.get::<PooledQueries>().map(|pooled| pooled.0)
    }
}

impl MechanismConfig for PooledQueries {
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        ensure!((2..=MAX_SIDE).contains(&self.0), Error::config("query_pool", self.0, "from 2 to 65,535"));
        check_reshaped(config)
    }

    fn reshapes(&self) -> bool {
        true
    }
}

impl Mechanism for PooledQueries {
    fn check_tokens(&self, tokens: &dyn CallTokens, counted: &Counted, mask: &AttentionMask) -> Result<()> {
        check_whole(tokens, counted, mask)?;
        let (s, side, block) = (counted.s_q, counted.s_q.isqrt(), self.0);
        if side * side != s || !side.is_multiple_of(block) {
            let expected = format!("a square whose side {block} divides");
            return Err(Error::value("the number of patches", s, expected));
        }
        Ok(())
    }

    fn check_sharing(&self, _: &AttentionOptions) -> Result<()> {
        Err(not_shared())
    }

    fn sizes(&self, sizes: Call) -> Call {
        Call { shape: AttnShape { s_q: sizes.shape.s_q / (self.0 * self.0), ..sizes.shape }, ..sizes }
    }

    fn qkv(&self, [q, k, v]: [Tensor; 3]) -> Result<[Tensor; 3]> {
        let ((b, s, h, d), block) = (q.dims4()?, self.0);
        let side = s.isqrt() / block;
        if b * side * h == 0 {
            return Ok([q.narrow(1, 0, side * side)?, k, v]);
        }
        // (b, rows, block, columns, block, h · d) -> (b, rows · columns, h, d)
        let blocks = q.reshape(vec![b, side, block, side, block, h * d])?;
        // candle's maximum loses NaN, and a sum does not.
        let nan = (&blocks * 0.0)?.sum((2, 4))?;
        Ok([(blocks.max(4)?.max(2)? + nan)?.reshape((b, side * side, h, d))?, k, v])
    }
}
