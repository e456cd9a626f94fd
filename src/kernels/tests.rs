//! Every instruction set that this machine has against a naive reference in f64, over odd sizes.

use half::{bf16, f16};

use super::attention::{Attention, attend};
use super::batch::Batch;
use super::element::Element;
use super::exp::exp;
use super::gelu::gelu;
use super::gemm::{Epilogue, Packed};
use super::isa::Isa;
use super::mask::{Broadcast, Lengths, Mask};
use super::pack::Heads;
use super::simd::{Portable, Simd};

/// Numbers that are the same in every run, in `[-1, 1)` (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn numbers<T: Element>(&mut self, count: usize) -> Vec<T> {
        let wide: Vec<f32> = (0..count).map(|_| self.next() * 2.0).collect();
        convert(&wide)
    }
}

fn convert<T: Element>(wide: &[f32]) -> Vec<T> {
    let mut narrow = vec![T::ZERO; wide.len()];
    T::narrow(wide, &mut narrow);
    narrow
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    b: usize,
    s_q: usize,
    s_kv: usize,
    appended: usize,
    h: usize,
    h_kv: usize,
    d: usize,
    d_v: usize,
}

fn wide<T: Element>(numbers: &[T]) -> Vec<f32> {
    let mut to = vec![0.0; numbers.len()];
    T::widen(numbers, &mut to);
    to
}

/// The judge: the same in loops over f64. `bias` and `keep` are looked up through the mask itself.
fn naive<T: Element>(call: &Attention<T>) -> Vec<f64> {
    let Batch::Padded { b: rows, s_q, s_kv } = call.batch else { panic!("the judge knows padded batches only") };
    let (q, k, v) = (wide(call.q.data), wide(call.k.data), wide(call.v.data));
    let at = |heads: [usize; 3], b: usize, s: usize, h: usize| b * heads[0] + s * heads[1] + h * heads[2];
    let mut output = Vec::new();
    for (b, i, h) in (0..rows).flat_map(|b| (0..s_q).flat_map(move |i| (0..call.h).map(move |h| (b, i, h)))) {
        let h_kv = h / (call.h / call.h_kv);
        let q_row = &q[at(call.q.strides, b, i, h)..][..call.d];
        let range = call.mask.range(b, i, s_q, s_kv);
        let scores: Vec<f64> = (0..s_kv + call.appended)
            .map(|j| {
                let k_row = &k[at(call.k.strides, b, j, h_kv)..][..call.d];
                let dot: f64 = q_row.iter().zip(k_row).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                let mut score = [0.0];
                if j < s_kv {
                    call.mask.apply(&mut score, b, h, i, j);
                    if !range.contains(&j) {
                        score[0] = f32::NEG_INFINITY;
                    }
                }
                dot * f64::from(call.scale) + f64::from(score[0])
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> =
            scores.iter().map(|s| if *s == f64::NEG_INFINITY { 0.0 } else { (s - max).exp() }).collect();
        let total: f64 = weights.iter().sum();
        for column in 0..call.d_v {
            let value = |j: usize| f64::from(v[at(call.v.strides, b, j, h_kv) + column]);
            let sum: f64 = weights.iter().enumerate().map(|(j, w)| w * value(j)).sum();
            output.push(if total == 0.0 { 0.0 } else { sum / total });
        }
    }
    output
}

fn check<T: Element>(call: &Attention<T>, tolerance: f64, what: &str) {
    let want = naive(call);
    for isa in Isa::all() {
        let mut got = convert::<T>(&vec![f32::NAN; want.len()]);
        attend(isa, call, &mut got);
        for (i, (got, want)) in wide(&got).iter().zip(&want).enumerate() {
            let error = (f64::from(*got) - want).abs();
            assert!(error <= tolerance + tolerance * want.abs(), "{what}, {}: [{i}] {got}, want {want}", isa.name());
        }
    }
}

fn heads<T>(data: &[T], s: usize, h: usize, d: usize) -> Heads<'_, T> {
    Heads { data, strides: [s * h * d, h * d, d] }
}

fn sized<'a, T: Element>(sizes: Sizes, [q, k, v]: [&'a [T]; 3], mask: Mask<'a>) -> Attention<'a, T> {
    let Sizes { b, s_q, s_kv, appended, h, h_kv, d, d_v } = sizes;
    let keys = s_kv + appended;
    let (q, k, v) = (heads(q, s_q, h, d), heads(k, keys, h_kv, d), heads(v, keys, h_kv, d_v));
    let scale = (d as f32).powf(-0.5);
    Attention { q, k, v, batch: Batch::Padded { b, s_q, s_kv }, appended, h, h_kv, d, d_v, scale, mask }
}

