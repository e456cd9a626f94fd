//! Which instruction set runs.

use std::sync::OnceLock;

use super::simd::{Portable, Simd};
use crate::error::{Error, Result};

/// The environment variable that forces an instruction set.
const VARIABLE: &str = "CANDLE_ATTENTION_ISA";

/// An instruction set that this processor has: only [`Isa::detect`] and [`Isa::all`] give one.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub(crate) enum Isa {
    #[cfg(target_arch = "x86_64")]
    Avx512(super::x86::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(super::x86::Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(super::neon::Neon),
    Portable,
}

/// Work written once for every instruction set. `run` has to be `#[inline(always)]`, so that it is compiled inside a
/// function that has the instructions.
pub(super) trait Kernel {
    /// `MR` rows by `NR` vectors of `S` are what the registers hold.
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512<K: Kernel>(s: super::x86::Avx512, kernel: K) {
    kernel.run::<_, 8, 3>(s);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(s: super::x86::Avx2, kernel: K) {
    kernel.run::<_, 4, 3>(s);
}

/// Numbers a panel: as many as the vectors of a row of registers hold.
struct PanelWidth<'a>(&'a mut usize);

impl Kernel for PanelWidth<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, _: S) {
        *self.0 = NR * S::LANES;
    }
}

impl Isa {
    /// Runs a kernel with this instruction set.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value in `self` proves that the processor has AVX-512F.
            Self::Avx512(s) => unsafe { avx512(s, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value in `self` proves that the processor has AVX2 and FMA.
            Self::Avx2(s) => unsafe { avx2(s, kernel) },
            #[cfg(target_arch = "aarch64")]
            Self::Neon(s) => kernel.run::<_, 8, 3>(s),
            Self::Portable => kernel.run::<_, 4, 2>(Portable),
        }
    }

    /// The numbers that a kernel's row of registers holds.
    pub(super) fn panel_width(self) -> usize {
        let mut width = 0;
        self.run(PanelWidth(&mut width));
        width
    }

    /// All that this processor has, the best first.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(super::x86::Avx512::new().map(Self::Avx512));
            all.extend(super::x86::Avx2::new().map(Self::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        all.extend(super::neon::Neon::new().map(Self::Neon));
        all.push(Self::Portable);
        all
    }

    /// The best that this processor has, or the one that `CANDLE_ATTENTION_ISA` names.
    ///
    /// # Errors
    /// If the variable names one that is not there.
    pub(crate) fn detect() -> Result<Self> {
        static DETECTED: OnceLock<std::result::Result<Isa, String>> = OnceLock::new();
        let detected = DETECTED.get_or_init(|| {
            let all = Self::all();
            let Ok(name) = std::env::var(VARIABLE) else { return Ok(all[0]) };
            all.into_iter().find(|isa| isa.name() == name).ok_or(name)
        });
        detected.clone().map_err(|name| {
            let names = Self::all().iter().map(Isa::name).collect::<Vec<_>>().join(" or ");
            Error::value(VARIABLE, name, format!("{names}, which this processor has"))
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            Self::Portable => "portable",
        }
    }
}
