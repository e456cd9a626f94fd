use std::fmt;

use candle_core::DType;

use super::Call;
use crate::error::{Error, Result};

/// A way to run attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Candle's tensor operations, one after the other: any device, differentiable, can return weights.
    Eager,
    /// The fused CPU kernel.
    Cpu,
    /// Fused attention on NVIDIA GPUs.
    Cuda,
    /// Candle's fused attention on Apple GPUs.
    Metal,
}

impl Backend {
    const FUSED: [Self; 3] = [Self::Cpu, Self::Cuda, Self::Metal];
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eager => "eager",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Metal => "metal",
        })
    }
}

impl std::str::FromStr for Backend {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Eager, Self::Cpu, Self::Cuda, Self::Metal];
        let found = all.into_iter().find(|backend| backend.to_string() == name);
        found.ok_or_else(|| Error::value("the backend", name, "eager, cpu, cuda or metal"))
    }
}

/// A backend that was not chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// The backend.
    pub backend: Backend,
    /// The reason against it.
    pub reason: String,
}

/// How a call will run: printed by `{}` as one line a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The backend chosen.
    pub backend: Backend,
    /// Every other backend, each with the reason against it.
    pub rejected: Vec<Rejected>,
    /// Bytes of temporary memory that the backend needs at its peak, an estimate from the shapes.
    pub scratch_bytes: usize,
}

/// The reason against every fused backend as long as there is none.
pub(super) const NOT_BUILT: &str = "this version of the crate has no such kernel";

impl Plan {
    pub(super) fn new(call: &Call, appended_keys: usize, forced: Option<Backend>) -> Result<Self> {
        if let Some(backend) = forced.filter(|&backend| backend != Backend::Eager) {
            return Err(Error::Backend { backend: backend.to_string(), reason: NOT_BUILT.to_string() });
        }
        let rejected = Backend::FUSED.map(|backend| Rejected { backend, reason: NOT_BUILT.to_string() }).to_vec();
        Ok(Self { backend: Backend::Eager, rejected, scratch_bytes: eager_scratch(call, appended_keys) })
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backend {}, scratch {} bytes", self.backend, self.scratch_bytes)?;
        self.rejected.iter().try_for_each(|other| write!(f, "\nnot {}: {}", other.backend, other.reason))
    }
}

/// Three score matrices are alive at the peak of the softmax, a fourth with a mask; beside them lie the contiguous
/// copies of q, k and v.
fn eager_scratch(call: &Call, appended_keys: usize) -> usize {
    let width = if call.dtype == DType::F64 { 8 } else { 4 };
    let s_kv = call.shape.s_kv + appended_keys;
    let matrices = if call.masked { 4 } else { 3 };
    let scores = call.shape.b * call.shape.h * call.shape.s_q * s_kv;
    let queries = call.shape.b * call.shape.s_q * call.shape.h * call.d;
    let keys_values = call.shape.b * s_kv * call.h_kv * (call.d + call.d_v);
    let features = if call.additive_scoring { super::eager::ADDITIVE_CHUNK.min(scores * call.d) * 2 } else { 0 };
    (scores * matrices + queries + keys_values + features) * width
}
