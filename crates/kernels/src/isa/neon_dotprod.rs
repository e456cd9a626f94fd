//! NEON with SDOT, which multiplies 8-bit integers.

use super::kernel::{InstructionSet, Kernel};
use super::neon::Neon;

/// FEAT_DotProd and NEON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NeonDotprod(pub(crate) Neon);

impl InstructionSet for NeonDotprod {
    const NAME: &'static str = "neon_dotprod";
    const F32_NAME: &'static str = Neon::NAME;

    fn detect() -> Option<Self> {
        let has_dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        Neon::detect().filter(|_| has_dotprod).map(Self)
    }

    /// SDOT: 16 multiply-adds.
    fn speed() -> u32 {
        16
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }
}
