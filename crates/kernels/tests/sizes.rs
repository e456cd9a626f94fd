//! Sizes that wrap around in `usize`, and operands that contradict each other: errors before anything is written.

use candle_attention_kernels::{
    Activation, AttentionProblem, Batch, Broadcast, Distances, Lengths, Mask, MaskStructure, Matrix, PackedWeights,
    Packer, QuantizedRows, RowNorm, ScratchPool, Team, WeightFormat, attend, matmul, max_sim,
};

use super::support::reference::{Sizes, problem, qkv};
use super::{Random, isas, on_threads};
use crate::memory::{MAX_KEPT_BYTES, kept_bytes};

const SIZES: Sizes = Sizes { b: 1, s_q: 4, s_kv: 4, appended: 0, h: 2, h_kv: 2, d: 4, d_v: 4 };
/// So many of anything exceed memory; times 128 it wraps around to 128 in 64 bits.
const ABSURD: usize = (1 << (usize::BITS - 7)) + 1;

/// Runs a problem that `change` has made wrong, and returns the error.
fn error(change: impl Fn(&mut AttentionProblem<f32>)) -> String {
    let [q, k, v] = qkv::<f32>(&mut Random(1), SIZES);
    let mut call = problem(SIZES, [&q, &k, &v], Mask::default());
    change(&mut call);
    let mut output = vec![1.0; 3];
    // Instruction sets pack differently, so another size may be the first that is too large.
    let errors = isas().into_iter().map(|isa| {
        let error = attend(isa, Team::ALONE, &call, &mut output).unwrap_err().to_string();
        assert!(output.is_empty(), "nothing is returned beside the error");
        error
    });
    errors.collect::<Vec<_>>().remove(0)
}

#[test]
fn products_of_sizes_that_wrap_around_are_errors() {
    let changes: [fn(&mut AttentionProblem<f32>); 5] = [
        |call: &mut AttentionProblem<f32>| (call.h, call.q.strides[2], call.d_v) = (2 * ABSURD, 0, 64),
        |call| call.batch = Batch::Padded { b: ABSURD, s_q: 4, s_kv: 4 },
        |call| call.batch = Batch::Padded { b: 1, s_q: ABSURD, s_kv: 4 },
        |call| call.d_v = usize::MAX,
        |call| (call.batch, call.q.strides) = (Batch::Padded { b: ABSURD, s_q: ABSURD, s_kv: 4 }, [0; 3]),
    ];
    for change in changes {
        let error = error(change);
        assert!(error.contains("the output of attention"), "{error}");
    }
    // Keys take no memory as a view, but would when they are packed.
    for keys in [ABSURD, 1 << (usize::BITS / 8 * 7 - 1)] {
        let error = error(|call| {
            call.batch = Batch::Padded { b: 1, s_q: 4, s_kv: keys };
            (call.k.strides, call.v.strides) = ([0; 3], [0; 3]);
        });
        assert!(error.contains("scratch memory"), "{error}");
    }
    assert!(error(|call| call.appended = usize::MAX).contains("keys"));
}

