//! The instructions themselves: by the processor where it has AMX, elsewhere by the emulator through its signal.

use std::arch::asm;
use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_attention_kernels::Isa;

use super::machine::{CONFIG_BYTES, Machine, Tile, random_tile};
use crate::convert::PairFormat;
use crate::isa::kernel::PairKernel;
use crate::isa::pair_dot::PairDot;
use crate::isa::simd::Simd;
use crate::tests::{Random, isas};

fn amx() -> Option<Isa> {
    isas().into_iter().find(|isa| isa.name() == "amx")
}

/// What the tile registers of this thread are configured for. Only where there is AMX.
fn config() -> [u8; CONFIG_BYTES] {
    let mut config = [0xff; CONFIG_BYTES];
    // SAFETY: `amx` was `Some`; the instruction writes 64 bytes.
    unsafe { asm!("sttilecfg [{}]", in(reg) &raw mut config, options(nostack)) };
    config
}

struct Panics;

impl PairKernel for Panics {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, _: S, _: D) {
        assert_eq!(config()[0], 1, "the palette during a kernel");
        panic!("on purpose");
    }
}

#[test]
fn a_panic_in_a_kernel_releases_the_tiles() {
    let Some(amx) = amx() else { return };
    let payload = catch_unwind(AssertUnwindSafe(|| amx.run_pairs(PairFormat::Bf16, Panics))).unwrap_err();
    assert_eq!(payload.downcast_ref(), Some(&"on purpose"));
    assert_eq!(config(), [0; CONFIG_BYTES]);
}

/// Multiplies whole tiles: `to += a · b`.
struct MultipliesTiles<'a>(&'a mut Tile, &'a Tile, &'a Tile);

impl PairKernel for MultipliesTiles<'_> {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, _: S, _: D) {
        // SAFETY: this runs under `run_pairs` of AMX, which configures tiles of 16 rows of 64 bytes. Registers from r8
        // on have encodings of their own.
        unsafe {
            asm!(
                "tileloadd tmm5, [r11 + r15]",
                "tileloadd tmm6, [r12 + r15]",
                "tileloadd tmm7, [r13 + r15]",
                "tdpbf16ps tmm5, tmm6, tmm7",
                "tilestored [r11 + r15], tmm5",
                in("r11") self.0,
                in("r12") self.1,
                in("r13") self.2,
                in("r15") size_of::<[u8; 64]>(),
                out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// With AMX this compares the emulator with the processor, without it the signal handler with a direct call.
#[test]
fn the_emulator_gives_the_bits_of_the_processor() {
    let Some(amx) = amx() else { return };
    let mut random = Random(13);
    for _ in 0..100 {
        let mut to = random_tile(&mut random);
        let (a, b) = (random_tile(&mut random), random_tile(&mut random));
        let want = Machine::product(to, &a, &b);
        amx.run_pairs(PairFormat::Bf16, MultipliesTiles(&mut to, &a, &b));
        for (got, want) in to.as_flattened().chunks_exact(4).zip(want.as_flattened().chunks_exact(4)) {
            let [got, want] = [got, want].map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{got:e}, emulated {want:e}");
        }
    }
}
