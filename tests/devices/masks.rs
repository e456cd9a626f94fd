//! Every kind of mask, with the same rule as a function of query and key.

use candle_attention::AttentionMask;
use candle_core::{DType, Device, Tensor};

use crate::common::{Random, numbers};

/// What the mask does to the score of `(sequence, head, query, key)`: `None` masks it, `Some(bias)` adds to it.
pub type Sees = Box<dyn Fn(usize, usize, usize, usize) -> Option<f64> + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Full,
    Causal,
    Window,
    SlidingWindow,
    Lengths,
    QueryLengths,
    Padding,
    KeepKeys,
    KeepQueries,
    KeepAll,
    KeepHeads,
    /// One value per query: whole rows are masked.
    KeepRows,
    Exclude,
    AdditiveAll,
    AdditiveHeads,
    AdditiveMatrix,
    AdditiveInfinite,
    /// The lowest finite number of the call's dtype, as Hugging Face writes it.
    AdditiveLowest,
    Segments,
    Distances,
    SymmetricDistances,
    CausalLengths,
    CausalDistances,
    PaddingWindow,
    CausalSegments,
    CausalOrSegments,
    PrefixLm,
    Combined,
    /// No query sees any key.
    FullyMasked,
}

/// The sizes of a call.
#[derive(Debug, Clone, Copy)]
pub struct Extent {
    pub b: usize,
    pub h: usize,
    pub s_q: usize,
    pub s_kv: usize,
}

impl Kind {
    pub const ALL: [Self; 29] = [
        Self::Full,
        Self::Causal,
        Self::Window,
        Self::SlidingWindow,
        Self::Lengths,
        Self::QueryLengths,
        Self::Padding,
        Self::KeepKeys,
        Self::KeepQueries,
        Self::KeepAll,
        Self::KeepHeads,
        Self::KeepRows,
        Self::Exclude,
        Self::AdditiveAll,
        Self::AdditiveHeads,
        Self::AdditiveMatrix,
        Self::AdditiveInfinite,
        Self::AdditiveLowest,
        Self::Segments,
        Self::Distances,
        Self::SymmetricDistances,
        Self::CausalLengths,
        Self::CausalDistances,
        Self::PaddingWindow,
        Self::CausalSegments,
        Self::CausalOrSegments,
        Self::PrefixLm,
        Self::Combined,
        Self::FullyMasked,
    ];

    pub fn needs_self_attention(self) -> bool {
        matches!(self, Self::Padding | Self::PaddingWindow)
    }

