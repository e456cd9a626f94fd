//! Few queries per key-value head give the bits of the same queries among many, which the general kernel takes.

use candle_attention_kernels::{AttentionProblem, Element, HeadsView, Isa, Mask, MaskStructure, Team, attend};
use half::{bf16, f16};

use super::attention::check;
use super::support::reference::{Sizes, problem, qkv};
use super::{Random, isas, on_threads, upcast};

/// Queries at the end of `keys` keys under a causal mask.
fn chunk<'a, T: Element>(sizes: Sizes, q: &'a [T], k: &'a [T], v: &'a [T], use_bf16: bool) -> AttentionProblem<'a, T> {
    let mut chunk = problem(sizes, [q, k, v], MaskStructure { right: Some(0), ..MaskStructure::default() }.into());
    chunk.bf16 = use_bf16;
    chunk
}

fn output<T: Element>(isa: Isa, threads: usize, call: &AttentionProblem<T>) -> Vec<u32> {
    let mut output = Vec::new();
    on_threads(threads, || Team::with(usize::MAX, |team| attend(isa, team, call, &mut output))).unwrap();
    upcast(&output).into_iter().map(f32::to_bits).collect()
}

fn check_bits<T: Element>(use_bf16: bool) {
    let mut random = Random(31);
    // Query heads, key-value heads, values per head, keys; the numbers of queries of the chunks.
    for (h, h_kv, d, d_v, keys, counts) in [
        (2, 2, 8, 8, 30, &[1, 2, 5][..]),
        (4, 2, 128, 128, 400, &[1, 2, 3, 9, 64]),
        (3, 1, 7, 5, 193, &[1, 3, 40]),
        (7, 1, 40, 16, 385, &[1, 2, 18]),
        (16, 1, 72, 64, 210, &[1, 8]),
        (8, 2, 64, 80, 577, &[1, 2, 3, 31]),
    ] {
        let all = Sizes { b: 1, s_q: keys, s_kv: keys, appended: 0, h, h_kv, d, d_v };
        let [q, k, v] = qkv::<T>(&mut random, all);
        for isa in isas() {
            let whole = chunk(all, &q, &k, &v, use_bf16);
            assert!(!whole.erase().has_few_queries());
            let want = output(isa, 1, &whole);
            for &count in counts {
                let sizes = Sizes { s_q: count, ..all };
                let few = chunk(sizes, &q[(keys - count) * h * d..], &k, &v, use_bf16);
                assert!(few.erase().has_few_queries(), "{sizes:?}");
                for threads in [1, 2, 5] {
                    let got = output(isa, threads, &few);
                    let want = &want[(keys - count) * h * d_v..];
                    let first = got.iter().zip(want).position(|(got, want)| got != want);
                    assert_eq!(first, None, "{} on {threads} threads: {sizes:?}", isa.name());
                }
            }
        }
    }
}

#[test]
fn few_queries_have_the_bits_of_many() {
    check_bits::<f32>(false);
    check_bits::<f32>(true);
    check_bits::<f16>(false);
    check_bits::<bf16>(false);
    check_bits::<bf16>(true);
}

/// Keys and values in rows that are longer than a head, which do not start at a multiple of four bytes.
#[test]
fn views_of_any_stride_match_the_reference() {
    let sizes = Sizes { b: 2, s_q: 1, s_kv: 200, appended: 1, h: 4, h_kv: 2, d: 24, d_v: 32 };
    fn check_with<T: Element>(sizes: Sizes, use_bf16: bool, tolerance: f64) {
        let [q, k, v] = qkv::<T>(&mut Random(32), Sizes { d: 2 * sizes.d + 1, d_v: 2 * sizes.d_v + 1, ..sizes });
        let q = &q[..sizes.b * sizes.h * sizes.d];
        let mut call = problem(sizes, [q, &k, &v], Mask::default());
        let row = |d: usize| {
            let head = 2 * d + 1;
            [(sizes.s_kv + sizes.appended) * sizes.h_kv * head, sizes.h_kv * head, head]
        };
        call.k = HeadsView { data: &k, strides: row(sizes.d) };
        call.v = HeadsView { data: &v, strides: row(sizes.d_v) };
        call.bf16 = use_bf16;
        assert!(call.erase().has_few_queries());
        check(&call, tolerance, "strides");
    }
    check_with::<f32>(sizes, false, 2e-6);
    check_with::<bf16>(sizes, false, 5e-3);
    check_with::<bf16>(sizes, true, 6e-3);
}
