//! Which instruction set runs.

use std::sync::OnceLock;

use super::pairs::{COLUMNS, PairDot, PairKernel};
use super::simd::{Portable, Simd};
#[cfg(target_arch = "x86_64")]
use super::{amx::Amx, x86::Avx2, x86::Avx512, x86_bf16::Avx512Bf16};
use crate::error::{Error, Result};

/// The environment variable that forces an instruction set.
const VARIABLE: &str = "CANDLE_ATTENTION_ISA";

/// An instruction set that this processor has: only [`Isa::detect`] and [`Isa::all`] give one.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub(crate) enum Isa {
    /// AVX-512, and AMX for bf16.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// AVX-512 and AVX512-BF16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(super::neon::Neon),
    Portable,
    /// Plain Rust with bf16 products in the shapes of AMX.
    #[cfg(test)]
    PortablePairs,
}

/// Work written once for every instruction set. `run` has to be `#[inline(always)]`, so that it is compiled inside a
/// function that has the instructions.
pub(super) trait Kernel {
    /// `MR` rows by `NR` vectors of `S` are what the registers hold.
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512<K: Kernel>(s: Avx512, kernel: K) {
    kernel.run::<_, 8, 3>(s);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
fn avx512_pairs<K: PairKernel, D: PairDot>(s: Avx512, d: D, kernel: K) {
    d.begin();
    kernel.run(s, d);
    d.end();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<K: Kernel>(s: Avx2, kernel: K) {
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

/// Columns a panel and the step of the pairs.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
struct PairSizes<'a>(&'a mut usize, &'a mut usize);

impl PairKernel for PairSizes<'_> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, _: S, _: D) {
        (*self.0, *self.1) = (D::VECTORS * COLUMNS, D::STEP);
    }
}

impl Isa {
    /// Runs a kernel with this instruction set.
    pub(super) fn run<K: Kernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value in `self` proves that the processor has AVX-512F; so for the next two.
            Self::Avx512(s) => unsafe { avx512(s, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx512Bf16(d) => unsafe { avx512(d.floats(), kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Amx(d) => unsafe { avx512(d.floats(), kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value in `self` proves that the processor has AVX2 and FMA.
            Self::Avx2(s) => unsafe { avx2(s, kernel) },
            #[cfg(target_arch = "aarch64")]
            Self::Neon(s) => kernel.run::<_, 8, 3>(s),
            Self::Portable => kernel.run::<_, 4, 2>(Portable),
            #[cfg(test)]
            Self::PortablePairs => kernel.run::<_, 4, 2>(Portable),
        }
    }

    /// Whether there are instructions for products of bf16.
    pub(crate) fn has_pairs(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) | Self::Amx(_) => true,
            #[cfg(test)]
            Self::PortablePairs => true,
            _ => false,
        }
    }

    /// Runs a kernel with the instructions for bf16, if it [has them](Self::has_pairs).
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
    pub(super) fn run_pairs<K: PairKernel>(self, kernel: K) {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the value in `self` proves that the processor has AVX-512F and AVX512-BF16; so for the next.
            Self::Avx512Bf16(d) => unsafe { avx512_pairs(d.floats(), d, kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Amx(d) => unsafe { avx512_pairs(d.floats(), d, kernel) },
            #[cfg(test)]
            Self::PortablePairs => kernel.run(Portable, super::tests::PortablePairs),
            _ => unreachable!("asked for without has_pairs"),
        }
    }

    /// The numbers that a kernel's row of registers holds.
    pub(super) fn panel_width(self) -> usize {
        let mut width = 0;
        self.run(PanelWidth(&mut width));
        width
    }

    /// As [`panel_width`](Self::panel_width) for bf16, and the step of the pairs.
    pub(super) fn pair_sizes(self) -> (usize, usize) {
        let (mut width, mut step) = (0, 0);
        self.run_pairs(PairSizes(&mut width, &mut step));
        (width, step)
    }

    /// All that this processor has, the best first.
    pub(crate) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Amx::new().map(Self::Amx));
            all.extend(Avx512::new().map(Self::Avx512));
            let pairs = Avx512Bf16::new().map(Self::Avx512Bf16);
            let place = if Avx512Bf16::is_fast() { 0 } else { all.len() };
            all.splice(place..place, pairs);
            all.extend(Avx2::new().map(Self::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        all.extend(super::neon::Neon::new().map(Self::Neon));
        all.push(Self::Portable);
        #[cfg(test)]
        all.push(Self::PortablePairs);
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
            Self::Amx(_) => "amx",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16(_) => "avx512_bf16",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            Self::Portable => "portable",
            #[cfg(test)]
            Self::PortablePairs => "portable_pairs",
        }
    }
}
