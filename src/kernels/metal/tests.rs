//! The attention kernel, compiled for the CPU, against f64 loops. It is C++ there and needs a compiler, `c++` or the one named
//! by `CXX`: `cargo test --release --lib -- --ignored emulated`.

use std::collections::HashMap;

use candle_attention_kernels::{AttentionProblem, Batch, Element, HeadsView, Lengths, Mask, MaskStructure};
use candle_core::DType;
use half::{bf16, f16};
use libloading::Library;

use super::params::{Params, Sequence, limit, sequences};
use super::variant::{QUERIES, Variant};
use crate::kernels::cuda::tests::emulator::{EMULATOR, Memory, compile, dtype};
use crate::kernels::support::reference::{Sizes, naive, problem, qkv};
use crate::kernels::support::{Random, upcast};

const METAL: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metal_emulator/emulator.hpp"));
const LAUNCH: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metal_emulator/launch.cpp"));

/// The kernels compiled so far.
struct Emulator {
    folder: tempfile::TempDir,
    kernels: HashMap<Variant, Library>,
    random: Random,
}

/// The struct `Arguments` of `launch.cpp`; the first six are addresses.
#[repr(C)]
struct Arguments {
    q: u64,
    k: u64,
    v: u64,
    out: u64,
    sequences: u64,
    sinks: u64,
    params: Params,
}

impl Emulator {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), kernels: HashMap::new(), random: Random(12) }
    }

    fn kernel(&mut self, variant: Variant) -> &Library {
        let to = self.folder.path().join(format!("{}.so", self.kernels.len()));
        self.kernels.entry(variant).or_insert_with(|| {
            let element = match variant.dtype {
                DType::F32 => "float",
                DType::F16 => "half",
                _ => "bfloat",
            };
            // The word is a macro of the emulator.
            let source =
                variant.source(element).replace("#include <metal_stdlib>\n", "").replace("[[threadgroup(0)]]", "");
            compile(&[EMULATOR, METAL, &source, LAUNCH].concat(), &[], &to)
        })
    }

    fn run<T: Element>(&mut self, call: &AttentionProblem<T>) -> Vec<T> {
        let variant = Variant { dtype: dtype::<T>(), d: call.d, d_v: call.d_v };
        let (structure, seed) = (&call.mask.structure, self.random.0 as u32);
        self.random.next();
        let in_sequence = |heads: &HeadsView<T>| [heads.strides[1] as i64, heads.strides[2] as i64];
        let between = |heads: &HeadsView<T>| [heads.strides[0], heads.strides[1]];
        let strides = [between(&call.q), between(&call.k), between(&call.v)];
        let all = sequences(call.batch, structure, strides, call.h * call.d_v).unwrap();
        let params = Params {
            q_strides: in_sequence(&call.q),
            k_strides: in_sequence(&call.k),
            v_strides: in_sequence(&call.v),
            h: call.h as i32,
            h_kv: call.h_kv as i32,
            left: limit(structure.left),
            right: limit(structure.right),
            scale: call.scale,
            softcap: call.softcap.unwrap_or(0.0),
            has_sinks: i32::from(call.sinks.is_some()),
            reserved: 0,
        };
        let longest = all.iter().map(|sequence| sequence.queries).max().unwrap_or(0) as u32;
        let size = call.batch.queries() * call.h * call.d_v;
        let kernel = self.kernel(variant);
        let mut memory = Memory::new(kernel);
        let arguments = Arguments {
            q: memory.hold(call.q.data),
            k: memory.hold(call.k.data),
            v: memory.hold(call.v.data),
            // NaN, so that elements which the kernel does not write are noticed.
            out: memory.hold(&vec![0xffu8; size * size_of::<T>()]),
            sequences: memory.hold(&all),
            sinks: memory.hold_optional(call.sinks.map(<[f32]>::to_vec)),
            params,
        };
        // SAFETY: the library is compiled from the source of this variant; the arguments have the layout of its structs, by
        // `params.rs` and `Arguments`.
        unsafe {
            let emulate = kernel.get::<unsafe extern "C" fn(&Arguments, &[u32; 2], usize, u32)>(b"emulate").unwrap();
            let groups = [longest.div_ceil(QUERIES as u32), (all.len() * call.h) as u32];
            emulate(&arguments, &groups, variant.tile_bytes(), seed);
            std::slice::from_raw_parts(arguments.out as *const T, size).to_vec()
        }
    }
}

