//! Attention on random shapes, strides, masks, dtypes and values against loops in f64.
//!
//! What holds for every value, NaN and infinities included: the same bits for any layout in memory, any number of
//! threads and any split of the batch; what a hidden key holds has no influence; a query that sees nothing gets zeros.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{AttentionMask, Backend};
use candle_core::{DType, Device, Tensor};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::common::naive::{Score, attend};
use crate::common::{Random, numbers};
use crate::masks::{Sizes, mask};
use crate::rarely;

static POOLS: LazyLock<[ThreadPool; 2]> =
    LazyLock::new(|| [1, 3].map(|n| ThreadPoolBuilder::new().num_threads(n).build().expect("threads")));

/// A call, whose keys and values end with `appended` keys that every query sees.
struct Call<'a> {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: SdpaOptions<'a>,
}

impl Call<'_> {
    fn output(&self) -> Tensor {
        attend_bshd(&self.q, &self.k, &self.v, &self.options).expect("a valid call").output
    }
}

pub fn run(u: &mut Unstructured) -> Result<()> {
    let mut random = Random::new(u.arbitrary()?);
    let dtype = *u.choose(&[DType::F32, DType::F32, DType::BF16, DType::F16, DType::F64])?;
    let (b, h_kv, groups) = (u.int_in_range(1..=3)?, u.int_in_range(1..=2)?, u.int_in_range(1..=3)?);
    let size = |u: &mut Unstructured, long: usize| -> Result<usize> {
        let most = if rarely(u, 24)? { long } else { 9 };
        u.int_in_range(1..=most)
    };
    // A block of keys is 192 long.
    let (s_q, s_kv, d, d_v) = (size(u, 70)?, size(u, 420)?, size(u, 70)?, size(u, 70)?);
    let (h, appended) = (h_kv * groups, if rarely(u, 6)? { u.int_in_range(1..=3)? } else { 0 });
    let sizes = Sizes { b, h, s_q, s_kv };
    let (mask, sees) = mask(u, &mut random, sizes)?;
    let amplitude = *u.choose(&[1.0, 1.0, 0.1, 4.0])?;
    let extreme = rarely(u, 4)?;
    let mut tensor = |u: &mut Unstructured, dims: [usize; 4]| strided(u, &mut random, dims, dtype, amplitude, extreme);
    let q = tensor(u, [b, s_q, h, d])?;
    let k = tensor(u, [b, s_kv + appended, h_kv, d])?;
    let v = tensor(u, [b, s_kv + appended, h_kv, d_v])?;
    let sinks = random.tensor(&[h], DType::F32);
    let sinks = rarely(u, 6)?.then_some(&sinks);
    let cap = if rarely(u, 6)? { Some(*u.choose(&[0.5, 3.0, 50.0])?) } else { None };
    let scale = if rarely(u, 4)? { Some(*u.choose(&[0.0, 1.0, -0.7, 3.0])?) } else { None };
    let backend = if dtype == DType::F64 { None } else { *u.choose(&[None, None, Some(Backend::Eager)])? };
    let options = SdpaOptions::new(mask.clone())
        .with_appended_keys(appended)
        .with_sinks(sinks)
        .with_softcap(cap)
        .with_scale(scale)
        .with_backend(backend);
    let on_cpu_kernel = backend.is_none() && dtype != DType::F64;
    let call = Call { q, k, v, options };
    let output = call.output();
    assert_eq!((output.dims(), output.dtype()), (&[b, s_q, h, d_v][..], dtype));

    // Loops in f64.
    let all_sees = |b: usize, h: usize, i: usize, j: usize| if j < s_kv { sees(b, h, i, j) } else { Some(0.0) };
    if !extreme {
        let scale = scale.unwrap_or((d as f64).powf(-0.5));
        let (want, _) = attend(&call.q, &call.k, &call.v, &Score::Bent { scale, cap, sinks }, &all_sees);
        // Scores are rounded in proportion to what is added up, and move attention weights by as much.
        let largest = scale.abs() * d as f64 * amplitude * amplitude + (s_kv + s_q) as f64;
        let tolerance = amplitude
            * match dtype {
                DType::F64 => 1e-12 * (1.0 + largest),
                DType::F32 => 1e-5 + 1e-6 * largest,
                DType::F16 => 4e-3 + 1e-6 * largest,
                _ => 3e-2 + 1e-6 * largest,
            };
        for (got, want) in numbers(&output).iter().zip(numbers(&want)) {
            let close = (got - want).abs() <= tolerance;
            assert!(close, "{got}, want {want} within {tolerance:e}: {} {sizes:?} {dtype:?}", call.options.mask);
        }
    }

    // The same numbers, in order.
    let plain = |tensor: &Tensor| tensor.force_contiguous().expect("a copy");
    let (k, v) = (plain(&call.k), plain(&call.v));
    let call = Call { q: plain(&call.q), k, v, ..call };
    // The matrix products of other backends add up from 0 or from the first product, and a zero has another sign.
    let compare = if on_cpu_kernel { assert_same } else { assert_equal };
    compare("with other strides", &bits(&output), &bits(&call.output()));
    if on_cpu_kernel && rarely(u, 4)? {
        for pool in &*POOLS {
            assert_same("on another number of threads", &bits(&output), &bits(&pool.install(|| call.output())));
        }
    }

    let each = bits(&output);
    let row = |b: usize, h: usize, i: usize| &each[((b * s_q + i) * sizes.h + h) * d_v..][..d_v];
    let queries = || (0..b).flat_map(move |b| (0..h).flat_map(move |h| (0..s_q).map(move |i| (b, h, i))));
    for (b, h, i) in queries() {
        if (0..s_kv + appended).all(|j| all_sees(b, h, i, j).is_none()) {
            assert!(row(b, h, i).iter().all(|number| *number == 0.0), "no key, but not zeros: {mask} {sizes:?}");
        }
    }

    // A key of which nothing is known.
    let j = u.int_in_range(0..=s_kv - 1)?;
    let bad = *u.choose(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 60_000.0])?;
    let of = u.int_in_range(1..=3u8)?;
    let spoiled = Call {
        q: call.q.clone(),
        k: if of & 1 > 0 { spoil(&call.k, j, bad) } else { call.k.clone() },
        v: if of & 2 > 0 { spoil(&call.v, j, bad) } else { call.v.clone() },
        options: call.options.clone(),
    };
    let got = bits(&spoiled.output());
    for (b, h, i) in queries().filter(|&(b, h, i)| sees(b, h, i, j).is_none()) {
        let place = ((b * s_q + i) * sizes.h + h) * d_v;
        let what =
            format!("key {j} of {bad}, hidden from sequence {b}, head {h}, query {i}: {mask} {sizes:?} {dtype:?}");
        let got = &got[place..][..d_v];
        // Other backends add what is hidden as a zero, which may change the sign of a zero.
        compare(&what, row(b, h, i), got);
    }
    if b > 1 && mask.is_full() && on_cpu_kernel {
        let of = |tensor: &Tensor| tensor.narrow(0, 1, 1).expect("a sequence");
        let options = call.options.clone().with_mask(AttentionMask::full());
        let one = Call { q: of(&call.q), k: of(&call.k), v: of(&call.v), options };
        assert_same("in a batch of one", &each[s_q * h * d_v..][..s_q * h * d_v], &bits(&one.output()));
    }
    Ok(())
}

