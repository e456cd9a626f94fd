//! Keys and values that are not finite, under a mask, for kernels of other crates.
//!
//! Elements of hidden keys have no influence on a query, NaN and infinities included. Such a kernel multiplies the
//! values of a tile of keys by weights of 0, and 0 · NaN is NaN. So it gets zeros in place of what is not finite, and
//! afterwards the queries that see one of those keys get NaN. To ask a GPU whether there are any would mean to wait for
//! it; these operations are queued like all others, and read each key and value once.

use std::ops::Range;

use candle_core::{D, DType, Tensor};

use crate::error::{Error, Result};
use crate::mask::lowest_finite;

/// `xs` `(b, keys, h_kv, d)` with zeros in place of what is not finite, and `(b, keys, h_kv)` in f32: 1 for the heads
/// of keys that have such an element.
pub(super) fn finite_parts(xs: &Tensor) -> Result<[Tensor; 2]> {
    let finite = xs.abs()?.le(-lowest_finite(xs.dtype()))?; // false for NaN
    let spoiled = finite.min(D::Minus1)?.eq(0u8)?.to_dtype(DType::F32)?;
    Ok([finite.where_cond(xs, &xs.zeros_like()?)?, spoiled])
}

/// The most keys of which ranges can be counted: the root of this number, the largest term of a sum, is exact in every
/// type in which a GPU may multiply f32 (TF32 has 11 bits).
const MAX_KEYS: usize = 1 << 22;

/// How many of the keys that `spoiled` `(b, keys, h_kv)` marks lie in the range of each query: `(b, queries, h_kv)`.
pub(super) fn marked_in_ranges(spoiled: &Tensor, ranges: &[Range<usize>]) -> Result<Tensor> {
    let keys = spoiled.dim(1)?;
    if keys > MAX_KEYS {
        let expected = format!("at most {MAX_KEYS} under this mask on this backend");
        return Err(Error::value("the number of keys", keys, expected));
    }
    let before = counts_before(&spoiled.transpose(1, 2)?.contiguous()?)?; // (b, h_kv, keys + 1)
    let at = |end: fn(&Range<usize>) -> usize| {
        let ends: Vec<u32> = ranges.iter().map(|range| end(range) as u32).collect();
        Ok::<_, Error>(before.index_select(&Tensor::new(ends, spoiled.device())?, 2)?)
    };
    let counts = (at(|range| range.end.max(range.start))? - at(|range| range.start)?)?;
    Ok(counts.transpose(1, 2)?)
}

/// How many of the keys that `spoiled` `(b, keys, h_kv)` marks each query sees under `keep`, which broadcasts to
/// `(b, h, s_q, keys)`: `(b, s_q or 1, h or h_kv)`.
pub(super) fn marked_under(spoiled: &Tensor, keep: &Tensor) -> Result<Tensor> {
    let (b, keys, h_kv) = spoiled.dims3()?;
    let (_, heads, queries, _) = keep.dims4()?;
    let keep = keep.to_dtype(DType::F32)?.broadcast_as((b, heads, queries, keys))?.contiguous()?;
    if heads == 1 {
        return Ok(keep.squeeze(1)?.matmul(spoiled)?); // (b, queries, h_kv)
    }
    let rows = keep.reshape((b, h_kv, heads / h_kv * queries, keys))?;
    let counts = rows.matmul(&spoiled.transpose(1, 2)?.contiguous()?.unsqueeze(3)?)?; // (b, h_kv, rows, 1)
    Ok(counts.reshape((b, heads, queries))?.transpose(1, 2)?)
}

/// `output` `(b, s_q, h, d_v)` with NaN in the heads of queries for which `counts` `(b, s_q or 1, h or h_kv)` is not 0.
pub(super) fn with_nan(output: &Tensor, counts: &Tensor) -> Result<Tensor> {
    let (b, s_q, h, _) = output.dims4()?;
    let (_, queries, heads) = counts.dims3()?;
    let spoiled = counts.gt(0.5)?.unsqueeze(3)?.broadcast_as((b, queries, heads, h / heads))?;
    let spoiled = spoiled.reshape((b, queries, h, 1))?.broadcast_as((b, s_q, h, 1))?;
    let nan = Tensor::new(f32::NAN, output.device())?.to_dtype(output.dtype())?.broadcast_as(output.shape())?;
    Ok(spoiled.broadcast_as(output.shape())?.where_cond(&nan, output)?)
}

