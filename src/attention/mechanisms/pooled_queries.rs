//! Queries that are the largest values of blocks of patches, so that there are as many queries as blocks (SAM 2).

use candle_core::Tensor;

use super::channels::{check_whole, not_shared};
use crate::attention::AttentionOptions;
use crate::attention::mechanism::Mechanism;
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::Call;

/// The side of the blocks of patches.
pub(super) struct PooledQueries(usize);

impl PooledQueries {
    pub(super) fn from_config(config: &AttentionConfig) -> Option<Self> {
        config.query_pool.map(Self)
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
        Ok([blocks.max(4)?.max(2)?.reshape((b, side * side, h, d))?, k, v])
    }
}