#[test]
fn operands_that_contradict_each_other_are_errors() {
    assert!(error(|call| call.h = 3).contains("query heads"));
    assert!(error(|call| call.h_kv = 0).contains("query heads"));
    assert!(error(|call| call.d = 0).contains("head dimension"));
    assert!(error(|call| call.q.strides[1] = usize::MAX).contains("queries"));
    assert!(error(|call| call.q.data = &call.q.data[1..]).contains("queries"));
    assert!(error(|call| call.k.data = &call.k.data[1..]).contains("keys"));
    assert!(error(|call| call.v.data = &[]).contains("values"));
    assert!(error(|call| call.sinks = Some(&[1.0])).contains("sinks"));
    for offsets in [&[1, 4][..], &[0, 3, 2, 4], &[4, 0]] {
        assert!(error(|call| call.batch = Batch::Ragged { offsets }).contains("offsets"));
    }
    assert!(error(|call| (call.batch, call.appended) = (Batch::Ragged { offsets: &[0, 3] }, 1)).contains("appended"));
    let structured = |structure: MaskStructure| error(|call| call.mask = structure.clone().into());
    let base = MaskStructure::default;
    assert!(structured(MaskStructure { lengths: vec![Lengths::PerSequence(vec![])], ..base() }).contains("lengths"));
    let lengths = vec![Lengths::PerQuery(vec![vec![1; 3]])];
    assert!(structured(MaskStructure { lengths, ..base() }).contains("lengths in a row"));
    assert!(structured(MaskStructure { starts: Some(vec![0; 2]), ..base() }).contains("starts"));
    let distances = vec![Distances { slopes: vec![1.0], symmetric: false }];
    assert!(structured(MaskStructure { distances, ..base() }).contains("slopes"));
    let strides = [0, 0, 4, 1];
    assert!(error(|call| call.mask.keep = vec![Broadcast { data: &[1; 15], strides }]).contains("keep mask"));
    assert!(error(|call| call.mask.bias = vec![Broadcast { data: &[0.0; 15], strides }]).contains("additive mask"));
    let segments = [[0, 0, 1, 0], [0, 0, 0, 1]].map(|strides| Broadcast { data: &[0; 3], strides });
    assert!(error(|call| call.mask.segments = vec![segments]).contains("segments"));
}

#[test]
fn a_call_without_output_does_nothing() {
    let mut call = problem(Sizes { h: 0, ..SIZES }, [&[], &[], &[]], Mask::default());
    let batches = [
        Batch::Padded { b: usize::MAX, s_q: usize::MAX, s_kv: usize::MAX },
        Batch::Padded { b: 0, s_q: 1, s_kv: 1 },
        Batch::Ragged { offsets: &[] },
        Batch::Ragged { offsets: &[0, 0] },
    ];
    for batch in batches {
        call.batch = batch;
        let mut output = vec![1.0];
        attend(isas()[0], Team::ALONE, &call, &mut output).unwrap();
        assert!(output.is_empty());
    }
}

#[test]
fn products_check_their_sizes() {
    let half = 1usize << (usize::BITS / 2);
    for isa in isas() {
        for pack in [PackedWeights::new, PackedWeights::new_bf16] {
            let weights = pack(isa, &[1.0; 128], None, 1, 128).unwrap();
            let mut output = vec![1.0f32];
            // The number of elements wraps around to the length of the slice.
            for (a, rows) in [(&[][..], ABSURD - 1), (&[1.0f32; 128], ABSURD), (&[1.0; 127], 1), (&[], usize::MAX)] {
                let error =
                    weights.multiply(Team::ALONE, a, rows, Activation::Identity, &mut output).unwrap_err().to_string();
                assert!(error.contains("the input of a product") && output.is_empty(), "{error}");
            }
            // No input feature: a weight without memory.
            let wide = pack(isa, &[], None, 8, 0).unwrap();
            let error = wide
                .multiply(Team::ALONE, &[0f32; 0], 1 << (usize::BITS - 3), Activation::Identity, &mut output)
                .unwrap_err();
            assert!(error.to_string().contains("the output of a product"), "{error}");
            for (out, input) in [(half, half), (usize::MAX, 0), (usize::MAX, 1), (3, 5)] {
                assert!(pack(isa, &[], None, out, input).is_err(), "{out} × {input}");
            }
            assert!(pack(isa, &[1.0; 6], Some(&[1.0]), 2, 3).unwrap_err().to_string().contains("a bias"));
        }
        let norm = |xs: &mut [f32], residual: Option<&[f32]>, weight: &[f32], bias: &[f32]| {
            let norm = RowNorm { weight, bias, eps: 1e-5, rms: false };
            norm.apply(isa, Team::ALONE, xs, residual).map_err(|error| error.to_string())
        };
        assert!(norm(&mut [1.0; 6], None, &[1.0; 3], &[0.0; 2]).unwrap_err().contains("bias"));
        assert!(norm(&mut [1.0; 5], None, &[1.0; 3], &[0.0; 3]).unwrap_err().contains("input"));
        assert!(norm(&mut [1.0; 5], None, &[], &[]).unwrap_err().contains("input"));
        assert!(norm(&mut [1.0; 6], Some(&[1.0; 3]), &[1.0; 3], &[0.0; 3]).unwrap_err().contains("residual"));
        norm(&mut [], None, &[], &[]).unwrap();
    }
}

