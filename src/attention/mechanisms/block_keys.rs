//! Keys of blocks of tokens beside those of the tokens ([`KeyCompression`](crate::KeyCompression), DeepSeek V4).
//!
//! A token keeps the parts of the keys of its blocks behind its latent, in a cache too, so that every call makes them of
//! all tokens in the same way.

use candle_core::{D, DType, Device, Tensor};
use candle_nn::ops::softmax;

use crate::attention::MultiHeadAttention;
use crate::attention::mechanism::Mechanism;
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::{AttentionConfig, KeyCompression};
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::concat_last;
use crate::position::Position;
use crate::tensor::compute_dtype;
use crate::weights::COMPRESSOR;

/// Keys of blocks of `rate` tokens.
pub(in crate::attention) struct BlockKeys {
    rate: usize,
}

impl BlockKeys {
    pub(super) fn from_config(config: &AttentionConfig) -> Option<Self> {
        config.compression().map(|KeyCompression { rate, .. }| Self { rate })
    }
}

impl Mechanism for BlockKeys {
    /// Checks that the keys of a padded call stand at the positions from 0.
    fn check_tokens(&self, tokens: &dyn CallTokens, counted: &Counted, _: &AttentionMask) -> Result<()> {
        // Sequences of a ragged batch have blocks of their own, once they are padded.
        if tokens.ragged().is_some() {
            return Ok(());
        }
        let fits = match &counted.new_tokens {
            None => counted.explicit.is_none() && counted.s_q == counted.s_kv,
            Some(new) => {
                let starts_fit = new.starts.iter().all(|start| start + counted.s_q == counted.s_kv);
                new.explicit.is_none() && new.unequal.is_none() && starts_fit
            }
        };
        if fits {
            return Ok(());
        }
        let expected =
            "self-attention from the first token on, or a cache that keeps all tokens, as many of each sequence";
        Err(Error::value("a call of a layer with keys of blocks", "positions, other keys, or a part of them", expected))
    }

    /// The mask and the shape of a call whose queries also see the blocks that end before them or with them.
    fn add_keys(
        &self,
        mask: &AttentionMask,
        shape: AttnShape,
        device: &Device,
    ) -> Result<Option<(AttentionMask, AttnShape)>> {
        let (AttnShape { s_q, s_kv, .. }, rate) = (shape, self.rate);
        if rate > s_kv || s_q == 0 {
            return Ok(None);
        }
        let count = s_kv / rate;
        let ends_before = |i: usize, block: usize| u8::from((block + 1) * rate <= s_kv - s_q + i + 1);
        let keep: Vec<u8> = (0..s_q).flat_map(|i| (0..count).map(move |block| ends_before(i, block))).collect();
        let keep = Tensor::from_vec(keep, (1, 1, s_q, count), device)?;
        let dense = mask.dense(shape, 0, DType::F32, device)?;
        let of_tokens = match dense.keep {
            Some(keep) => keep,
            None => Tensor::ones((1, 1, s_q, s_kv), DType::U8, device)?,
        };
        let joined = |tokens: &Tensor, blocks: &Tensor| -> Result<Tensor> {
            let (b, h, ..) = tokens.dims4()?;
            let all = [tokens.broadcast_as((b, h, s_q, s_kv))?, blocks.broadcast_as((b, h, s_q, count))?];
            Ok(Tensor::cat(&all, 3)?)
        };
        let mut with_blocks = AttentionMask::keep(&joined(&of_tokens, &keep)?)?;
        if let Some(bias) = dense.bias {
            let none = Tensor::zeros((1, 1, 1, 1), bias.dtype(), device)?;
            with_blocks = with_blocks.and(AttentionMask::additive(&joined(&bias, &none)?)?);
        }
        Ok(Some((with_blocks, AttnShape { s_kv: s_kv + count, ..shape })))
    }
}