fn qkv<T: Element>(random: &mut Random, sizes: Sizes) -> [Vec<T>; 3] {
    let Sizes { b, s_q, s_kv, appended, h, h_kv, d, d_v } = sizes;
    let keys = s_kv + appended;
    [random.numbers(b * s_q * h * d), random.numbers(b * keys * h_kv * d), random.numbers(b * keys * h_kv * d_v)]
}

fn sizes() -> Vec<Sizes> {
    let mut all = Vec::new();
    for (d, d_v) in [(1, 1), (7, 5), (8, 8), (16, 48), (32, 32), (40, 64), (64, 64), (80, 80), (128, 96), (130, 129)] {
        for (s_q, s_kv) in [(1, 1), (1, 70), (5, 7), (9, 192), (64, 64), (65, 193), (70, 400)] {
            all.push(Sizes { b: 2, s_q, s_kv, appended: 0, h: 4, h_kv: 2, d, d_v });
        }
    }
    all.push(Sizes { b: 1, s_q: 300, s_kv: 300, appended: 0, h: 1, h_kv: 1, d: 24, d_v: 24 });
    all.push(Sizes { b: 3, s_q: 3, s_kv: 191, appended: 2, h: 6, h_kv: 1, d: 20, d_v: 12 });
    all.push(Sizes { b: 2, s_q: 4, s_kv: 0, appended: 1, h: 2, h_kv: 2, d: 8, d_v: 8 });
    all
}

#[test]
fn odd_sizes_in_every_dtype() {
    let mut random = Random(1);
    for sizes in sizes() {
        let what = format!("{sizes:?}");
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        check(&sized(sizes, [&q, &k, &v], Mask::default()), 2e-6, &what);
        let [q, k, v] = qkv::<f16>(&mut random, sizes);
        check(&sized(sizes, [&q, &k, &v], Mask::default()), 6e-4, &what);
        let [q, k, v] = qkv::<bf16>(&mut random, sizes);
        check(&sized(sizes, [&q, &k, &v], Mask::default()), 5e-3, &what);
    }
}

#[test]
fn every_kind_of_mask() {
    let mut random = Random(2);
    for (s_q, s_kv) in [(5, 7), (70, 50), (33, 400), (130, 200)] {
        let (b, h) = (2, 3);
        let sizes = Sizes { b, s_q, s_kv, appended: 1, h, h_kv: 3, d: 12, d_v: 20 };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let keep: Vec<u8> = (0..b * s_q * s_kv).map(|_| u8::from(random.next() > -0.3)).collect();
        let mut bias: Vec<f32> = random.numbers(h * s_kv);
        bias[1] = f32::MIN;
        bias[2] = f32::NEG_INFINITY;
        let ids: Vec<i64> = (0..b * s_q.max(s_kv)).map(|i| (i / 3 % 2) as i64).collect();
        let ids_of = |s: usize, axis: usize| {
            let mut strides = [s, 0, 0, 0];
            strides[axis] = 1;
            Broadcast { data: &ids[..], strides }
        };
        let rows: Vec<Vec<usize>> = (0..b).map(|b| (0..s_q).map(|i| (i * 5 + b) % (s_kv + 1)).collect()).collect();
        let base = Mask::default;
        let masks = [
            Mask { lengths: vec![Lengths::Rows(vec![0, s_kv - 1])], ..base() },
            Mask { lengths: vec![Lengths::Queries(rows), Lengths::Rows(vec![s_kv / 2, s_kv])], ..base() },
            Mask { right: Some(0), ..base() },
            Mask { left: Some(3), right: Some(2), ..base() },
            Mask { left: Some(usize::MAX), right: Some(usize::MAX), ..base() },
            Mask { keep: vec![Broadcast { data: &keep, strides: [s_q * s_kv, 0, s_kv, 1] }], ..base() },
            Mask { bias: vec![Broadcast { data: &bias, strides: [0, s_kv, 0, 1] }], ..base() },
            Mask { segments: vec![[ids_of(s_q, 2), ids_of(s_kv, 3)]], ..base() },
            Mask {
                right: Some(0),
                keep: vec![Broadcast { data: &keep, strides: [s_q * s_kv, 0, s_kv, 1] }],
                bias: vec![Broadcast { data: &bias, strides: [0, s_kv, 0, 1] }; 2],
                ..base()
            },
        ];
        for mask in masks {
            let what = format!("{s_q} × {s_kv}, {mask:?}").chars().take(200).collect::<String>();
            for appended in [0, 1] {
                let sizes = Sizes { s_kv, appended, ..sizes };
                let (k, v) = (&k[..b * (s_kv + appended) * 36], &v[..b * (s_kv + appended) * 60]);
                check(&sized(sizes, [&q, k, v], mask.clone()), 2e-6, &what);
            }
        }
    }
}

