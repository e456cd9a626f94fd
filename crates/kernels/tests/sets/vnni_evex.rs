//! `vpdpbusd` on vectors of 32 bytes in the encoding of AVX-512. With it, the kernels for AVX-VNNI are tested where a
//! processor has AVX512-VNNI only; and those of AVX2 on every processor.

use crate::int8::kernel::{Int8InstructionSet, Int8Kernel};
use crate::int8::x86::{Avx2Int8, Vnni};
use crate::isa::avx2::Avx2;
use crate::isa::kernel::{InstructionSet, Kernel};

/// AVX2 with this instruction. Only tests have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VnniEvex(Avx2, Vnni<false>);

impl InstructionSet for VnniEvex {
    const NAME: &'static str = "vnni_evex";
    const F32_NAME: &'static str = Avx2::NAME;

    fn detect() -> Option<Self> {
        let avx2 = Avx2::detect()?;
        Some(Self(avx2, Vnni::detect(avx2)?))
    }

    fn speed() -> u32 {
        0
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }
}

impl Int8InstructionSet for VnniEvex {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        self.1.run(kernel);
    }
}

/// AVX2 without AVX-VNNI. Only tests have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainAvx2(Avx2);

impl InstructionSet for PlainAvx2 {
    const NAME: &'static str = "plain_avx2";
    const F32_NAME: &'static str = Avx2::NAME;

    fn detect() -> Option<Self> {
        Avx2::detect().map(Self)
    }

    fn speed() -> u32 {
        0
    }

    fn run<K: Kernel>(self, kernel: K) {
        self.0.run(kernel);
    }
}

impl Int8InstructionSet for PlainAvx2 {
    fn run_int8<K: Int8Kernel>(self, kernel: K) {
        Avx2Int8(self.0).run(kernel);
    }
}
