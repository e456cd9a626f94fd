//! The attention kernels on the emulator against f64 loops. They are C++ and need a compiler, `c++` or the one named by
//! `CXX`: `cargo test --release --lib -- --ignored emulated`.

use std::collections::HashMap;

use candle_attention_kernels::{AttentionProblem, Batch, Distances, Element, HeadsView, Lengths, Mask, MaskStructure};
use half::{bf16, f16};
use libloading::Library;

use super::emulator::{EMULATOR, Memory, compile, dtype};
use crate::kernels::cuda::Gpu;
use crate::kernels::cuda::{AttentionParams, Features, ProblemShape, Variant};
use crate::support::masks::MaskTensors;
use crate::support::reference::{Sizes, naive, problem, qkv};
use crate::support::{Random, upcast};

/// GPUs for which the same problem selects different kernels and tile sizes.
pub(super) const GPUS: [Gpu; 4] = [
    Gpu { capability: 90, multiprocessors: 1, shared_memory: 227 << 10 },
    Gpu { capability: 89, multiprocessors: 1, shared_memory: 99 << 10 },
    Gpu { capability: 80, multiprocessors: 108, shared_memory: 163 << 10 },
    Gpu { capability: 75, multiprocessors: 40, shared_memory: 48 << 10 },
];

/// The kernels compiled so far.
pub(super) struct Emulator {
    folder: tempfile::TempDir,
    kernels: HashMap<Variant, Library>,
    random: Random,
}

impl Emulator {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), kernels: HashMap::new(), random: Random(11) }
    }

    fn kernel(&mut self, variant: Variant) -> &Library {
        let to = self.folder.path().join(format!("{}.so", self.kernels.len()));
        self.kernels.entry(variant).or_insert_with(|| {
            let text = variant.source(EMULATOR)
                + include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda_emulator/launch_attention.cpp"));
            compile(&text, &variant.definitions(), &to)
        })
    }

    pub(super) fn run<T: Element>(&mut self, call: &AttentionProblem<T>, gpu: Gpu) -> Vec<T> {
        let shape = shape(call);
        let variant = Variant::select(shape, gpu).unwrap();
        let seed = self.random.0 as u32;
        self.random.next();
        let kernel = self.kernel(variant);
        let mut memory = Memory::new(kernel);
        let heads = call.batch.queries() * call.h;
        let size = heads * call.d_v;
        let params = params(call, &mut memory, size, variant.splits(shape, gpu));
        let (_, combine_bytes) = Variant::combine_block(call.d_v);
        // SAFETY: the library is compiled from the source of this variant; `params` has the layout of its struct, by
        // `params.rs`.
        unsafe {
            let emulate =
                kernel.get::<unsafe extern "C" fn(&AttentionParams, &[u32; 2], &[usize; 2], u32)>(b"emulate").unwrap();
            let blocks = [variant.blocks(shape.work_items, shape.query_rows) as u32, heads as u32];
            emulate(&params, &blocks, &[variant.shared_bytes(), combine_bytes], seed);
            std::slice::from_raw_parts(params.out as *const T, size).to_vec()
        }
    }
}

fn shape<T: Element>(call: &AttentionProblem<T>) -> ProblemShape {
    let longest = |length: &dyn Fn(usize) -> usize| call.batch.sequences().map(length).max().unwrap_or(0);
    ProblemShape {
        dtype: dtype::<T>(),
        d: call.d,
        d_v: call.d_v,
        work_items: call.batch.sequences().len() * call.h_kv,
        query_rows: longest(&|b| call.batch.s_q(b)) * (call.h / call.h_kv),
        keys: longest(&|b| call.batch.s_kv(b)) + call.appended,
        features: features(call),
    }
}

fn splits<T: Element>(call: &AttentionProblem<T>, gpu: Gpu) -> usize {
    Variant::select(shape(call), gpu).unwrap().splits(shape(call), gpu)
}

