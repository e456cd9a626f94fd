//! Keys of blocks of tokens beside those of the tokens (DeepSeek V4).
//!
//! A token keeps the parts of the keys of its blocks behind its latent, in a cache too, so that every call makes them
//! of all tokens in the same way.

use candle_core::{D, DType, Device, Tensor};
use candle_nn::Init;
use candle_nn::ops::softmax;

use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, boxed};
use crate::attention::tokens::{CallTokens, Counted};
use crate::config::{AttentionConfig, LatentAttention, MAX_SIZE, MechanismConfig};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape};
use crate::ops::concat_last;
use crate::position::{Position, Rotary};
use crate::tensor::compute_dtype;
use crate::weights::{HeadKind, Parameter, Presence};

/// The projections of elements and of gates, the biases of the places in a
/// block, and the norm.
pub(crate) const COMPRESSOR: [&str; 4] = [
    "compressor.kv_proj.weight",
    "compressor.gate_proj.weight",
    "compressor.position_bias",
    "compressor.kv_norm.weight",
];

/// The module that makes keys of blocks of tokens.
pub(crate) const BLOCKS: &str = "compressor";

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        let blocks = config.key_compression();
        let (d, input) = (config.resolved_head_dim(), config.resolved_key_size());
        let (rate, width) = blocks.map_or((1, 1), |blocks| (blocks.rate, blocks.width(d)));
        let bound = (6.0 / (width as f64 + input as f64)).sqrt();
        let linear = (vec![width, input], Init::Uniform { lo: -bound, up: bound });
        let place = (vec![rate, width], Init::Const(0.0));
        let shapes = [linear.clone(), linear, place, (vec![d], Init::Const(1.0))];
        let row = |(name, (shape, init))| Parameter {
            field: "compression",
            heads: HeadKind::KeyValue,
            ..Parameter::new(name, shape, init).with_presence(Presence::required_if(blocks.is_some()))
        };
        COMPRESSOR.into_iter().zip(shapes).map(row).collect()
    },
    names: &[(BLOCKS, &[BLOCKS])],
    infer: |config, shape| {
        let Some(shape) = shape(COMPRESSOR[2], 2)? else { return Ok(config) };
        let overlapping = Some(shape[1]) == config.resolved_head_dim().checked_mul(2);
        Ok(config.with_key_compression(KeyCompression::new(shape[0], overlapping)))
    },
    from_layer: |layer| BlockKeys::from_layer(layer).map(boxed),
};

/// Keys of whole blocks of tokens beside those of the tokens (DeepSeek V4): what a layer with a window sees of the
/// tokens before it. Each token `t` has elements `c_t` and as many gates `g_t`, two projections of the layer's input,
/// and each place in a block has biases `B`.
///
/// ```text
/// key of block i = rotate(rms_norm(sum over t of softmax_t(g_t + B_t) · c_t), i · rate)    element by element
/// ```
///
/// The sum is over the tokens of block `i`. If blocks overlap, tokens have twice the elements: the sum is over the
/// second half of those of block `i` and the first half of those of the block before it. The query at position `p` sees
/// the blocks that end before it or with it, `i < (p + 1) / rate`; masks hide tokens, not blocks. Blocks begin with the
/// first token of a sequence, so a call gives no positions, its padding comes last, and sequences in a cache have equal
/// lengths. Attention weights have a column for each block behind those of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyCompression {
    /// Tokens of a block, at least 1.
    pub rate: usize,
    /// Whether the sum is over the tokens of the block before, too.
    pub overlapping: bool,
}

impl KeyCompression {
    /// Keys of blocks of `rate` tokens.
    pub fn new(rate: usize, overlapping: bool) -> Self {
        Self { rate, overlapping }
    }

    /// Elements of a token for the keys of its blocks of `d` elements, which have as many gates.
    fn width(self, d: usize) -> usize {
        d * if self.overlapping { 2 } else { 1 }
    }
}

impl AttentionConfig {
    /// Sets keys of blocks of tokens beside those of the tokens, with latents that all heads share alone
    /// ([`LatentAttention::multi_query`]).
    #[must_use]
    pub fn with_key_compression(mut self, compression: impl Into<Option<KeyCompression>>) -> Self {
        self.mechanisms.set(compression.into());
        self
    }

    /// How keys of blocks of tokens are made, if the layer has some.
    pub fn key_compression(&self) -> Option<KeyCompression> {
        self.mechanisms.get()
    }
}

impl MechanismConfig for KeyCompression {
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let fits = config.latent.is_some_and(|latent| latent.multi_query) && (1..=MAX_SIZE).contains(&self.rate);
        let allowed = || format!("1 to {MAX_SIZE} tokens, and `multi_query`");
        ensure!(fits, Error::config("compression", self.rate, allowed()));
        Ok(())
    }

    fn cached_size(&self, config: &AttentionConfig) -> usize {
        2 * self.width(config.resolved_head_dim())
    }
}