/// Numbers exactly as they are stored: a wider type keeps them.
fn bits(tensor: &Tensor) -> Vec<f64> {
    numbers(tensor)
}

fn assert_same(what: &str, want: &[f64], got: &[f64]) {
    let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    assert!(want.len() == got.len() && want.iter().zip(got).all(same), "{what}: {got:?}, want {want:?}");
}

/// Equal up to the sign of zeros.
fn assert_equal(what: &str, want: &[f64], got: &[f64]) {
    let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
    assert!(want.len() == got.len() && want.iter().zip(got).all(same), "{what}: {got:?}, want {want:?}");
}

/// The same with one number at the place of a key, in all sequences and heads.
fn spoil(tensor: &Tensor, j: usize, bad: f64) -> Tensor {
    let (_, s, h, d) = tensor.dims4().expect("four dimensions");
    let spoiled = numbers(tensor).into_iter().enumerate();
    let spoiled: Vec<f64> = spoiled.map(|(i, number)| if i / (h * d) % s == j { bad } else { number }).collect();
    Tensor::from_vec(spoiled, tensor.dims(), &Device::Cpu)
        .and_then(|new| new.to_dtype(tensor.dtype()))
        .expect("a tensor")
}

/// A tensor of random numbers in one of the orders in memory that views have. `extreme`: with NaN, infinities,
/// denormals and the largest numbers among them.
fn strided(
    u: &mut Unstructured,
    random: &mut Random,
    [b, s, h, d]: [usize; 4],
    dtype: DType,
    amplitude: f64,
    extreme: bool,
) -> Result<Tensor> {
    const EXTREME: [f64; 10] =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-310, 1e-40, -6e-8, 3e38, -3e38, 65_504.0, -0.0];
    let share = if extreme { *u.choose(&[0.02, 0.3])? } else { 0.0 };
    let mut make = |dims: [usize; 4]| {
        let number = |_| match random.uniform() < share {
            true => EXTREME[(random.uniform() * 10.0) as usize],
            false => (random.uniform() * 2.0 - 1.0) * amplitude,
        };
        let numbers: Vec<f64> = (0..dims.iter().product()).map(number).collect();
        Tensor::from_vec(numbers, &dims, &Device::Cpu).and_then(|tensor| tensor.to_dtype(dtype)).expect("a tensor")
    };
    let view = match u.int_in_range(0..=6)? {
        0 => make([b, h, s, d]).transpose(1, 2),
        1 => make([b, s, h, d + 3]).narrow(3, 2, d),
        2 => make([b, s + 2, h, d]).narrow(1, 1, s),
        3 => make([1, s, h, d]).broadcast_as((b, s, h, d)),
        4 => make([b, 1, h, d]).broadcast_as((b, s, h, d)),
        5 => make([b, s, d, h]).transpose(2, 3),
        _ => Ok(make([b, s, h, d])),
    };
    Ok(view.expect("a view"))
}
