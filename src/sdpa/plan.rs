use std::fmt;

use candle_core::DType;

use crate::error::{Error, Result};
use crate::kernels::cpu::Isa;
use crate::sdpa::{Call, SdpaOptions, cpu, cuda, eager, flash, metal};

/// A way to run attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Candle's tensor operations, one after the other: any device, differentiable, can return weights.
    Eager,
    /// The fused CPU kernel.
    Cpu,
    /// FlashAttention 2 on NVIDIA GPUs, with the feature `flash-attn`: f16 and bf16, causal masks and windows. So few
    /// queries that most of the GPU would have no work, as a decoder's step, go to [`Cuda`](Self::Cuda), unless forced.
    FlashAttn,
    /// The crate's own fused kernels on NVIDIA GPUs: f16, bf16 and f32, any mask, heads of up to 256 numbers. They are
    /// compiled when a shape is first met, which takes about a second.
    Cuda,
    /// Candle's fused attention on Apple GPUs, for two or more queries in f32, f16 or bf16, head sizes 32, 64, 72, 80, 96
    /// and 128 (in half types 256 and 512 too), under masks that hide keys; in f32 also under those that add numbers. Its
    /// scores and softmax are f32. What else candle's kernels get wrong or lack goes to [`Eager`](Self::Eager): the plan
    /// of a call has the reason.
    Metal,
}

impl Backend {
    /// The fastest first.
    const ALL: [Self; 5] = [Self::Cpu, Self::FlashAttn, Self::Cuda, Self::Metal, Self::Eager];
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

/// A backend that was not chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejected {
    /// The backend.
    pub backend: Backend,
    /// The reason against it.
    pub reason: String,
}

/// How a call will run: printed by `{}` as one line a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The backend chosen.
    pub backend: Backend,
    /// Every other backend, each with the reason against it.
    pub rejected: Vec<Rejected>,
    /// The instruction set that the CPU's kernel uses: `amx`, `avx512_bf16`, `avx512`, `avx2`, `neon` or `portable`;
    /// `None` on other backends.
    pub instructions: Option<&'static str>,
    /// Bytes of temporary memory that the backend needs at its peak, an estimate from the shapes.
    pub scratch_bytes: usize,
}

/// The first reason that applies.
pub(super) fn first_reason<const N: usize>(reasons: [(bool, &str); N]) -> Option<String> {
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason.to_string())
}

/// What no fused kernel can do, on any device.
pub(super) fn no_fused_kernel(call: &Call, options: &SdpaOptions) -> Option<String> {
    first_reason([
        (call.dtype == DType::F64, "it computes in f32, the tensors are f64"),
        (call.tracks_gradient, "a gradient is tracked, and it has none"),
        (options.return_attention_weights, "the attention weights are asked for, and it never stores all of them"),
        (options.dropout > 0.0, "it does not drop weights"),
        (options.additive.is_some(), "it scores by dot product only"),
    ])
}

impl Plan {
    pub(crate) fn new(call: &Call, options: &SdpaOptions) -> Result<Self> {
        let against = |backend: Backend| match backend {
            Backend::Eager => None,
            Backend::Cpu => cpu::unsupported_reason(call, options),
            Backend::FlashAttn => flash::unsupported_reason(call, options),
            Backend::Cuda => cuda::unsupported_reason(call, options),
            Backend::Metal => metal::unsupported_reason(call, options),
        };
        let backend = match options.backend {
            Some(backend) => match against(backend) {
                None => backend,
                Some(reason) => return Err(Error::Backend { backend: backend.to_string(), reason }),
            },
            None => Backend::ALL.into_iter().find(|backend| against(*backend).is_none()).unwrap_or(Backend::Eager),
        };
        let slower = || match options.backend {
            Some(forced) => format!("{forced} was asked for"),
            None => format!("{backend} can run the call and comes first"),
        };
        let others = Backend::ALL.into_iter().filter(|other| *other != backend);
        let rejected = others.map(|other| Rejected { backend: other, reason: against(other).unwrap_or_else(slower) });
        let (instructions, scratch_bytes) = match backend {
            // An instruction set that was asked for and is not there is a mistake to be told, not to be worked around.
            Backend::Cpu => (Some(Isa::detect()?.name()), cpu::scratch_bytes(call, options)),
            Backend::FlashAttn => (None, flash::scratch_bytes(call)),
            Backend::Cuda => (None, cuda::scratch_bytes(call, options)),
            Backend::Metal => (None, metal::scratch_bytes(call, options)),
            Backend::Eager => (None, eager::scratch_bytes(call, options)),
        };
        Ok(Self { backend, rejected: rejected.collect(), instructions, scratch_bytes })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {}", self.backend)?;
        self.instructions.iter().try_for_each(|instructions| write!(f, " with {instructions}"))?;
        write!(f, ", scratch {} bytes", self.scratch_bytes)?;
        self.rejected.iter().try_for_each(|other| write!(f, "\nnot {}: {}", other.backend, other.reason))
    }
}
