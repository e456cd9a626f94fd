//! The backends that can run attention.

use std::fmt;

use crate::error::{Error, Result};

/// A way to run attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Candle's tensor operations, one after another: any device, differentiable, can return attention weights.
    Eager,
    /// The crate's fused CPU kernel, with dropout and gradients of queries, keys and values.
    Cpu,
    /// FlashAttention 2 and 3 on NVIDIA GPUs, with the features `flash-attn` and `flash-attn-v3`: f16 and bf16, causal
    /// masks and windows.
    /// Under a mask it gets values without NaN and infinities, and the queries that see one get NaN
    /// afterwards, because it multiplies hidden values by 0: a pass over the values and the output.
    FlashAttn,
    /// The crate's own fused kernels on NVIDIA GPUs: f16, bf16 and f32, any mask, head dimensions up to 256. They are
    /// compiled when a problem shape first occurs, which takes about a second. No GPU has run them yet, so they run
    /// where a call asks for them.
    Cuda,
    /// Candle's fused attention on Apple GPUs: f32, f16 and bf16, head dimensions 32, 64, 72, 80, 96 and 128 (with f16
    /// and bf16 also 256 and 512), and masks that hide keys; with f32 also masks that add to scores. A single query
    /// needs a multiple of 32 as head dimension, and a mask that leaves it one range of keys. Scores and softmax are
    /// f32. NaN and infinities under a mask are kept from it as from FlashAttention, in keys too, if
    /// `CANDLE_METAL_ENABLE_FAST_MATH=0` is set ([`AttentionMask`](crate::AttentionMask)). Calls for which candle's
    /// kernels are wrong or missing run on [`Eager`](Self::Eager); the plan of such a call gives the reason.
    Metal,
}

impl Backend {
    /// All backends, the fastest first.
    pub(crate) const ALL: [Self; 5] = [Self::Cpu, Self::FlashAttn, Self::Cuda, Self::Metal, Self::Eager];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eager => "eager",
            Self::Cpu => "cpu",
            Self::FlashAttn => "flash-attn",
            Self::Cuda => "cuda",
            Self::Metal => "metal",
        })
    }
}

impl std::str::FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|backend| backend.to_string() == name);
        found.ok_or_else(|| Error::value("the backend", name, "eager, cpu, flash-attn, cuda or metal"))
    }
}