/// `(…, n)` → `(…, n + 1)`: the sum of the elements before each one, and of all. Two products with triangles of about
/// `√n` rows, because one with a triangle of `n` rows would need `n²` elements.
fn counts_before(xs: &Tensor) -> Result<Tensor> {
    let (b, h, n) = xs.dims3()?;
    let size = n.isqrt().max(1);
    let blocks = n.div_ceil(size);
    let triangle = |n: usize| Tensor::triu2(n, DType::F32, xs.device());
    let padded = xs.pad_with_zeros(2, 0, blocks * size - n)?.reshape((b * h * blocks, size))?;
    let within = padded.matmul(&triangle(size)?)?.reshape((b * h, blocks, size))?;
    let totals = within.narrow(2, size - 1, 1)?.squeeze(2)?.contiguous()?; // (b · h, blocks)
    let earlier = (totals.matmul(&triangle(blocks)?)? - &totals)?;
    let sums = within.broadcast_add(&earlier.unsqueeze(2)?)?.reshape((b, h, blocks * size))?;
    Ok(sums.narrow(2, 0, n)?.pad_with_zeros(2, 1, 0)?.contiguous()?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn more_keys_than_can_be_counted_are_an_error() {
        let spoiled = Tensor::zeros((1, MAX_KEYS + 1, 1), DType::F32, &Device::Cpu).unwrap();
        let error = marked_in_ranges(&spoiled, &[0..1, 0..2]).unwrap_err().to_string();
        assert!(error.contains("the number of keys is 4194305, expected at most 4194304"), "{error}");
    }

    #[test]
    fn counts_of_marked_keys_are_those_of_a_loop() {
        for keys in [1usize, 2, 3, 8, 17, 64, 101] {
            let (b, h_kv) = (2, 3);
            let marks: Vec<f32> = (0..b * keys * h_kv).map(|i| if i * 7 % 5 == 0 { 1.0 } else { 0.0 }).collect();
            let spoiled = Tensor::from_vec(marks.clone(), (b, keys, h_kv), &Device::Cpu).unwrap();
            let ranges: Vec<Range<usize>> = (0..11).map(|i| i * keys / 13..(i * 5 % 7 * keys / 6).min(keys)).collect();
            let count = |row: usize, range: &Range<usize>, h: usize| -> f32 {
                range.clone().map(|j| marks[(row * keys + j) * h_kv + h]).sum()
            };
            let mut want = Vec::new();
            for row in 0..b {
                ranges.iter().for_each(|range| want.extend((0..h_kv).map(|h| count(row, range, h))));
            }
            let got = marked_in_ranges(&spoiled, &ranges).unwrap();
            assert_eq!(got.dims(), [b, ranges.len(), h_kv]);
            assert_eq!(got.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want, "{keys} keys");

            let row = |range: &Range<usize>| (0..keys).map(|j| u8::from(range.contains(&j))).collect::<Vec<_>>();
            let keep: Vec<u8> = ranges.iter().flat_map(row).collect();
            let keep = Tensor::from_vec(keep, (1, 1, ranges.len(), keys), &Device::Cpu).unwrap();
            let got = marked_under(&spoiled, &keep).unwrap();
            assert_eq!(got.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want);
            let heads = keep.broadcast_as((1, 2 * h_kv, ranges.len(), keys)).unwrap().contiguous().unwrap();
            let got = marked_under(&spoiled, &heads).unwrap(); // (b, queries, 2 · h_kv)
            let every_second = got.reshape((b, ranges.len(), h_kv, 2)).unwrap().narrow(3, 1, 1).unwrap();
            assert_eq!(every_second.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want);
        }
    }
}
