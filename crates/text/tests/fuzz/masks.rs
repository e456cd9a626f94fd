//! Masks of every kind, each with the same mask as a function.

use arbitrary::{Result, Unstructured};
use candle_attention::AttentionMask;
use candle_core::{DType, Device, Tensor};

use crate::common::Random;
use crate::rarely;

/// What a mask does with a batch, head, query and key: `None` hides the key, `Some(bias)` is added to its score.
pub type Sees = Box<dyn Fn(usize, usize, usize, usize) -> Option<f64>>;

/// The sizes of a call.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub b: usize,
    pub h: usize,
    pub s_q: usize,
    pub s_kv: usize,
}

/// A mask of up to three terms.
pub fn mask(u: &mut Unstructured, random: &mut Random, sizes: Sizes) -> Result<(AttentionMask, Sees)> {
    let mut all = AttentionMask::full();
    let mut terms: Vec<Sees> = Vec::new();
    for _ in 0..*u.choose(&[0, 1, 1, 1, 2, 3])? {
        let (mask, sees) = term(u, random, sizes)?;
        all = all.and(mask);
        terms.push(sees);
    }
    let sees: Sees = Box::new(move |b, h, i, j| terms.iter().map(|sees| sees(b, h, i, j)).sum());
    Ok((all, sees))
}

fn keep(visible: bool) -> Option<f64> {
    visible.then_some(0.0)
}

fn term(u: &mut Unstructured, random: &mut Random, sizes: Sizes) -> Result<(AttentionMask, Sees)> {
    let Sizes { b, h, s_q, s_kv } = sizes;
    let mut length = || (random.uniform() * (s_kv + 1) as f64) as usize;
    // The position of query 0 among the keys.
    let start = s_kv as i64 - s_q as i64;
    Ok(match u.int_in_range(0..=9)? {
        0 => (AttentionMask::causal(), Box::new(move |_, _, i, j| keep(j as i64 <= start + i as i64))),
        1 => {
            let side = |u: &mut Unstructured| -> Result<Option<usize>> {
                Ok(*u.choose(&[None, Some(0), Some(1), Some(3), Some(200), Some(usize::MAX)])?)
            };
            let (left, right) = (side(u)?, side(u)?);
            let within =
                |distance: i64, most: Option<usize>| most.is_none_or(|most| i128::from(distance) <= most as i128);
            let sees = move |_, _, i: usize, j: usize| {
                let ahead = j as i64 - (start + i as i64);
                keep(within(-ahead, left) && within(ahead, right))
            };
            (AttentionMask::window(left, right), Box::new(sees))
        }
        2 => {
            let lengths: Vec<usize> = (0..b).map(|_| length()).collect();
            (AttentionMask::lengths(&lengths), Box::new(move |b, _, _, j| keep(j < lengths[b])))
        }
        3 => {
            let lengths: Vec<Vec<usize>> = (0..b).map(|_| (0..s_q).map(|_| length()).collect()).collect();
            (AttentionMask::query_lengths(&lengths), Box::new(move |b, _, i, j| keep(j < lengths[b][i])))
        }
        4 => {
            let slopes: Vec<f64> = (0..h).map(|_| random.uniform()).collect();
            let symmetric = u.arbitrary()?;
            let sees = {
                let slopes = slopes.clone();
                move |_, h: usize, i: usize, j: usize| {
                    let distance = start + i as i64 - j as i64;
                    Some(-slopes[h] * (if symmetric { distance.abs() } else { distance }) as f64)
                }
            };
            (AttentionMask::distances(slopes, symmetric), Box::new(sees))
        }
        5 => {
            let dtype = *u.choose(&[DType::U8, DType::U32, DType::I64])?;
            let [queries, keys] = [s_q, s_kv].map(|s| random.booleans(&[b, s], 0.6));
            let ids = |ids: &Tensor| ids.to_dtype(dtype).expect("ids");
            let mask = AttentionMask::segments(&ids(&queries), &ids(&keys)).expect("segments");
            let (queries, keys) = (bytes(&queries), bytes(&keys));
            (mask, Box::new(move |b, _, i, j| keep(queries[b * s_q + i] == keys[b * s_kv + j])))
        }
        kind => {
            // A tensor with any of its dimensions shared.
            let shared = |u: &mut Unstructured, n: usize| -> Result<usize> { Ok(if rarely(u, 2)? { 1 } else { n }) };
            let dims = [shared(u, b)?, shared(u, h)?, shared(u, s_q)?, shared(u, s_kv)?];
            let ones = random.booleans(&dims, *u.choose(&[0.5, 0.9, 0.1, 0.0])?);
            let numbers = bytes(&ones);
            let at = move |at: [usize; 4]| {
                let mut index = 0;
                for (place, size) in at.into_iter().zip(dims) {
                    index = index * size + if size == 1 { 0 } else { place };
                }
                index
            };
            match kind {
                6 => {
                    let dtype = *u.choose(&[DType::U8, DType::U32, DType::I64])?;
                    let mask = AttentionMask::keep(&ones.to_dtype(dtype).expect("integers")).expect("a mask");
                    (mask, Box::new(move |b, h, i, j| keep(numbers[at([b, h, i, j])] == 1)))
                }
                7 => {
                    let mask = AttentionMask::exclude(&ones).expect("a mask");
                    (mask, Box::new(move |b, h, i, j| keep(numbers[at([b, h, i, j])] == 0)))
                }
                _ => {
                    // A bias, or minus infinity where the other tensor has a zero.
                    let dtype = *u.choose(&[DType::F32, DType::F64, DType::F16])?;
                    let bias = random.tensor(&dims, DType::F16);
                    let hidden = Tensor::full(f32::NEG_INFINITY, &dims, &Device::Cpu).expect("a tensor");
                    let hidden = hidden.to_dtype(DType::F16).expect("a tensor");
                    let bias = ones.where_cond(&bias, &hidden).expect("a tensor").to_dtype(dtype).expect("floats");
                    let mask = AttentionMask::additive(&bias).expect("a mask");
                    let bias = crate::common::numbers(&bias);
                    (mask, Box::new(move |b, h, i, j| Some(bias[at([b, h, i, j])]).filter(|bias| bias.is_finite())))
                }
            }
        }
    })
}

fn bytes(tensor: &Tensor) -> Vec<u8> {
    tensor.flatten_all().and_then(|tensor| tensor.to_vec1()).expect("bytes")
}