impl MultiHeadAttention {
    /// Parts of the keys of blocks, elements and gates `(b, s, 1, 2 n)` of the tokens `xs` `(b, s, key_size)`;
    /// `None` where the layer has none. Differentiable.
    pub(in crate::attention) fn block_parts(&self, xs: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
        if self.config.compression().is_none() {
            return Ok(None);
        }
        let (b, s, input) = xs.dims3()?;
        let product = |name: &str| -> Result<Tensor> {
            let weight = self.parameters.require(name)?.to_dtype(dtype)?;
            let n = weight.dim(0)?;
            if b * s == 0 {
                return Ok(Tensor::zeros((b, s, 1, n), dtype, xs.device())?);
            }
            Ok(xs.to_dtype(dtype)?.reshape((b * s, input))?.matmul(&weight.t()?)?.reshape((b, s, 1, n))?)
        };
        concat_last(&product(COMPRESSOR[0])?, &product(COMPRESSOR[1])?).map(Some)
    }

    /// Keys `(b, s, 1, d)` of the tokens, with those of whole blocks behind them, of `parts` as
    /// [`block_parts`](Self::block_parts) makes them. Differentiable.
    pub(in crate::attention) fn with_block_keys(&self, keys: Tensor, parts: &Tensor) -> Result<Tensor> {
        let (b, s, ..) = parts.dims4()?;
        let (Some(latent), Some(KeyCompression { rate, overlapping })) =
            (self.config.latent, self.config.compression().filter(|blocks| blocks.rate <= s && b > 0))
        else {
            return Ok(keys);
        };
        let (count, d, n) = (s / rate, latent.head_dim(), latent.compressed_size());
        let dtype = compute_dtype(parts.dtype());
        let in_blocks = |start: usize| -> Result<Tensor> {
            let whole = parts.narrow(3, start, n)?.narrow(1, 0, count * rate)?;
            Ok(whole.to_dtype(dtype)?.reshape((b, count, rate, n))?)
        };
        let biases = self.parameters.require(COMPRESSOR[2])?.to_dtype(dtype)?;
        let (mut elements, mut gates) = (in_blocks(0)?, in_blocks(n)?.broadcast_add(&biases)?);
        if overlapping {
            (elements, gates) =
                (beside_block_before(&elements, d, 0.0)?, beside_block_before(&gates, d, f64::NEG_INFINITY)?);
        }
        let sum = (elements * softmax(&gates, 2)?)?.sum(2)?; // (b, count, d)
        let root = (sum.sqr()?.mean_keepdim(D::Minus1)? + latent.eps)?.sqrt()?;
        let norm = self.parameters.require(COMPRESSOR[3])?.to_dtype(dtype)?;
        let mut blocks = sum.broadcast_div(&root)?.broadcast_mul(&norm)?.unsqueeze(2)?; // (b, count, 1, d)
        if let Position::Rotary(rotary) = &self.config.position {
            let starts: Vec<u32> = (0..count).map(|block| (block * rate) as u32).collect();
            let starts = Tensor::from_vec(starts, count, blocks.device())?;
            let rope = latent.qk_rope_head_dim;
            let rotated = rotary.apply(&blocks.narrow(3, d - rope, rope)?.contiguous()?, &starts)?;
            blocks = concat_last(&blocks.narrow(3, 0, d - rope)?, &rotated)?;
        }
        Ok(Tensor::cat(&[&keys, &blocks.to_dtype(keys.dtype())?], 1)?)
    }
}

/// Blocks `(b, count, rate, 2 d)` as `(b, count, 2 rate, d)`: the first half of the elements of the block before, which
/// the first block lacks, and the second half of its own.
fn beside_block_before(blocks: &Tensor, d: usize, lacking: f64) -> Result<Tensor> {
    let (b, count, rate, _) = blocks.dims4()?;
    let none = Tensor::full(lacking, (b, 1, rate, d), blocks.device())?.to_dtype(blocks.dtype())?;
    let before = Tensor::cat(&[&none, &blocks.narrow(1, 0, count - 1)?.narrow(3, 0, d)?], 1)?;
    Ok(Tensor::cat(&[&before, &blocks.narrow(3, d, d)?], 2)?)
}
