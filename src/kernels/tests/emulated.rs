//! The CUDA kernels on an emulator against loops over f64. They are C++ and need a compiler, `c++` or what `CXX` names:
//! `cargo test --release --lib -- --ignored emulated`.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

use half::{bf16, f16};
use libloading::Library;

use super::attention::{Sizes, naive, qkv, sized};
use super::masks::Numbers;
use super::{Random, wide};
use crate::kernels::attention::Attention;
use crate::kernels::batch::Batch;
use crate::kernels::cuda::{Features, Gpu, Params, Shape, Variant};
use crate::kernels::element::Element;
use crate::kernels::heads::Heads;
use crate::kernels::mask::{Distances, Lengths, Mask};

/// GPUs for which the same calls take different kernels and sizes.
const GPUS: [Gpu; 4] = [
    Gpu { capability: 90, multiprocessors: 1, shared_memory: 227 << 10 },
    Gpu { capability: 89, multiprocessors: 1, shared_memory: 99 << 10 },
    Gpu { capability: 80, multiprocessors: 108, shared_memory: 163 << 10 },
    Gpu { capability: 75, multiprocessors: 40, shared_memory: 48 << 10 },
];

/// Kernels compiled so far.
struct Emulator {
    folder: tempfile::TempDir,
    kernels: HashMap<Variant, Library>,
    random: Random,
}

impl Emulator {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), kernels: HashMap::new(), random: Random(11) }
    }

    fn kernel(&mut self, variant: Variant) -> &Library {
        let (folder, number) = (self.folder.path(), self.kernels.len());
        self.kernels.entry(variant).or_insert_with(|| compile(variant, &folder.join(format!("{number}.so"))))
    }

    fn run<T: Element>(&mut self, call: &Attention<T>, gpu: Gpu) -> Vec<T> {
        let dtype = match std::any::type_name::<T>() {
            "f32" => candle_core::DType::F32,
            name if name.contains("bf16") => candle_core::DType::BF16,
            _ => candle_core::DType::F16,
        };
        let jobs = call.batch.rows() * call.h_kv;
        let longest = (0..call.batch.rows()).map(|b| call.batch.s_q(b)).max().unwrap_or(0);
        let rows = longest * (call.h / call.h_kv);
        let features = features(call);
        let variant = Variant::of(Shape { dtype, d: call.d, d_v: call.d_v, jobs, rows, features }, gpu).unwrap();
        let seed = self.random.0 as u32;
        self.random.next();
        let kernel = self.kernel(variant);
        let mut memory = Memory { kernel, held: Vec::new() };
        let size = call.batch.queries() * call.h * call.d_v;
        let params = params(call, &mut memory, size);
        // SAFETY: the library was made of this function's source; `params` is what it expects, by `params.rs`.
        unsafe {
            let emulate = kernel.get::<unsafe extern "C" fn(*const Params, u32, usize, u32)>(b"emulate").unwrap();
            emulate(&params, variant.blocks(jobs, rows) as u32, variant.shared_bytes(), seed);
            std::slice::from_raw_parts(params.out as *const T, size).to_vec()
        }
    }
}

fn compile(variant: Variant, to: &Path) -> Library {
    let source = to.with_extension("cpp");
    let text = variant.source(include_str!("../cuda/source/emulator.hpp"));
    std::fs::write(&source, text + include_str!("../cuda/source/emulated.cpp")).unwrap();
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o"]).arg(to).arg(&source);
    command.args(variant.definitions().iter().map(|definition| format!("-D{definition}")));
    let status = command.status().unwrap_or_else(|error| panic!("{compiler} does not run: {error}"));
    assert!(status.success(), "{}", variant.name());
    // SAFETY: it is our own and has no initialisation of its own.
    unsafe { Library::new(to).unwrap() }
}

/// Arrays that end where memory ends, so that what is read after them traps.
struct Memory<'a> {
    kernel: &'a Library,
    held: Vec<(u64, usize)>,
}

impl Memory<'_> {
    /// The address of a copy of `numbers`, which ends at the end of memory if its bytes are a multiple of 16.
    fn hold<T: Copy>(&mut self, numbers: &[T]) -> u64 {
        let size = std::mem::size_of_val(numbers);
        let bytes = size.next_multiple_of(16).max(16);
        // SAFETY: `guarded` gives `bytes` bytes, aligned to 16.
        unsafe {
            let guarded = self.kernel.get::<unsafe extern "C" fn(usize) -> *mut u8>(b"guarded").unwrap();
            let at = guarded(bytes);
            std::ptr::copy_nonoverlapping(numbers.as_ptr().cast(), at, size);
            self.held.push((at as u64, bytes));
            at as u64
        }
    }

    fn some<T: Copy>(&mut self, numbers: Option<Vec<T>>) -> u64 {
        numbers.map_or(0, |numbers| self.hold(&numbers))
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        for &(at, bytes) in &self.held {
            // SAFETY: it came from `guarded`, with as many bytes.
            unsafe {
                self.kernel.get::<unsafe extern "C" fn(u64, usize)>(b"release").unwrap()(at, bytes);
            }
        }
    }
}

