//! The plan of a call: which backend runs it, and why no other does.

use std::fmt;

use crate::error::{Error, Result};
use crate::ops::Quantization;
use crate::sdpa::backend::Backend;
use crate::sdpa::call::Call;
use crate::sdpa::options::SdpaOptions;
use crate::sdpa::{cpu, cuda, eager, flash, metal};

/// A backend that was not chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejected {
    /// The backend.
    pub backend: Backend,
    /// Why it was not chosen.
    pub reason: String,
}

/// How a call will run. `{}` prints one fact per line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// The chosen backend.
    pub backend: Backend,
    /// Every other backend with the reason against it.
    pub rejected: Vec<Rejected>,
    /// The instruction set that the CPU kernel uses in this call: `amx`, `avx512_bf16`, `avx512`, `avx2`, `neon`,
    /// `simd128` or `portable`; `None` on other backends. The first two multiply bf16: where queries, keys and values
    /// are f32, as also in a half-type layer that rotates or normalizes them, the kernel uses `avx512` on the same
    /// processor.
    pub instructions: Option<&'static str>,
    /// Peak temporary memory of the backend in bytes, estimated from the shapes; `usize::MAX` if it cannot be
    /// addressed. On the CPU each thread keeps up to 16 MB of it for its next call, and what is more goes back at the
    /// end of the call.
    pub scratch_bytes: usize,
    /// The format in which the products of the layer's projections are computed, if it has few bits; `None` for f32,
    /// f16 and bf16, and where a gradient is tracked.
    pub quantization: Option<Quantization>,
}

impl Plan {
    /// The forced backend, or the first of [`Backend::ALL`] that can run the call.
    pub(crate) fn choose(call: &Call, options: &SdpaOptions) -> Result<Backend> {
        if call.tracks_gradient && !options.mask.has_derivatives() {
            let expected = "none: the function has no derivative, as `from_score_fn_with_derivative` gives it one";
            return Err(Error::value("the gradient of a call under a function of scores", "tracked", expected));
        }
        let unsupported = |backend: Backend| unsupported_reason(backend, call, options);
        match options.backend {
            Some(backend) => match unsupported(backend) {
                None => Ok(backend),
                Some(reason) => Err(Error::Backend { backend: backend.to_string(), reason }),
            },
            None => Ok(Backend::ALL.into_iter().find(|other| unsupported(*other).is_none()).unwrap_or(Backend::Eager)),
        }
    }

    /// The chosen backend with the reasons against the others.
    pub(crate) fn new(call: &Call, options: &SdpaOptions) -> Result<Self> {
        let unsupported = |backend: Backend| unsupported_reason(backend, call, options);
        let backend = Self::choose(call, options)?;
        let not_needed = || match options.backend {
            Some(forced) => format!("{forced} was asked for"),
            None => format!("{backend} can run the call and comes first"),
        };
        let others = Backend::ALL.into_iter().filter(|other| *other != backend);
        let rejected = others
            .map(|other| Rejected { backend: other, reason: unsupported(other).unwrap_or_else(not_needed) })
            .collect();
        let (instructions, scratch_bytes) = match backend {
            Backend::Cpu => (Some(cpu::instructions(call)?), cpu::scratch_bytes(call, options)),
            Backend::FlashAttn => (None, flash::scratch_bytes(call)),
            Backend::Cuda => (None, cuda::scratch_bytes(call, options)),
            Backend::Metal => (None, metal::scratch_bytes(call, options)),
            Backend::Eager => (None, eager::scratch_bytes(call, options)),
        };
        Ok(Self { backend, rejected, instructions, scratch_bytes, quantization: None })
    }
}

/// Why a backend cannot run a call; `None` if it can.
fn unsupported_reason(backend: Backend, call: &Call, options: &SdpaOptions) -> Option<String> {
    match backend {
        Backend::Eager => None,
        Backend::Cpu => cpu::unsupported_reason(call, options),
        Backend::FlashAttn => flash::unsupported_reason(call, options),
        Backend::Cuda => cuda::unsupported_reason(call, options),
        Backend::Metal => metal::unsupported_reason(call, options),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {}", self.backend)?;
        self.instructions.iter().try_for_each(|instructions| write!(f, " with {instructions}"))?;
        self.quantization.iter().try_for_each(|format| write!(f, ", projections in {format}"))?;
        write!(f, ", scratch {} bytes", self.scratch_bytes)?;
        self.rejected.iter().try_for_each(|other| write!(f, "\nnot {}: {}", other.backend, other.reason))
    }
}