/// A sequence alone, in a batch, with padding: the same bits.
#[test]
fn a_sequence_does_not_see_its_neighbours() {
    let mut random = Random(3);
    for (length, padded, d) in [(1, 5, 32), (20, 64, 64), (65, 130, 40), (200, 450, 32)] {
        let sizes = Sizes { b: 3, s_q: padded, s_kv: padded, appended: 0, h: 2, h_kv: 2, d, d_v: d };
        let [q, k, v] = qkv::<f32>(&mut random, sizes);
        let lengths = Mask { lengths: vec![Lengths::Rows(vec![padded, length, padded / 2])], ..Mask::default() };
        let batch = sized(sizes, [&q, &k, &v], lengths);
        let alone_sizes = Sizes { b: 1, s_q: length, s_kv: length, ..sizes };
        let part = |x: &[f32]| x[padded * 2 * d..][..length * 2 * d].to_vec();
        let (q_1, k_1, v_1) = (part(&q), part(&k), part(&v));
        let alone = sized(alone_sizes, [&q_1, &k_1, &v_1], Mask::default());
        for isa in Isa::all() {
            let mut together = vec![0.0; 3 * padded * 2 * d];
            let mut one = vec![0.0; length * 2 * d];
            attend(isa, &batch, &mut together);
            attend(isa, &alone, &mut one);
            assert_eq!(part(&together), one, "{} of {length} in {padded}", isa.name());
            // The first two rows without their padding, one after the other.
            let starts = [0, padded, padded + length];
            let part_of = |x: &[f32]| [&x[..padded * 2 * d], &part(x)].concat();
            let (q_2, k_2, v_2) = (part_of(&q), part_of(&k), part_of(&v));
            let sizes = Sizes { b: 1, s_q: padded + length, s_kv: padded + length, ..sizes };
            let mut ragged = sized(sizes, [&q_2, &k_2, &v_2], Mask::default());
            ragged.batch = Batch::Ragged { starts: &starts };
            let mut two = vec![0.0; (padded + length) * 2 * d];
            attend(isa, &ragged, &mut two);
            assert_eq!(part_of(&together), two, "{} ragged", isa.name());
            let serial = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            let mut again = vec![0.0; 3 * padded * 2 * d];
            serial.install(|| attend(isa, &batch, &mut again));
            assert_eq!(together, again, "{} on one thread", isa.name());
        }
    }
}

/// NaN in what a query sees comes out as NaN, not as a number.
#[test]
fn nan_is_not_lost() {
    let sizes = Sizes { b: 1, s_q: 2, s_kv: 20, appended: 0, h: 1, h_kv: 1, d: 8, d_v: 8 };
    let [q, mut k, v] = qkv::<f32>(&mut Random(4), sizes);
    k[3 * 8 + 1] = f32::NAN;
    let mask = Mask { lengths: vec![Lengths::Queries(vec![vec![20, 3]])], ..Mask::default() };
    for isa in Isa::all() {
        let mut output = vec![0.0; 16];
        attend(isa, &sized(sizes, [&q, &k, &v], mask.clone()), &mut output);
        assert!(output[..8].iter().all(|x| x.is_nan()), "{}", isa.name());
        assert!(output[8..].iter().all(|x| x.is_finite()), "{}", isa.name());
    }
}

fn check_exp(name: &str, exp: impl Fn(f32) -> f32, ulps: f64) {
    assert_eq!(exp(0.0), 1.0, "{name}");
    assert_eq!(exp(f32::NEG_INFINITY), 0.0, "{name}");
    assert_eq!(exp(-1e30), 0.0, "{name}");
    assert!(exp(f32::NAN).is_nan(), "{name}");
    let mut worst: f64 = 0.0;
    let mut x = 0.0f32;
    while x > -87.0 {
        let want = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32);
        worst = worst.max((f64::from(exp(x)) - want).abs() / ulp);
        x -= 0.000_731;
    }
    println!("{name}: exp is within {worst:.2} units in the last place");
    assert!(worst <= ulps, "{name}: {worst}");
}

/// Calls `$check` with a scalar version of `$function` for each instruction set.
macro_rules! for_each_isa {
    ($function:ident, $check:expr) => {
        for isa in Isa::all() {
            match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512(s) => $check(isa, &|x| scalar(s, |v| $function(s, v), x)),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2(s) => $check(isa, &|x| scalar(s, |v| $function(s, v), x)),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon(s) => $check(isa, &|x| scalar(s, |v| $function(s, v), x)),
                Isa::Portable => $check(isa, &|x| scalar(Portable, |v| $function(Portable, v), x)),
            }
        }
    };
}

fn scalar<S: Simd>(s: S, f: impl Fn(S::V) -> S::V, x: f32) -> f32 {
    let mut lanes = [0.0; 16];
    // SAFETY: there is room for `LANES` numbers.
    unsafe { s.store(lanes.as_mut_ptr(), f(s.splat(x))) };
    lanes[0]
}