    /// The mask, with its tensors passed through `place`, and its rule. Deterministic for the same `random`.
    pub fn make(
        self,
        Extent { b, h, s_q, s_kv }: Extent,
        dtype: DType,
        random: &mut Random,
        place: &dyn Fn(Tensor) -> Tensor,
    ) -> (AttentionMask, Sees) {
        let mut of = |kind: Self| kind.make(Extent { b, h, s_q, s_kv }, dtype, random, place);
        match self {
            Self::SlidingWindow => return both(of(Self::Causal), of(Self::Window)),
            Self::CausalLengths => return both(of(Self::Causal), of(Self::Lengths)),
            Self::CausalDistances => return both(of(Self::Causal), of(Self::Distances)),
            Self::PaddingWindow => return both(of(Self::Padding), of(Self::Window)),
            Self::CausalSegments => return both(of(Self::Causal), of(Self::Segments)),
            Self::CausalOrSegments => return either(of(Self::Causal), of(Self::Segments)),
            Self::Combined => {
                let kinds = [Self::Window, Self::KeepKeys, Self::AdditiveHeads, Self::QueryLengths, Self::AdditiveAll];
                return kinds.into_iter().map(of).reduce(both).unwrap();
            }
            _ => {}
        }
        let mut keep = |dims: &[usize], share: f64, exclude: bool| {
            let mask = random.booleans(dims, share);
            // Two dimensions are the keys of each sequence.
            let look = match *dims {
                [rows, keys] => lookup(&mask, [rows, 1, 1, keys]),
                _ => lookup(&mask, dims.try_into().unwrap()),
            };
            let sees = when(move |b, h, i, j| (look(b, h, i, j) != 0.0) != exclude);
            let mask = match (exclude, dims.len()) {
                (true, _) => AttentionMask::exclude(&place(mask.to_dtype(DType::U32).unwrap())),
                (false, 2) => AttentionMask::keep_keys(&place(mask)),
                (false, _) => AttentionMask::keep(&place(mask)),
            };
            (mask.unwrap(), sees)
        };
        // A single sequence is cut to half; otherwise the first sequence sees no key and the last sees all.
        let lengths: Vec<usize> =
            (0..b).map(|row| if b == 1 { s_kv.div_ceil(2) } else { row * s_kv / (b - 1) }).collect();
        let position = move |i: usize| i as i64 + s_kv as i64 - s_q as i64;
        match self {
            Self::Full => (AttentionMask::full(), when(|_, _, _, _| true)),
            Self::Causal => (AttentionMask::causal(), when(move |_, _, i, j| j as i64 <= position(i))),
            Self::Window => {
                let (left, right) = (s_kv / 3, 2);
                let near =
                    move |i: usize, j: usize| (-(left as i64)..=right as i64).contains(&(j as i64 - position(i)));
                (AttentionMask::window(Some(left), Some(right)), when(move |_, _, i, j| near(i, j)))
            }
            Self::Lengths => (AttentionMask::lengths(&lengths), when(move |b, _, _, j| j < lengths[b])),
            Self::QueryLengths => {
                let row = |b: usize| (0..s_q).map(|i| (i * 5 + b) % (s_kv + 1)).collect();
                let rows: Vec<Vec<usize>> = (0..b).map(row).collect();
                (AttentionMask::query_lengths(&rows), when(move |b, _, i, j| j < rows[b][i]))
            }
            Self::Padding => {
                let mask = AttentionMask::padding(&lengths);
                (mask, when(move |b, _, i, j| i < lengths[b] && j < lengths[b]))
            }
            Self::PrefixLm => {
                let mask = AttentionMask::prefix_lm(&lengths);
                (mask, when(move |b, _, i, j| j < lengths[b] || j as i64 <= position(i)))
            }
            Self::KeepKeys => keep(&[b, s_kv], 0.7, false),
            Self::KeepQueries => keep(&[b, 1, s_q, s_kv], 0.7, false),
            Self::KeepAll => keep(&[b, h, s_q, s_kv], 0.6, false),
            Self::KeepHeads => keep(&[1, h, 1, s_kv], 0.6, false),
            Self::KeepRows => keep(&[b, 1, s_q, 1], 0.5, false),
            Self::Exclude => keep(&[b, 1, s_q, s_kv], 0.4, true),
            Self::FullyMasked => keep(&[1, s_kv], 0.0, false),
            Self::AdditiveAll => additive(random.tensor(&[b, h, s_q, s_kv], DType::F32), place),
            Self::AdditiveHeads => additive(random.tensor(&[1, h, 1, s_kv], dtype), place),
            Self::AdditiveMatrix => additive(random.tensor(&[s_q, s_kv], DType::F32), place),
            Self::AdditiveInfinite | Self::AdditiveLowest => {
                let (dtype, lowest) = match self {
                    Self::AdditiveInfinite => (DType::F32, f64::NEG_INFINITY),
                    _ => (dtype, lowest_finite(dtype)),
                };
                let (keep, bias) = (random.booleans(&[b, 1, s_q, s_kv], 0.6), random.tensor(&[1, 1, 1, s_kv], dtype));
                let bias = bias.broadcast_as(keep.shape()).unwrap();
                let low = Tensor::full(lowest, keep.shape(), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
                let mask = keep.where_cond(&bias, &low).unwrap();
                let look = lookup(&mask, [b, 1, s_q, s_kv]);
                let sees: Sees = Box::new(move |b, h, i, j| Some(look(b, h, i, j)).filter(|x| *x > lowest));
                (AttentionMask::additive(&place(mask)).unwrap(), sees)
            }
            Self::Segments => {
                let ids =
                    |s: usize| (0..b * s).map(|i| (i % s.max(1) * 3 / s_kv.max(1) + i / s.max(1)) as u32).collect();
                let (queries, keys): (Vec<u32>, Vec<u32>) = (ids(s_q), ids(s_kv));
                let tensor = |ids: &[u32], s: usize| place(Tensor::from_slice(ids, (b, s), &Device::Cpu).unwrap());
                let mask = AttentionMask::segments(&tensor(&queries, s_q), &tensor(&keys, s_kv)).unwrap();
                (mask, when(move |b, _, i, j| queries[b * s_q + i] == keys[b * s_kv + j]))
            }
            Self::Distances | Self::SymmetricDistances => {
                // Powers of two, as published, so that biases are exact in f32.
                let slopes: Vec<f64> = (0..h).map(|h| 0.5f64.powi(h as i32 + 2)).collect();
                let symmetric = self == Self::SymmetricDistances;
                let mask = AttentionMask::distances(slopes.clone(), symmetric);
                let before = move |i: usize, j: usize| position(i) - j as i64;
                let counted = move |before: i64| if symmetric { before.abs() } else { before } as f64;
                (mask, Box::new(move |_, h, i, j| Some(-slopes[h] * counted(before(i, j)))))
            }
            Self::SlidingWindow
            | Self::CausalLengths
            | Self::CausalDistances
            | Self::PaddingWindow
            | Self::CausalSegments
            | Self::CausalOrSegments
            | Self::Combined => unreachable!("combined above"),
        }
    }
}

/// Both masks combined.
fn both(a: (AttentionMask, Sees), b: (AttentionMask, Sees)) -> (AttentionMask, Sees) {
    let ((a, sees_a), (b, sees_b)) = (a, b);
    (a.and(b), Box::new(move |b, h, i, j| Some(sees_a(b, h, i, j)? + sees_b(b, h, i, j)?)))
}

/// One of both masks, which add nothing.
fn either(a: (AttentionMask, Sees), b: (AttentionMask, Sees)) -> (AttentionMask, Sees) {
    let ((a, sees_a), (b, sees_b)) = (a, b);
    (a.or(b).unwrap(), Box::new(move |b, h, i, j| sees_a(b, h, i, j).or_else(|| sees_b(b, h, i, j))))
}

fn when(see: impl Fn(usize, usize, usize, usize) -> bool + Send + Sync + 'static) -> Sees {
    Box::new(move |b, h, i, j| see(b, h, i, j).then_some(0.0))
}

fn additive(mask: Tensor, place: &dyn Fn(Tensor) -> Tensor) -> (AttentionMask, Sees) {
    // Two dimensions are one pattern for all sequences and heads.
    let pattern = mask.rank() == 2;
    let mut dims = [1; 4];
    dims[4 - mask.rank()..].copy_from_slice(mask.dims());
    let look = lookup(&mask, dims);
    let mask = place(mask);
    let mask = if pattern { AttentionMask::additive_pattern(&mask) } else { AttentionMask::additive(&mask) };
    (mask.unwrap(), Box::new(move |b, h, i, j| Some(look(b, h, i, j))))
}

/// A lookup in a tensor that, with dimensions `dims`, broadcasts to `(b, h, s_q, s_kv)`.
fn lookup(tensor: &Tensor, dims: [usize; 4]) -> impl Fn(usize, usize, usize, usize) -> f64 + Send + Sync + use<> {
    let numbers = numbers(tensor);
    move |b, h, i, j| {
        let places = [b, h, i, j].into_iter().zip(dims);
        numbers[places.fold(0, |place, (i, n)| place * n + if n == 1 { 0 } else { i })]
    }
}

fn lowest_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::from(half::f16::MIN),
        DType::BF16 => f64::from(half::bf16::MIN),
        _ => f64::from(f32::MIN),
    }
}
