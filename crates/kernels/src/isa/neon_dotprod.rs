//! NEON with SDOT, which has products of 8-bit integers: see [`crate::int8::neon_dotprod`].

use super::kernel::{InstructionSet, Int8Kernel, Kernel};
use super::neon::Neon;
use crate::int8::neon_dotprod;

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

    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        kernel.run::<_, { neon_dotprod::MR }, { neon_dotprod::NR }, { neon_dotprod::BLOCK_MR }>(self);
    }
}