/// Keys of blocks of tokens, and what they are made with.
struct BlockKeys {
    blocks: KeyCompression,
    latent: LatentAttention,
    /// The rotation of the keys of blocks, if they are rotated.
    rotary: Option<Rotary>,
    /// The projections of elements and gates, the biases of the places in a block, and the weight of the norm.
    compressor: [Tensor; 4],
}

impl BlockKeys {
    fn from_layer(LayerParts { config, parameters, .. }: LayerParts) -> Result<Option<Self>> {
        let Some((blocks, latent)) = config.key_compression().zip(config.latent) else { return Ok(None) };
        let rotary = if let Position::Rotary(rotary) = &config.position { Some(rotary.clone()) } else { None };
        let [elements, gates, places, norm] = COMPRESSOR.map(|name| parameters.require(name).cloned());
        Ok(Some(Self { blocks, latent, rotary, compressor: [elements?, gates?, places?, norm?] }))
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
        let (AttnShape { s_q, s_kv, .. }, rate) = (shape, self.blocks.rate);
        if rate > s_kv || s_q == 0 {
            return Ok(None);
        }
        let count = s_kv / rate;
        let ends_before = |i: usize, block: usize| u8::from((block + 1) * rate <= s_kv - s_q + i + 1);
        let keep: Vec<u8> = (0..s_q).flat_map(|i| (0..count).map(move |block| ends_before(i, block))).collect();
        let keep = Tensor::from_vec(keep, (1, 1, s_q, count), device)?;
        let dense = mask.dense(shape, 0, DType::F32, device)?;
        let tokens = match dense.keep {
            Some(keep) => keep,
            None => Tensor::ones((1, 1, s_q, s_kv), DType::U8, device)?,
        };
        let joined = |tokens: &Tensor, blocks: &Tensor| -> Result<Tensor> {
            let (b, h, ..) = tokens.dims4()?;
            let all = [tokens.broadcast_as((b, h, s_q, s_kv))?, blocks.broadcast_as((b, h, s_q, count))?];
            Ok(Tensor::cat(&all, 3)?)
        };
        let mut with_blocks = AttentionMask::keep(&joined(&tokens, &keep)?)?;
        if let Some(bias) = dense.bias {
            let none = Tensor::zeros((1, 1, 1, 1), bias.dtype(), device)?;
            with_blocks = with_blocks.and(AttentionMask::additive(&joined(&bias, &none)?)?);
        }
        Ok(Some((with_blocks, AttnShape { s_kv: s_kv + count, ..shape })))
    }

    /// Parts of the keys of blocks, elements and gates `(b, s, 1, 2 n)`.
    fn beside_latents(&self, xs: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
        let (b, s, input) = xs.dims3()?;
        let product = |weight: &Tensor| -> Result<Tensor> {
            let weight = weight.to_dtype(dtype)?;
            let n = weight.dim(0)?;
            if b * s == 0 {
                return Ok(Tensor::zeros((b, s, 1, n), dtype, xs.device())?);
            }
            Ok(xs.to_dtype(dtype)?.reshape((b * s, input))?.matmul(&weight.t()?)?.reshape((b, s, 1, n))?)
        };
        let [elements, gates, ..] = &self.compressor;
        concat_last(&product(elements)?, &product(gates)?).map(Some)
    }

    /// Keys `(b, s, 1, d)` of the tokens, with those of whole blocks behind them.
    fn extend_keys(&self, keys: Tensor, parts: &Tensor) -> Result<Tensor> {
        let ((b, s, ..), KeyCompression { rate, overlapping }) = (parts.dims4()?, self.blocks);
        if rate > s || b == 0 {
            return Ok(keys);
        }
        let (count, d) = (s / rate, self.latent.head_dim());
        let n = self.blocks.width(d);
        let [_, _, places, norm] = &self.compressor;
        let dtype = compute_dtype(parts.dtype());
        let in_blocks = |start: usize| -> Result<Tensor> {
            let whole = parts.narrow(3, start, n)?.narrow(1, 0, count * rate)?;
            Ok(whole.to_dtype(dtype)?.reshape((b, count, rate, n))?)
        };
        let biases = places.to_dtype(dtype)?;
        let (mut elements, mut gates) = (in_blocks(0)?, in_blocks(n)?.broadcast_add(&biases)?);
        if overlapping {
            (elements, gates) =
                (beside_block_before(&elements, d, 0.0)?, beside_block_before(&gates, d, f64::NEG_INFINITY)?);
        }
        let sum = (elements * softmax(&gates, 2)?)?.sum(2)?; // (b, count, d)
        let root = (sum.sqr()?.mean_keepdim(D::Minus1)? + self.latent.eps)?.sqrt()?;
        let norm = norm.to_dtype(dtype)?;
        let mut blocks = sum.broadcast_div(&root)?.broadcast_mul(&norm)?.unsqueeze(2)?; // (b, count, 1, d)
        if let Some(rotary) = &self.rotary {
            let starts: Vec<u32> = (0..count).map(|block| (block * rate) as u32).collect();
            let starts = Tensor::from_vec(starts, count, blocks.device())?;
            let rope = self.latent.qk_rope_head_dim;
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