fn features<T>(call: &AttentionProblem<T>) -> Features {
    let mask = &call.mask;
    let all = [
        (Features::SOFTCAP, call.softcap.is_some()),
        (Features::SLOPES, !mask.structure.distances.is_empty()),
        (Features::BIAS, !mask.bias.is_empty()),
        (Features::KEEP, !mask.keep.is_empty()),
        (Features::SEGMENTS, !mask.segments.is_empty()),
    ];
    Features(all.into_iter().filter(|(_, used)| *used).map(|(bit, _)| bit).sum())
}

fn params<T: Element>(call: &AttentionProblem<T>, memory: &mut Memory, size: usize, splits: usize) -> AttentionParams {
    let signed = |strides: [usize; 3]| strides.map(|stride| stride as i64);
    let four = |strides: [usize; 4]| strides.map(|stride| stride as i64);
    let limit = |limit: Option<usize>| limit.map_or(-1, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
    let ints = |counts: &[usize]| counts.iter().map(|n| *n as i32).collect::<Vec<_>>();
    let mask = &call.mask;
    let find = |wanted: fn(&Lengths) -> Option<Vec<usize>>| {
        mask.structure.lengths.iter().find_map(wanted).map(|rows| ints(&rows))
    };
    let whole = |heads: &HeadsView<T>, d: usize| {
        let per = 16 / size_of::<T>();
        d.is_multiple_of(per) && heads.strides.iter().all(|stride| stride.is_multiple_of(per))
    };
    let (s_q, s_kv, rows) = match call.batch {
        Batch::Padded { s_q, s_kv, .. } => (s_q, s_kv, None),
        Batch::Ragged { offsets: starts } | Batch::Part { offsets: starts, .. } => {
            let longest = starts.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
            (longest, longest, Some(ints(starts)))
        }
    };
    let segments = mask.segments.first();
    AttentionParams {
        q: memory.hold(call.q.data),
        k: memory.hold(call.k.data),
        v: memory.hold(call.v.data),
        // NaN, so that elements which the kernel does not write are noticed.
        out: memory.hold(&vec![0xffu8; size * size_of::<T>()]),
        sinks: memory.hold_optional(call.sinks.map(<[f32]>::to_vec)),
        slopes: memory.hold_optional(mask.structure.distances.first().map(|distances| distances.slopes.clone())),
        bias: memory.hold_optional(mask.bias.first().map(|bias| bias.data.to_vec())),
        keep: memory.hold_optional(mask.keep.first().map(|keep| keep.data.to_vec())),
        query_segments: memory.hold_optional(segments.map(|[queries, _]| queries.data.to_vec())),
        key_segments: memory.hold_optional(segments.map(|[_, keys]| keys.data.to_vec())),
        key_lengths: memory
            .hold_optional(find(|l| if let Lengths::PerSequence(rows) = l { Some(rows.clone()) } else { None })),
        padding_lengths: memory
            .hold_optional(find(|l| if let Lengths::Padding(rows) = l { Some(rows.clone()) } else { None })),
        query_lengths: memory
            .hold_optional(find(|l| if let Lengths::PerQuery(rows) = l { Some(rows.concat()) } else { None })),
        query_starts: memory
            .hold_optional(mask.structure.starts.as_ref().map(|starts| starts.iter().map(|s| *s as i32).collect())),
        offsets: memory.hold_optional(rows),
        partials: memory.hold_optional((splits > 1).then(|| vec![f32::NAN; size / call.d_v * splits * (call.d_v + 2)])),
        q_strides: signed(call.q.strides),
        k_strides: signed(call.k.strides),
        v_strides: signed(call.v.strides),
        bias_strides: mask.bias.first().map_or([0; 4], |bias| four(bias.strides)),
        keep_strides: mask.keep.first().map_or([0; 4], |keep| four(keep.strides)),
        b: call.batch.sequences().len() as i32,
        h: call.h as i32,
        h_kv: call.h_kv as i32,
        s_q: s_q as i32,
        s_kv: s_kv as i32,
        appended_keys: call.appended as i32,
        d: call.d as i32,
        d_v: call.d_v as i32,
        window_size_left: limit(mask.structure.left),
        window_size_right: limit(mask.structure.right),
        symmetric: i32::from(mask.structure.distances.first().is_some_and(|distances| distances.symmetric)),
        vectorized: i32::from(whole(&call.q, call.d) && whole(&call.k, call.d) && whole(&call.v, call.d_v)),
        splits: splits as i32,
        scale: call.scale,
        softcap: call.softcap.unwrap_or(0.0),
    }
}

fn check<T: Element>(emulator: &mut Emulator, gpus: &[Gpu], call: &AttentionProblem<T>, tolerance: f64, what: &str) {
    let want = naive(call);
    for gpu in gpus {
        let got = emulator.run(call, *gpu);
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in upcast(&got).iter().zip(&want).enumerate() {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= tolerance + tolerance * want.abs(), "{what}, {gpu:?}: [{i}] {got}, want {want}");
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_attention_in_many_sizes() {
    let (mut random, mut emulator) = (Random(3), Emulator::new());
    let base = Sizes { b: 2, s_q: 70, s_kv: 70, appended: 0, h: 4, h_kv: 2, d: 64, d_v: 64 };
    let all = [
        base,
        Sizes { s_q: 1, s_kv: 333, h_kv: 1, ..base },
        Sizes { s_q: 7, s_kv: 65, h_kv: 4, d: 32, d_v: 32, ..base },
        Sizes { b: 1, s_q: 333, s_kv: 130, d: 40, d_v: 40, ..base },
        Sizes { s_q: 65, s_kv: 64, d: 20, d_v: 33, ..base },
        Sizes { b: 1, s_q: 140, s_kv: 65, d: 80, d_v: 80, ..base },
        Sizes { b: 1, s_q: 64, s_kv: 100, d: 128, d_v: 128, ..base },
        Sizes { b: 1, s_q: 130, s_kv: 70, h: 2, d: 256, d_v: 256, ..base },
        Sizes { b: 1, s_q: 33, s_kv: 70, h: 2, d: 72, d_v: 250, ..base },
        Sizes { s_q: 3, s_kv: 0, appended: 1, ..base },
        Sizes { s_q: 9, s_kv: 64, appended: 2, ..base },
    ];
    for sizes in all {
        let what = format!("{sizes:?}");
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        check(&mut emulator, &[GPUS[0], GPUS[3]], &problem(sizes, [&q, &k, &v], Mask::default()), 2e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        check(&mut emulator, &GPUS[1..2], &problem(sizes, [&q, &k, &v], Mask::default()), 1.5e-3, &what);
        let [q, k, v] = qkv::<bf16>(&mut random, sizes);
        check(&mut emulator, &GPUS[2..], &problem(sizes, [&q, &k, &v], Mask::default()), 1e-2, &what);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_attention_under_every_mask() {
    let (mut random, mut emulator) = (Random(4), Emulator::new());
    for (s_q, s_kv) in [(5, 7), (70, 90)] {
        let (b, h) = (2, 4);
        let whole = Sizes { b, s_q, s_kv, appended: 0, h, h_kv: 2, d: 24, d_v: 16 };
        let tensors = MaskTensors::new(&mut random, whole);
        let distances =
            |symmetric: bool| vec![Distances { slopes: (1..=h).map(|h| 0.1 * h as f32).collect(), symmetric }];
        let base = MaskStructure::default;
        let mut masks = tensors.masks();
        masks.extend([
            MaskStructure { lengths: vec![Lengths::Padding(vec![s_q.min(s_kv) - 1, 2])], ..base() }.into(),
            MaskStructure { right: Some(0), starts: Some(vec![2, -1]), ..base() }.into(),
            Mask { keep: vec![tensors.keep_transposed()], ..Mask::default() },
            MaskStructure { distances: distances(false), right: Some(0), ..base() }.into(),
            MaskStructure { distances: distances(true), ..base() }.into(),
            Mask {
                structure: MaskStructure {
                    right: Some(0),
                    lengths: vec![Lengths::PerSequence(vec![s_kv, s_kv / 2])],
                    ..base()
                },
                keep: vec![tensors.keep()],
                bias: vec![tensors.bias()],
                ..Mask::default()
            },
        ]);
        for mask in masks {
            let what = format!("{s_q} × {s_kv}, {mask:?}").chars().take(200).collect::<String>();
            for (appended, h_kv) in [(0, 2), (1, 4)] {
                let sizes = Sizes { appended, h_kv, ..whole };
                let [q, k, v] = qkv::<f32>(&mut random, sizes);
                check(&mut emulator, &GPUS[..1], &problem(sizes, [&q, &k, &v], mask.clone()), 3e-6, &what);
                let [q, k, v] = qkv::<bf16>(&mut random, sizes);
                check(&mut emulator, &GPUS[..1], &problem(sizes, [&q, &k, &v], mask.clone()), 2e-2, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_attention_with_softcap_and_sinks() {
    let (mut random, mut emulator) = (Random(5), Emulator::new());
    let sizes = Sizes { b: 2, s_q: 20, s_kv: 80, appended: 0, h: 4, h_kv: 2, d: 24, d_v: 16 };
    let sinks = [0.5, -2.0, f32::NEG_INFINITY, 9.0];
    for (softcap, sinks) in [(Some(0.7), None), (None, Some(&sinks[..])), (Some(30.0), Some(&sinks[..]))] {
        // The first sequence is fully masked: it gets zeros, also with a sink.
        let lengths = vec![Lengths::PerSequence(vec![0, 80])];
        let mask: Mask = MaskStructure { lengths, right: Some(0), ..MaskStructure::default() }.into();
        let what = format!("{softcap:?}, {sinks:?}");
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let call = AttentionProblem { softcap, sinks, ..problem(sizes, [&q, &k, &v], mask.clone()) };
        check(&mut emulator, &GPUS[..1], &call, 3e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        let call = AttentionProblem { softcap, sinks, ..problem(sizes, [&q, &k, &v], mask) };
        check(&mut emulator, &GPUS[..1], &call, 2e-3, &what);
    }
}

/// Few queries, many keys, and more multiprocessors than tiles.
#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_attention_with_split_keys() {
    let (mut random, mut emulator) = (Random(7), Emulator::new());
    let gpus = GPUS.map(|gpu| Gpu { multiprocessors: 132, ..gpu });
    let (b, h, s_kv) = (2, 4, 1500);
    let sinks = [0.5, -2.0, f32::NEG_INFINITY, 9.0];
    for (s_q, d, d_v, h_kv) in [(1, 64, 64, 1), (3, 80, 33, 2), (40, 24, 16, 4)] {
        let sizes = Sizes { b, s_q, s_kv, appended: 0, h, h_kv, d, d_v };
        let tensors = MaskTensors::new(&mut random, sizes);
        let mut calls =
            vec![(Mask::default(), 0, None), (Mask::default(), 3, None), (Mask::default(), 0, Some(&sinks))];
        // Fully masked rows, a window outside most splits, a bias and an appended key.
        let lengths = vec![Lengths::PerSequence(vec![0, 700])];
        let nothing: Mask = MaskStructure { lengths, ..MaskStructure::default() }.into();
        calls.extend([(nothing.clone(), 0, None), (nothing.clone(), 0, Some(&sinks)), (nothing, 1, Some(&sinks))]);
        let window = MaskStructure { left: Some(100), right: Some(0), ..MaskStructure::default() };
        calls.push((window.into(), 0, None));
        calls.push((Mask { bias: vec![tensors.bias()], keep: vec![tensors.keep()], ..Mask::default() }, 1, None));
        for (mask, appended, sinks) in calls {
            let sizes = Sizes { appended, ..sizes };
            let what = format!("{sizes:?}, {sinks:?}, {mask:?}").chars().take(300).collect::<String>();
            let sinks = sinks.map(|sinks| &sinks[..]);
            let [q, k, v] = qkv::<f32>(&mut random, sizes);
            let call = AttentionProblem { sinks, ..problem(sizes, [&q, &k, &v], mask.clone()) };
            assert!(splits(&call, gpus[0]) > 1 && splits(&call, GPUS[0]) == 1);
            check(&mut emulator, &[gpus[0], gpus[3]], &call, 3e-6, &what);
            let [q, k, v] = qkv::<bf16>(&mut random, sizes);
            let call = AttentionProblem { sinks, ..problem(sizes, [&q, &k, &v], mask) };
            assert!(splits(&call, gpus[0]) > 1);
            check(&mut emulator, &gpus[..1], &call, 2e-2, &what);
        }
    }
}

/// Sequences of unequal length, with queries, keys and values in one packed projection.
#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_attention_on_ragged_batches() {
    fn ragged<T: Element>(
        emulator: &mut Emulator,
        random: &mut Random,
        tolerance: f64,
        (h, h_kv): (usize, usize),
        lengths: &[usize],
        gpus: &[Gpu],
    ) {
        let d = 32;
        let starts: Vec<usize> = (0..=lengths.len()).map(|i| lengths[..i].iter().sum()).collect();
        let width = (h + 2 * h_kv) * d;
        let qkv: Vec<T> = random.values(starts[lengths.len()] * width);
        let part = |start: usize| HeadsView { data: &qkv[start * d..], strides: [0, width, d] };
        for (left, right) in [(None, None), (None, Some(0)), (Some(20), Some(20))] {
            let mask: Mask = MaskStructure { left, right, ..MaskStructure::default() }.into();
            let of = |q, k, v, batch| AttentionProblem {
                scale: 0.2,
                ..AttentionProblem {
                    q,
                    k,
                    v,
                    batch,
                    ..problem(
                        Sizes { b: 1, s_q: 1, s_kv: 1, appended: 0, h, h_kv, d, d_v: d },
                        [&qkv[..], &qkv[..], &qkv[..]],
                        mask.clone(),
                    )
                }
            };
            let call = of(part(0), part(h), part(h + h_kv), Batch::Ragged { offsets: &starts });
            for gpu in gpus {
                let got = upcast(&emulator.run(&call, *gpu));
                for (&length, start) in lengths.iter().zip(&starts) {
                    let row =
                        |first: usize| HeadsView { data: &qkv[start * width + first * d..], strides: [0, width, d] };
                    let batch = Batch::Padded { b: 1, s_q: length, s_kv: length };
                    let want = naive(&of(row(0), row(h), row(h + h_kv), batch));
                    for (got, want) in got[start * h * d..].iter().zip(want) {
                        assert!((f64::from(*got) - want).abs() <= tolerance * (1.0 + want.abs()), "{got}, want {want}");
                    }
                }
            }
        }
    }
    let (mut random, mut emulator) = (Random(6), Emulator::new());
    let lengths = [3, 0, 150, 64, 1];
    ragged::<f32>(&mut emulator, &mut random, 2e-6, (4, 2), &lengths, &GPUS);
    ragged::<bf16>(&mut emulator, &mut random, 1e-2, (4, 2), &lengths, &GPUS);
    // Enough multiprocessors for the keys to be split.
    let large = Gpu { multiprocessors: 500, ..GPUS[0] };
    ragged::<f32>(&mut emulator, &mut random, 2e-6, (2, 2), &[5, 600], &[large]);
    ragged::<bf16>(&mut emulator, &mut random, 1e-2, (2, 2), &[5, 600], &[large]);
}
