//! Score tiles refuse sizes with which they would leave their memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_attention_kernels::Isa;

use super::isas;
use crate::convert::PairFormat;
use crate::isa::kernel::{Kernel, PairKernel};
use crate::isa::pair_dot::PairDot;
use crate::isa::simd::Simd;
use crate::mask::KEY_BLOCK;
use crate::score_tile::ScoreTile;
use crate::tile_bf16::TileBf16;
use crate::tile_f32::TileF32;

/// One call of a score tile. All memory has room for more than it asks for, so that a length check alone would pass.
#[derive(Clone, Copy)]
enum Call {
    Scores { count: usize },
    Values { width: usize },
}

impl Call {
    #[inline(always)]
    fn run<C: ScoreTile>(self, tile: C) {
        let large = 4 * C::ROWS * KEY_BLOCK;
        let (input, mut scores, mut output) = (vec![1.0; 8 * large], vec![1.0; large], vec![1.0; large]);
        match self {
            Self::Scores { count } => tile.scores(1, &input, 2, &input, count, &mut scores),
            Self::Values { width } => tile.accumulate_values(1, &mut scores, &input, 7, &mut output, width),
        }
    }
}

impl Kernel for Call {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        self.run(TileF32::<S, MR, NR>(s));
    }
}

impl PairKernel for Call {
    #[inline(always)]
    fn run<S: Simd, D: PairDot>(self, s: S, dot: D) {
        self.run(TileBf16(s, dot));
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let panics = |run: &dyn Fn()| catch_unwind(AssertUnwindSafe(run)).is_err();
    let on_each = |isa: Isa, call: Call| {
        let f32_panics = panics(&|| isa.run(call));
        let bf16_panics = isa.has_bf16_dot().then(|| panics(&|| isa.run_pairs(PairFormat::Bf16, call)));
        [Some(f32_panics), bf16_panics].into_iter().flatten().collect::<Vec<_>>()
    };
    for isa in isas() {
        for (call, refused) in [
            (Call::Scores { count: KEY_BLOCK }, false),
            (Call::Scores { count: KEY_BLOCK + 1 }, true),
            (Call::Values { width: 48 }, false),
            (Call::Values { width: 49 }, true),
        ] {
            assert!(on_each(isa, call).iter().all(|panics| *panics == refused), "{}", isa.name());
        }
    }
}
