//! The table of instruction sets: which ones this processor has, and how a kernel runs on one of them.
//!
//! An instruction set is one file in `isa`, perhaps one in `int8`, and one line in the table below. It is a type that
//! implements [`InstructionSet`], with its detection, and [`Int8InstructionSet`]. Nothing else has to change:
//! detection, the environment variable, dispatch and the tests that compare all instruction sets with the references
//! read the table.

use std::cmp::Reverse;
use std::sync::OnceLock;

use super::convert::PairFormat;
use super::error::{Error, Result};
use super::int8::kernel::{Int8InstructionSet, Int8Kernel, Int8TileKernel};
use super::isa::kernel::{InstructionSet, Kernel, PairKernel};
use super::isa::pair_dot::{PairDot, PairOrder, VECTOR_COLUMNS};
use super::isa::portable;
use super::isa::simd::Simd;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use super::isa::simd128;
#[cfg(target_arch = "x86_64")]
use super::isa::{amx, avx2, avx512, avx512_bf16};
#[cfg(target_arch = "aarch64")]
use super::isa::{neon, neon_bf16, neon_fhm};
#[cfg(test)]
use super::tests::sets::portable_bf16;
#[cfg(all(test, target_arch = "x86_64"))]
use super::tests::sets::vnni_evex;

/// The environment variable that chooses an instruction set.
const VARIABLE: &str = "CANDLE_ATTENTION_ISA";

/// Makes the enum [`Isa`] and its dispatch from the table of instruction sets.
macro_rules! isas {
    ($($(#[cfg($($condition:tt)+)])? $name:ident($type:ty),)+) => {
        /// An instruction set that this processor has. Only detection makes a value.
        #[derive(Debug, Clone, Copy)]
        pub struct Isa(Token);

        /// The capability tokens: only [`InstructionSet::detect`] makes them.
        #[derive(Debug, Clone, Copy)]
        enum Token {
            $($(#[cfg($($condition)+)])? $name($type),)+
        }

        /// The table of instruction sets.
        const TABLE: &[Candidate] = &[
            $(
                $(#[cfg($($condition)+)])?
                Candidate {
                    name: <$type>::NAME,
                    speed: <$type>::speed,
                    detect: || <$type>::detect().map(|token| Isa(Token::$name(token))),
                },
            )+
        ];

        impl Isa {
            /// The name that the environment variable `CANDLE_ATTENTION_ISA` takes.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(_) => <$type>::NAME,)+
                }
            }

            /// The name of the instructions that kernels without bf16 products run on.
            pub fn f32_name(self) -> &'static str {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(_) => <$type>::F32_NAME,)+
                }
            }

            /// Whether there are instructions that multiply pairs of a format.
            pub(crate) fn has_pairs(self, format: PairFormat) -> bool {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(_) => <$type>::PAIRS.contains(&format),)+
                }
            }

            /// Runs a kernel with this instruction set.
            pub(crate) fn run<K: Kernel>(self, kernel: K) {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(isa) => isa.run(kernel),)+
                }
            }

            /// Runs a kernel with products of pairs. Only where [`has_pairs`](Self::has_pairs).
            pub(crate) fn run_pairs<K: PairKernel>(self, format: PairFormat, kernel: K) {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(isa) => isa.run_pairs(format, kernel),)+
                }
            }

            /// Runs a kernel with products of 8-bit integers.
            pub(crate) fn run_int8<K: Int8Kernel>(self, kernel: K) {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(isa) => isa.run_int8(kernel),)+
                }
            }

            /// Whether there are instructions that multiply tiles of 8-bit integers.
            pub(crate) fn has_int8_tiles(self) -> bool {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(_) => <$type>::HAS_INT8_TILES,)+
                }
            }

            /// Runs a kernel with products of int8 tiles. Only where [`has_int8_tiles`](Self::has_int8_tiles).
            pub(crate) fn run_int8_tiles<K: Int8TileKernel>(self, kernel: K) {
                match self.0 {
                    $($(#[cfg($($condition)+)])? Token::$name(isa) => isa.run_int8_tiles(kernel),)+
                }
            }
        }
    };
}

isas! {
    #[cfg(target_arch = "x86_64")]
    Amx(amx::Amx),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(avx512_bf16::Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    #[cfg(target_arch = "aarch64")]
    NeonDotprod(neon::NeonDotprod),
    #[cfg(target_arch = "aarch64")]
    NeonFhm(neon_fhm::NeonFhm),
    #[cfg(target_arch = "aarch64")]
    NeonBf16(neon_bf16::NeonBf16),
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128(simd128::Simd128),
    Portable(portable::Portable),
    #[cfg(test)]
    PortableBf16(portable_bf16::PortableBf16),
    #[cfg(all(test, target_arch = "x86_64"))]
    VnniEvex(vnni_evex::VnniEvex),
    #[cfg(all(test, target_arch = "x86_64"))]
    PlainAvx2(vnni_evex::PlainAvx2),
}

/// An instruction set that this processor may have.
struct Candidate {
    name: &'static str,
    speed: fn() -> u32,
    detect: fn() -> Option<Isa>,
}

/// The candidates of the table, the fastest first. Miri interprets plain Rust only.
fn candidates() -> Vec<&'static Candidate> {
    let mut candidates: Vec<_> = TABLE.iter().filter(|row| !cfg!(miri) || row.name.starts_with("portable")).collect();
    candidates.sort_by_key(|candidate| Reverse((candidate.speed)()));
    candidates
}