fn features<T>(call: &Attention<T>) -> Features {
    let mask = &call.mask;
    let all = [
        (Features::SOFTCAP, call.softcap.is_some()),
        (Features::SLOPES, !mask.distances.is_empty()),
        (Features::BIAS, !mask.bias.is_empty()),
        (Features::KEEP, !mask.keep.is_empty()),
        (Features::SEGMENTS, !mask.segments.is_empty()),
    ];
    Features(all.into_iter().filter(|(_, there)| *there).map(|(bit, _)| bit).sum())
}

fn params<T: Element>(call: &Attention<T>, memory: &mut Memory, size: usize) -> Params {
    let signed = |strides: [usize; 3]| strides.map(|stride| stride as i64);
    let four = |strides: [usize; 4]| strides.map(|stride| stride as i64);
    let limit = |limit: Option<usize>| limit.map_or(-1, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
    let ints = |numbers: &[usize]| numbers.iter().map(|n| *n as i32).collect::<Vec<_>>();
    let mask = &call.mask;
    let find =
        |wanted: fn(&Lengths) -> Option<Vec<usize>>| mask.lengths.iter().find_map(wanted).map(|rows| ints(&rows));
    let whole = |heads: &Heads<T>, d: usize| {
        let per = 16 / size_of::<T>();
        d.is_multiple_of(per) && heads.strides.iter().all(|stride| stride.is_multiple_of(per))
    };
    let (s_q, s_kv, rows) = match call.batch {
        Batch::Padded { s_q, s_kv, .. } => (s_q, s_kv, None),
        Batch::Ragged { starts } => {
            let longest = starts.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
            (longest, longest, Some(ints(starts)))
        }
    };
    let segments = mask.segments.first();
    Params {
        q: memory.hold(call.q.data),
        k: memory.hold(call.k.data),
        v: memory.hold(call.v.data),
        // NaN: what is not written shows.
        out: memory.hold(&vec![0xffu8; size * size_of::<T>()]),
        sinks: memory.some(call.sinks.map(<[f32]>::to_vec)),
        slopes: memory.some(mask.distances.first().map(|distances| distances.slopes.clone())),
        bias: memory.some(mask.bias.first().map(|bias| bias.data.to_vec())),
        keep: memory.some(mask.keep.first().map(|keep| keep.data.to_vec())),
        query_segments: memory.some(segments.map(|[queries, _]| queries.data.to_vec())),
        key_segments: memory.some(segments.map(|[_, keys]| keys.data.to_vec())),
        lengths: memory.some(find(|l| if let Lengths::Rows(rows) = l { Some(rows.clone()) } else { None })),
        padding: memory.some(find(|l| if let Lengths::Padding(rows) = l { Some(rows.clone()) } else { None })),
        query_ends: memory.some(find(|l| if let Lengths::Queries(rows) = l { Some(rows.concat()) } else { None })),
        starts: memory.some(mask.starts.as_ref().map(|starts| starts.iter().map(|s| *s as i32).collect())),
        rows: memory.some(rows),
        q_strides: signed(call.q.strides),
        k_strides: signed(call.k.strides),
        v_strides: signed(call.v.strides),
        bias_strides: mask.bias.first().map_or([0; 4], |bias| four(bias.strides)),
        keep_strides: mask.keep.first().map_or([0; 4], |keep| four(keep.strides)),
        b: call.batch.rows() as i32,
        h: call.h as i32,
        h_kv: call.h_kv as i32,
        s_q: s_q as i32,
        s_kv: s_kv as i32,
        appended: call.appended as i32,
        d: call.d as i32,
        d_v: call.d_v as i32,
        left: limit(mask.left),
        right: limit(mask.right),
        symmetric: i32::from(mask.distances.first().is_some_and(|distances| distances.symmetric)),
        aligned: i32::from(whole(&call.q, call.d) && whole(&call.k, call.d) && whole(&call.v, call.d_v)),
        scale: call.scale,
        softcap: call.softcap.unwrap_or(0.0),
    }
}

fn check<T: Element>(emulator: &mut Emulator, gpus: &[Gpu], call: &Attention<T>, tolerance: f64, what: &str) {
    let want = naive(call);
    for gpu in gpus {
        let got = emulator.run(call, *gpu);
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in wide(&got).iter().zip(&want).enumerate() {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= tolerance + tolerance * want.abs(), "{what}, {gpu:?}: [{i}] {got}, want {want}");
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_kernels_in_many_sizes() {
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
        check(&mut emulator, &[GPUS[0], GPUS[3]], &sized(sizes, [&q, &k, &v], Mask::default()), 2e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        check(&mut emulator, &GPUS[1..2], &sized(sizes, [&q, &k, &v], Mask::default()), 1.5e-3, &what);
        let [q, k, v] = qkv::<bf16>(&mut random, sizes);
        check(&mut emulator, &GPUS[2..], &sized(sizes, [&q, &k, &v], Mask::default()), 1e-2, &what);
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_kernels_under_every_mask() {
    let (mut random, mut emulator) = (Random(4), Emulator::new());
    for (s_q, s_kv) in [(5, 7), (70, 90)] {
        let (b, h) = (2, 4);
        let whole = Sizes { b, s_q, s_kv, appended: 0, h, h_kv: 2, d: 24, d_v: 16 };
        let numbers = Numbers::new(&mut random, whole);
        let distances =
            |symmetric: bool| vec![Distances { slopes: (1..=h).map(|h| 0.1 * h as f32).collect(), symmetric }];
        let base = Mask::default;
        let mut masks = numbers.masks();
        masks.extend([
            Mask { lengths: vec![Lengths::Padding(vec![s_q.min(s_kv) - 1, 2])], ..base() },
            Mask { right: Some(0), starts: Some(vec![2, -1]), ..base() },
            Mask { keep: vec![numbers.keep_transposed()], ..base() },
            Mask { distances: distances(false), right: Some(0), ..base() },
            Mask { distances: distances(true), ..base() },
            Mask {
                right: Some(0),
                lengths: vec![Lengths::Rows(vec![s_kv, s_kv / 2])],
                keep: vec![numbers.keep()],
                bias: vec![numbers.bias()],
                ..base()
            },
        ]);
        for mask in masks {
            let what = format!("{s_q} × {s_kv}, {mask:?}").chars().take(200).collect::<String>();
            for (appended, h_kv) in [(0, 2), (1, 4)] {
                let sizes = Sizes { appended, h_kv, ..whole };
                let [q, k, v] = qkv::<f32>(&mut random, sizes);
                check(&mut emulator, &GPUS[..1], &sized(sizes, [&q, &k, &v], mask.clone()), 3e-6, &what);
                let [q, k, v] = qkv::<bf16>(&mut random, sizes);
                check(&mut emulator, &GPUS[..1], &sized(sizes, [&q, &k, &v], mask.clone()), 2e-2, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_kernels_cap_scores_and_know_sinks() {
    let (mut random, mut emulator) = (Random(5), Emulator::new());
    let sizes = Sizes { b: 2, s_q: 20, s_kv: 80, appended: 0, h: 4, h_kv: 2, d: 24, d_v: 16 };
    let sinks = [0.5, -2.0, f32::NEG_INFINITY, 9.0];
    for (softcap, sinks) in [(Some(0.7), None), (None, Some(&sinks[..])), (Some(30.0), Some(&sinks[..]))] {
        // The first row sees nothing: with a sink, too, it gets zeros.
        let mask = Mask { lengths: vec![Lengths::Rows(vec![0, 80])], right: Some(0), ..Mask::default() };
        let what = format!("{softcap:?}, {sinks:?}");
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let call = Attention { softcap, sinks, ..sized(sizes, [&q, &k, &v], mask.clone()) };
        check(&mut emulator, &GPUS[..1], &call, 3e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        let call = Attention { softcap, sinks, ..sized(sizes, [&q, &k, &v], mask) };
        check(&mut emulator, &GPUS[..1], &call, 2e-3, &what);
    }
}

/// Rows of unequal length, in one tensor with keys and values as a packed projection leaves them.
#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_kernels_on_ragged_rows() {
    fn ragged<T: Element>(emulator: &mut Emulator, random: &mut Random, tolerance: f64) {
        let (h, h_kv, d, lengths) = (4, 2, 32, [3, 0, 150, 64, 1]);
        let starts: Vec<usize> = [0, 3, 3, 153, 217, 218].to_vec();
        let width = (h + 2 * h_kv) * d;
        let qkv: Vec<T> = random.numbers(starts[5] * width);
        let part = |start: usize| Heads { data: &qkv[start * d..], strides: [0, width, d] };
        for (left, right) in [(None, None), (None, Some(0)), (Some(20), Some(20))] {
            let mask = Mask { left, right, ..Mask::default() };
            let of = |q, k, v, batch| Attention {
                scale: 0.2,
                ..Attention {
                    q,
                    k,
                    v,
                    batch,
                    ..sized(
                        Sizes { b: 1, s_q: 1, s_kv: 1, appended: 0, h, h_kv, d, d_v: d },
                        [&qkv[..], &qkv[..], &qkv[..]],
                        mask.clone(),
                    )
                }
            };
            let call = of(part(0), part(h), part(h + h_kv), Batch::Ragged { starts: &starts });
            for gpu in GPUS {
                let got = wide(&emulator.run(&call, gpu));
                for (length, start) in lengths.into_iter().zip(&starts) {
                    let row = |first: usize| Heads { data: &qkv[start * width + first * d..], strides: [0, width, d] };
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
    ragged::<f32>(&mut emulator, &mut random, 2e-6);
    ragged::<bf16>(&mut emulator, &mut random, 1e-2);
}
