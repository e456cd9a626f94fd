//! NaN and infinities in keys and values: a query that does not see them gives the same bits as without them.

use candle_core::{DType, Device, Tensor};

use super::{call, mock_kernel, random};
use crate::mask::AttentionMask;
use crate::sdpa::metal::attend_with_kernel;
use crate::sdpa::{Call, SdpaOptions};
use crate::tensor::with_slice;

/// `xs` with NaN and an infinity in the head 0 of token `j` of the last sequence.
fn spoil(xs: &Tensor, j: usize) -> Tensor {
    let (b, s, h, d) = xs.dims4().unwrap();
    let bad = (0..b * s * h * d).map(|i| match (i / d == ((b - 1) * s + j) * h, i % d) {
        (true, 1) => f32::NAN,
        (true, 4) => f32::NEG_INFINITY,
        _ => 0.0,
    });
    let bad = Tensor::from_iter(bad, &Device::Cpu).unwrap().reshape(xs.shape()).unwrap();
    (xs + bad.to_dtype(xs.dtype()).unwrap()).unwrap()
}

#[test]
fn a_hidden_key_has_no_influence_whatever_it_holds() {
    let by_head: Vec<u8> = (0..2 * 4 * 6 * 6).map(|i| u8::from(i % 3 != 0)).collect();
    let by_head = Tensor::from_vec(by_head, (2, 4, 6, 6), &Device::Cpu).unwrap();
    let masks = [
        AttentionMask::full(),
        AttentionMask::causal(),
        AttentionMask::lengths(&[4, 3]),
        AttentionMask::lengths(&[4, 0]),
        AttentionMask::padding(&[6, 2]),
        AttentionMask::window(Some(1), Some(0)),
        AttentionMask::keep(&by_head).unwrap(),
    ];
    for (mask, dtype) in masks.iter().flat_map(|mask| [(mask, DType::F32), (mask, DType::BF16)]) {
        let (call, options) = (Call { dtype, ..call(2, [4, 2], 6, 6, 32) }, SdpaOptions::new(mask));
        let of = |h: usize, seed: f64| random([2, 6, h, 32], seed, dtype);
        let (q, k, v) = (of(4, 0.0), of(2, 1.0), of(2, 2.0));
        let run = |k: &Tensor, v: &Tensor| {
            let output = attend_with_kernel(mock_kernel, [&q, k, v], &call, &options).unwrap();
            with_slice(&output.to_dtype(DType::F32).unwrap(), <[f32]>::to_vec).unwrap()
        };
        let keep = mask.dense(call.shape, 0, DType::F32, &Device::Cpu).unwrap().keep;
        let keep = keep.unwrap_or_else(|| Tensor::ones((1, 1, 1, 1), DType::U8, &Device::Cpu).unwrap());
        let keep = with_slice(&keep.broadcast_as((2, 4, 6, 6)).unwrap(), <[u8]>::to_vec).unwrap();
        let clean = run(&k, &v);
        for j in 0..6 {
            let (keys, values) = (run(&spoil(&k, j), &v), run(&k, &spoil(&v, j)));
            for (at, clean) in clean.iter().enumerate() {
                let (b, i, h) = (at / 32 / 4 / 6, at / 32 / 4 % 6, at / 32 % 4);
                let sees = b == 1 && h < 2 && keep[((b * 4 + h) * 6 + i) * 6 + j] != 0;
                let right = |x: f32| if sees { x.is_nan() } else { x.to_bits() == clean.to_bits() };
                // Where no key is hidden, the kernel gets the values as they are.
                let as_they_are = [1, 4].contains(&(at % 32)) != values[at].is_finite();
                let values_right = if sees && mask.is_full() { as_they_are } else { right(values[at]) };
                assert!(right(keys[at]) && values_right, "{mask}, {dtype:?}, key {j}, {b} {i} {h}: {}", values[at]);
            }
        }
    }
}