#[test]
fn exp_is_right() {
    for_each_isa!(exp, |isa: Isa, f: &dyn Fn(f32) -> f32| {
        check_exp(isa.name(), f, if matches!(isa, Isa::Portable) { 3.0 } else { 2.0 });
    });
}

/// Against the series of the error function in f64.
#[test]
fn gelu_is_right() {
    let erf = |x: f64| {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    };
    for_each_isa!(gelu, |isa: Isa, f: &dyn Fn(f32) -> f32| {
        let name = isa.name();
        assert_eq!((f(0.0), f(10.0), f(1e10)), (0.0, 10.0, 1e10), "{name}");
        assert!(f(-10.0).abs() < 1e-5 && f(f32::NAN).is_nan(), "{name}");
        let mut worst: f64 = 0.0;
        for i in -5000..=5000 {
            let x = i as f32 * 0.001;
            let want = f64::from(x) / 2.0 * (1.0 + erf(f64::from(x) / 2f64.sqrt()));
            worst = worst.max((f64::from(f(x)) - want).abs() / f64::from(x.abs().max(1.0)));
        }
        println!("{name}: gelu is within {worst:.1e}");
        assert!(worst < 4e-7, "{name}: {worst}");
    });
}

#[test]
fn products_of_odd_sizes() {
    let mut random = Random(5);
    for (rows, k, n) in [(1, 1, 1), (1, 7, 50), (3, 64, 48), (8, 20, 33), (13, 5, 97), (130, 40, 24), (200, 129, 100)] {
        let (a, w, bias): (Vec<f32>, Vec<f32>, Vec<f32>) =
            (random.numbers(rows * k), random.numbers(n * k), random.numbers(n));
        for isa in Isa::all() {
            for (epilogue, bias) in
                [(Epilogue::None, Some(&bias[..])), (Epilogue::Gelu, Some(&bias)), (Epilogue::None, None)]
            {
                let packed = Packed::new(isa, &w, bias, n, k);
                let mut got = vec![f32::NAN; rows * n];
                packed.multiply(&a, rows, epilogue, &mut got);
                for (i, got) in got.iter().enumerate() {
                    let (row, column) = (i / n, i % n);
                    let pairs = a[row * k..][..k].iter().zip(&w[column * k..][..k]);
                    let sum: f64 = pairs.map(|(a, w)| f64::from(*a) * f64::from(*w)).sum();
                    let sum = sum + bias.map_or(0.0, |bias| f64::from(bias[column]));
                    // The activation itself has a test of its own; here it tells only that it was applied.
                    let want = if epilogue == Epilogue::Gelu {
                        f64::from(scalar(Portable, |v| gelu(Portable, v), sum as f32))
                    } else {
                        sum
                    };
                    let error = (f64::from(*got) - want).abs();
                    assert!(
                        error < 2e-5 + 2e-6 * want.abs(),
                        "{} {rows}×{k}×{n} [{row}, {column}]: {got}, want {want}",
                        isa.name()
                    );
                }
                // A row alone is the same row.
                let mut alone = vec![f32::NAN; n];
                let last = rows - 1;
                packed.multiply(&a[last * k..], 1, epilogue, &mut alone);
                assert_eq!(alone, got[last * n..], "{} {rows}×{k}×{n}", isa.name());
            }
        }
    }
}

#[cfg(feature = "encoder")]
#[test]
fn rows_are_normalised() {
    let mut random = Random(6);
    for (rows, width) in [(1, 1), (3, 7), (5, 16), (300, 33), (2, 384)] {
        let (xs, add): (Vec<f32>, Vec<f32>) = (random.numbers(rows * width), random.numbers(rows * width));
        let (weight, bias): (Vec<f32>, Vec<f32>) = (random.numbers(width), random.numbers(width));
        for isa in Isa::all() {
            for add in [None, Some(&add[..])] {
                let mut got = xs.clone();
                super::rows::add_norm(isa, &mut got, add, &weight, &bias, 1e-5);
                for (row, got) in got.chunks(width).enumerate() {
                    let number = |i: usize| {
                        let at = row * width + i;
                        // What is added is added in f32.
                        f64::from(xs[at] + add.map_or(0.0, |add| add[at]))
                    };
                    let mean = (0..width).map(number).sum::<f64>() / width as f64;
                    let variance = (0..width).map(|i| (number(i) - mean).powi(2)).sum::<f64>() / width as f64;
                    for (i, got) in got.iter().enumerate() {
                        let normal = (number(i) - mean) / (variance + 1e-5).sqrt();
                        let want = normal * f64::from(weight[i]) + f64::from(bias[i]);
                        assert!((f64::from(*got) - want).abs() < 1e-5, "{} {rows}×{width}: {got}, {want}", isa.name());
                    }
                }
            }
        }
    }
}