/// Rows and sequences without memory of their own are not gone through one by one.
#[test]
fn sizes_that_take_no_memory_are_not_counted() {
    let mut output = vec![1.0f32];
    for isa in isas() {
        for format in [WeightFormat::F32, WeightFormat::Int8, WeightFormat::Q8_0, WeightFormat::Q4_0] {
            let nothing = Packer::new(isa, format, 0, 0).unwrap().finish().unwrap();
            for rows in [1 << (usize::BITS - 5), 1 << (usize::BITS - 1)] {
                nothing.multiply(Team::ALONE, &[0f32; 0], rows, Activation::Identity, &mut output).unwrap();
                assert!(output.is_empty());
            }
            for (features, document) in [(0, &[][..]), (32, &[1.0; 32])] {
                let query = Packer::new(isa, format, 0, features).unwrap().finish().unwrap();
                let error = max_sim(&query, document, &ScratchPool::default()).unwrap_err().to_string();
                assert!(error.contains("the tokens of a query"), "{error}");
            }
        }
        let matrix = |dims| Matrix { data: &[], dims, transposed: false };
        let (rows, nothing) = (matrix([1 << (usize::BITS - 5), 0]), matrix([0, 0]));
        matmul(isa, Team::ALONE, rows, nothing, Some(&[]), &mut output).unwrap();
        assert!(output.is_empty());
    }
    for width in [1 << (usize::BITS - 5), 1 << (usize::BITS - 2)] {
        let mut table = QuantizedRows::new(WeightFormat::Q8_0, 0, width).unwrap();
        table.push(&[0f32; 0]).unwrap();
        assert!(table.push(&[0f32; 32]).is_err());
    }
    // One sequence in memory, seen as many.
    let error = error(|call| {
        call.batch = Batch::Padded { b: 1 << (usize::BITS / 4 * 3), s_q: 4, s_kv: 4 };
        (call.q.strides[0], call.k.strides[0], call.v.strides[0]) = (0, 0, 0);
        assert!(call.multiply_adds() >= 1 << (usize::BITS / 4 * 3));
    });
    let expected = if usize::BITS == 64 { "the memory for" } else { "which is all that can be addressed" };
    assert!(error.contains(expected), "{error}");
}

/// A few keys more than the limit has room for; all of them are one key in memory. The queries are too many for the
/// kernel that packs no keys.
#[test]
fn scratch_memory_above_the_limit_goes_back() {
    let heads = vec![0.5f32; 130 * 256];
    let sizes = |s_kv: usize| Sizes { b: 1, s_q: 130, s_kv, appended: 0, h: 1, h_kv: 1, d: 256, d_v: 256 };
    let run = |s_kv: usize, bf16: bool| {
        let mut call = problem(sizes(s_kv), [&heads[..], &heads, &heads], Mask::default());
        (call.k.strides, call.v.strides, call.bf16) = ([0; 3], [0; 3], bf16);
        for isa in isas() {
            let mut output = Vec::new();
            attend(isa, Team::ALONE, &call, &mut output).unwrap();
            assert!(output.iter().all(|x| (x - 0.5).abs() < 1e-2), "{}", isa.name());
        }
    };
    on_threads(1, || {
        run(100, false);
        let small = kept_bytes();
        assert!(small > 100 * 512 * 4 && small < 1 << 20, "{small} bytes are kept for the next call");
        run(MAX_KEPT_BYTES / 4 / 512 + 1, false);
        assert_eq!(kept_bytes(), small);
        run(MAX_KEPT_BYTES / 2 / 512 + 1, true);
        assert!(kept_bytes() <= MAX_KEPT_BYTES);
    });
}
