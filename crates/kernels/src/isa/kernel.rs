//! The interface between kernels and the instruction sets that they run on.

use super::pair_dot::PairDot;
use super::simd::Simd;
use crate::convert::PairFormat;

/// A kernel: work written once, generic over the vectors of an instruction set.
///
/// `run` must be `#[inline(always)]`. It is then compiled inside a function that enables the instructions by
/// `#[target_feature]`, and so is every vector operation that it calls.
pub(crate) trait Kernel {
    /// The register tile is `MR` rows by `NR` vectors of `S`.
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S);
}

/// A kernel that multiplies pairs of 16-bit numbers. `run` must be `#[inline(always)]`, for the reason given at
/// [`Kernel`].
pub(crate) trait PairKernel {
    fn run<S: Simd, D: PairDot>(self, s: S, dot: D);
}

/// An instruction set: its name, its detection, and how kernels run on it.
///
/// A value is a capability token. Its only constructor is [`detect`](Self::detect), so a value proves that this
/// processor has the instructions. This is the reason why the safe methods of [`Simd`] and [`PairDot`] may execute
/// them.
pub(crate) trait InstructionSet: Copy {
    /// The name that the environment variable `CANDLE_ATTENTION_ISA` takes.
    const NAME: &'static str;
    /// The name of the instructions that [`run`](Self::run) uses, where they are those of another instruction set.
    const F32_NAME: &'static str = Self::NAME;
    /// The formats of the pairs that it multiplies, by [`run_pairs`](Self::run_pairs).
    const PAIRS: &[PairFormat] = &[];

    /// Checks that the processor and the operating system support the instructions.
    ///
    /// This may change the process: AMX takes a permission. So it is called only for an instruction set that would then
    /// be used.
    fn detect() -> Option<Self>;

    /// Multiply-adds per cycle on one port, in the fastest product that it has. The fastest instruction set of a
    /// processor is its default. This looks at the processor only, and changes nothing.
    fn speed() -> u32;

    /// Runs a kernel inside a function that enables the instructions, with the register tile of this instruction set.
    fn run<K: Kernel>(self, kernel: K);

    /// Runs a kernel with products of pairs of one of its formats.
    fn run_pairs<K: PairKernel>(self, format: PairFormat, _kernel: K) {
        unreachable!("{} has no products of {format:?} pairs", Self::NAME)
    }
}