/// The first candidate that the processor has, of all or of those with a name. Only candidates that could be chosen are
/// detected: a detection may ask the operating system for a permission that changes the process.
fn choose(candidates: &[&Candidate], name: Option<&str>) -> Option<Isa> {
    candidates.iter().filter(|row| name.is_none_or(|name| row.name == name)).find_map(|row| (row.detect)())
}

impl Isa {
    /// The fastest instruction set of this processor, or the one that `CANDLE_ATTENTION_ISA` names.
    ///
    /// # Errors
    /// If the variable names an instruction set that this processor does not have.
    pub fn detect() -> Result<Self> {
        static DETECTED: OnceLock<Result<Isa, String>> = OnceLock::new();
        let detected = DETECTED.get_or_init(|| {
            let name = std::env::var_os(VARIABLE).map(|name| name.to_string_lossy().into_owned());
            choose(&candidates(), name.as_deref()).ok_or(name.unwrap_or_default())
        });
        detected.clone().map_err(|name| {
            let names = Self::all().into_iter().map(Isa::name).collect::<Vec<_>>().join(" or ");
            Error::value(VARIABLE, name, format!("{names}, which this processor has"))
        })
    }

    /// All instruction sets that this processor has, the fastest first. Detects each of them.
    pub fn all() -> Vec<Self> {
        candidates().into_iter().filter_map(|candidate| (candidate.detect)()).collect()
    }

    /// Columns of the register tile.
    pub(crate) fn tile_columns(self) -> usize {
        let mut columns = 0;
        self.run(TileColumns(&mut columns));
        columns
    }

    /// Whether there are instructions that multiply bf16 pairs.
    pub fn has_bf16_dot(self) -> bool {
        self.has_pairs(PairFormat::Bf16)
    }

    /// The tiles of products of pairs. Only where [`has_pairs`](Self::has_pairs).
    pub(crate) fn pair_tiles(self, format: PairFormat) -> PairTiles {
        let mut tiles = PairTiles::default();
        self.run_pairs(format, FindPairTiles(&mut tiles));
        tiles
    }
}

/// The tiles of an instruction set's products of pairs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PairTiles {
    /// Columns of the largest tile.
    pub columns: usize,
    /// The step of their pairs.
    pub pair_step: usize,
    /// The order of packed weights.
    pub order: PairOrder,
}

struct TileColumns<'a>(&'a mut usize);

impl Kernel for TileColumns<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, _: S) {
        *self.0 = NR * S::LANES;
    }
}

struct FindPairTiles<'a>(&'a mut PairTiles);

impl PairKernel for FindPairTiles<'_> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, _: S, _: D) {
        let columns = D::MAX_VECTORS * VECTOR_COLUMNS;
        *self.0 = PairTiles { columns, pair_step: D::PAIR_STEP, order: D::ORDER };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A candidate that must not be detected.
    const UNTOUCHED: Candidate = Candidate { name: "untouched", speed: || 1000, detect: || panic!("was detected") };
    const MISSING: Candidate = Candidate { name: "missing", speed: || 999, detect: || None };
    const PORTABLE: Candidate =
        Candidate { name: "portable", speed: || 1, detect: || Some(Isa(Token::Portable(portable::Portable))) };

    #[test]
    fn only_what_may_be_chosen_is_detected() {
        let name_of = |isa: Option<Isa>| isa.map(Isa::name);
        assert_eq!(name_of(choose(&[&UNTOUCHED, &MISSING, &PORTABLE], Some("portable"))), Some("portable"));
        assert_eq!(name_of(choose(&[&MISSING, &PORTABLE, &UNTOUCHED], None)), Some("portable"));
        assert_eq!(name_of(choose(&[&UNTOUCHED, &MISSING, &PORTABLE], Some("missing"))), None);
        assert_eq!(name_of(choose(&[&UNTOUCHED], Some("sse9"))), None);
    }

    #[test]
    fn the_candidates_are_sorted_by_speed() {
        let speeds: Vec<u32> = candidates().into_iter().map(|candidate| (candidate.speed)()).collect();
        assert!(speeds.is_sorted_by(|a, b| a >= b), "{speeds:?}");
    }
}