#[track_caller]
fn check<T: Element>(emulator: &mut Emulator, call: &AttentionProblem<T>, tolerance: f64, what: &str) {
    let (want, got) = (naive(call), upcast(&emulator.run(call)));
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance + tolerance * want.abs(), "{what}: [{i}] {got}, want {want}");
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_metal_attention_in_many_sizes() {
    let (mut random, mut emulator) = (Random(13), Emulator::new());
    let base = Sizes { b: 2, s_q: 70, s_kv: 70, appended: 0, h: 4, h_kv: 2, d: 64, d_v: 64 };
    let all = [
        base,
        Sizes { s_q: 1, s_kv: 333, h_kv: 1, ..base },
        Sizes { s_q: 7, s_kv: 65, h_kv: 4, d: 32, d_v: 32, ..base },
        Sizes { b: 1, s_q: 133, s_kv: 70, d: 40, d_v: 40, ..base },
        Sizes { s_q: 33, s_kv: 32, d: 1, d_v: 33, ..base },
        Sizes { s_q: 32, s_kv: 31, d: 21, d_v: 7, ..base },
        Sizes { b: 1, s_q: 31, s_kv: 70, h: 2, d: 256, d_v: 256, ..base },
        Sizes { b: 1, s_q: 33, s_kv: 70, h: 2, d: 72, d_v: 250, ..base },
    ];
    for sizes in all {
        let what = format!("{sizes:?}");
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        check(&mut emulator, &problem(sizes, [&q, &k, &v], Mask::default()), 3e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        check(&mut emulator, &problem(sizes, [&q, &k, &v], Mask::default()), 1e-3, &what);
        let [q, k, v] = qkv::<bf16>(&mut random, sizes);
        check(&mut emulator, &problem(sizes, [&q, &k, &v], Mask::default()), 8e-3, &what);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_metal_attention_under_masks() {
    let (mut random, mut emulator) = (Random(14), Emulator::new());
    let sinks = [0.5, -2.0, f32::NEG_INFINITY, 9.0];
    for (s_q, s_kv) in [(5, 7), (70, 90), (90, 70), (1, 40)] {
        let sizes = Sizes { b: 3, s_q, s_kv, appended: 0, h: 4, h_kv: 2, d: 24, d_v: 16 };
        let base = MaskStructure::default;
        let keys = || vec![Lengths::PerSequence(vec![s_kv, s_kv / 2, 0])];
        let tokens = || vec![Lengths::Padding(vec![s_q.min(s_kv), 0, s_q.min(s_kv) / 2])];
        let masks = [
            base(),
            MaskStructure { lengths: keys(), ..base() },
            MaskStructure { lengths: tokens(), ..base() },
            MaskStructure { lengths: [keys(), tokens()].concat(), right: Some(0), ..base() },
            MaskStructure { right: Some(0), ..base() },
            MaskStructure { left: Some(9), ..base() },
            MaskStructure { left: Some(0), right: Some(0), ..base() },
            MaskStructure { left: Some(usize::MAX), right: Some(17), ..base() },
            MaskStructure { right: Some(0), starts: Some(vec![2, -1, 60]), ..base() },
            MaskStructure { left: Some(3), right: Some(4), starts: Some(vec![-200, 200, 0]), ..base() },
        ];
        for mask in masks {
            for (softcap, sinks) in [(None, None), (Some(0.7), Some(&sinks[..]))] {
                let what = format!("{s_q} × {s_kv}, {softcap:?}, {sinks:?}, {mask:?}");
                let [q, k, v] = qkv::<f32>(&mut random, sizes);
                let of = problem(sizes, [&q, &k, &v], mask.clone().into());
                check(&mut emulator, &AttentionProblem { softcap, sinks, ..of }, 4e-6, &what);
                let [q, k, v] = qkv::<f16>(&mut random, sizes);
                let of = problem(sizes, [&q, &k, &v], mask.clone().into());
                check(&mut emulator, &AttentionProblem { softcap, sinks, ..of }, 2e-3, &what);
            }
        }
    }
}

/// Sequences of unequal length, with queries, keys and values in one packed projection.
#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_metal_attention_on_ragged_batches() {
    let (mut random, mut emulator) = (Random(15), Emulator::new());
    let (h, h_kv, d, lengths) = (4, 2, 40, [3, 0, 150, 64, 1]);
    let starts: Vec<usize> = (0..=lengths.len()).map(|i| lengths[..i].iter().sum()).collect();
    let width = (h + 2 * h_kv) * d;
    let qkv: Vec<f32> = random.values(starts[lengths.len()] * width);
    let sizes = Sizes { b: 1, s_q: 1, s_kv: 1, appended: 0, h, h_kv, d, d_v: d };
    for (left, right) in [(None, None), (None, Some(0)), (Some(20), Some(20))] {
        let mask: Mask = MaskStructure { left, right, ..MaskStructure::default() }.into();
        let of = |start: usize, batch| {
            let part = |first: usize| HeadsView { data: &qkv[start * width + first * d..], strides: [0, width, d] };
            let (q, k, v) = (part(0), part(h), part(h + h_kv));
            AttentionProblem { q, k, v, batch, ..problem(sizes, [&qkv[..]; 3], mask.clone()) }
        };
        let got = emulator.run(&of(0, Batch::Ragged { offsets: &starts }));
        for (&length, &start) in lengths.iter().zip(&starts) {
            let want = naive(&of(start, Batch::Padded { b: 1, s_q: length, s_kv: length }));
            for (got, want) in got[start * h * d..].iter().zip(want) {
                assert!((f64::from(*got) - want).abs() <= 3e-6 * (1.0 + want.abs()), "{got}, want {want}");
            }
        }
    }
}

/// Whether a query of a sequence sees a key: sequence, query, key.
type Sees<'a> = &'a dyn Fn(usize, usize, usize) -> bool;

/// NaN and infinities in hidden keys and values have no influence; a query that sees NaN gets NaN.
#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_metal_attention_ignores_what_hidden_keys_hold() {
    let (mut random, mut emulator) = (Random(16), Emulator::new());
    let sizes = Sizes { b: 2, s_q: 40, s_kv: 40, appended: 0, h: 2, h_kv: 1, d: 8, d_v: 8 };
    let [q, k, v] = qkv::<f32>(&mut random, sizes);
    let masks: [(MaskStructure, Sees); 2] = [
        (MaskStructure { right: Some(0), ..MaskStructure::default() }, &|_, i, j| j <= i),
        (
            MaskStructure { lengths: vec![Lengths::PerSequence(vec![40, 13])], ..MaskStructure::default() },
            &|b, _, j| j < [40, 13][b],
        ),
    ];
    for (mask, sees) in masks {
        let clean = emulator.run(&problem(sizes, [&q, &k, &v], mask.clone().into()));
        for (place, bad) in [(17, f32::NAN), (35, f32::INFINITY)] {
            let spoil = |xs: &[f32]| {
                let mut xs = xs.to_vec();
                xs[(sizes.s_kv + place) * 8 + 3] = bad;
                xs
            };
            let (bad_k, bad_v) = (spoil(&k), spoil(&v));
            let keys = emulator.run(&problem(sizes, [&q, &bad_k, &v], mask.clone().into()));
            let values = emulator.run(&problem(sizes, [&q, &k, &bad_v], mask.clone().into()));
            for (at, clean) in clean.iter().enumerate() {
                let (b, i) = (at / 16 / 40, at / 16 % 40);
                if b == 0 || !sees(b, i, place) {
                    assert_eq!([keys[at].to_bits(), values[at].to_bits()], [clean.to_bits(); 2], "{mask:?}, {at}");
                } else {
                    assert_eq!(values[at].is_finite(), at % 8 != 3, "{mask:?}, {at}");
                    assert!(!bad.is_nan() || keys[at].is_nan(), "{mask:?}, {at}");
                }
            }
        }
    }
}

/// A score of -infinity has the weight 0, wherever it stands, and where there is no other.
#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_metal_attention_with_scores_of_minus_infinity() {
    let (mut random, mut emulator) = (Random(17), Emulator::new());
    let sizes = Sizes { b: 1, s_q: 12, s_kv: 12, appended: 0, h: 1, h_kv: 1, d: 4, d_v: 4 };
    let [mut q, k, v] = qkv::<f32>(&mut random, sizes);
    q.iter_mut().step_by(4).for_each(|x| *x = x.abs() + 0.1);
    for keys in [0..1, 0..3, 0..4, 4..8, 0..11, 0..12] {
        let mut k = k.clone();
        keys.clone().for_each(|key| k[4 * key] = f32::NEG_INFINITY);
        for (left, right) in [(None, None), (None, Some(0)), (Some(2), Some(0)), (Some(0), Some(5))] {
            let mask = MaskStructure { left, right, ..MaskStructure::default() };
            for sinks in [None, Some(&[0.5][..]), Some(&[f32::NEG_INFINITY][..])] {
                let of = problem(sizes, [&q, &k, &v], mask.clone().into());
                let of = AttentionProblem { sinks, ..of };
                for (got, want) in emulator.run(&of).iter().zip(naive(&of)) {
                    let error = (f64::from(*got) - want).abs();
                    assert!(error < 3e-6, "{keys:?}, {left:?}, {right:?}, {sinks:?}: {got}, want {want}");
                }
            }
        }
    }
}

/// What the source and the host both count with.
#[test]
fn constants_of_host_and_source_agree() {
    let source = Variant { dtype: DType::F32, d: 64, d_v: 64 }.source("float");
    assert!(source.contains(&format!("QUERIES = {QUERIES},")));
    for (d, d_v) in [(1, 1), (64, 64), (250, 3), (256, 256)] {
        let variant = Variant { dtype: DType::F32, d, d_v };
        assert!(variant.keys().is_multiple_of(4) && variant.tile_bytes() <= 32 << 10, "{d}, {d_v}");
    }
    assert_eq!((size_of::<Params>(), size_of::<Sequence>()), (80, 48));
}
