//! Which keys a query may see, as a value that keeps its structure.

mod check;
mod dense;
#[cfg(any(test, feature = "cuda"))]
mod fold;
mod lowered;
mod padded;
mod slice;
mod structure;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
pub(crate) use check::AttnShape;
use dense::Band;
pub(crate) use dense::{DenseMask, lowest_finite};
pub use padded::PaddedIds;

/// Which keys each query may attend to.
///
/// `true` (or 1) means *attend*; [`exclude`](Self::exclude) takes the opposite convention. A mask is described, not
/// materialised: lengths stay lengths and causal stays causal, so that a backend can skip what is hidden. Masks are
/// joined by [`and`](Self::and): a key is seen if every one of them lets it be seen.
///
/// A query that sees no key at all gets zeros (before the output projection) and sends back no gradient, in every
/// dtype and on every backend.
///
/// Shapes are checked against the call: `b` batch, `h` query heads, `s_q` queries, `s_kv` keys.
///
/// ```
/// use candle_attention::AttentionMask;
/// let mask = AttentionMask::causal().and(AttentionMask::lengths(&[3, 2]));
/// assert_eq!(mask.to_string(), "causal and lengths(2 rows)");
/// ```
#[derive(Debug, Clone, Default)]
pub struct AttentionMask {
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// Integers, nonzero = attend.
    Keep(Tensor),
    /// Integers, nonzero = hidden.
    Drop(Tensor),
    /// Floats added to the scores.
    Additive(Tensor),
    /// The first `n` keys, one number a row.
    Lengths(Vec<usize>),
    /// The first `n` keys, one number a row and query: `rows[b][i]`.
    QueryLengths(Vec<Vec<usize>>),
    /// Only the first `n` tokens, one number a row: the others are no keys and, as queries, see nothing.
    Padding(Vec<usize>),
    Causal,
    Window {
        left: Option<usize>,
        right: Option<usize>,
    },
    Segments {
        queries: Tensor,
        keys: Tensor,
    },
    /// The key at which query 0 of each row stands, where that is not told by the numbers of queries and keys.
    Starts(Vec<i64>),
    /// `-slope · distance` added to the scores, a slope a head.
    Distances {
        slopes: Vec<f64>,
        symmetric: bool,
    },
}

/// A mask by a query's place: keys seen before and after it, and what distances take from the scores, a slope a head and
/// whether keys after the query are as far as those before.
#[derive(Debug, Default)]
pub(crate) struct Sliding {
    pub left: Option<usize>,
    pub right: Option<usize>,
    pub distances: Option<(Vec<f64>, bool)>,
}

impl AttentionMask {
    /// Every query sees every key.
    pub fn full() -> Self {
        Self::default()
    }

    /// Nonzero = attend. Any integer dtype; `(b, s_kv)`, `(b, s_q, s_kv)` or `(b, h, s_q, s_kv)`, where every
    /// dimension but `s_kv` of a 2-D mask may be 1 to stand for all.
    ///
    /// A 2-D mask is always one row of keys for each batch entry. For one `(s_q, s_kv)` pattern shared by the batch
    /// give it the shape `(1, s_q, s_kv)`.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype or has no 2, 3 or 4 dimensions.
    pub fn keep(mask: &Tensor) -> Result<Self> {
        integer("keep mask", mask)?;
        two_to_four_dims("keep mask", mask)?;
        Ok(Self::part(Part::Keep(comparable(mask)?)))
    }

    /// Nonzero = hidden, the convention of `key_padding_mask` and boolean `attn_mask` in PyTorch's
    /// `nn.MultiheadAttention`. Shapes as for [`keep`](Self::keep): PyTorch's `attn_mask` `(s_q, s_kv)` needs
    /// `unsqueeze(0)` here, or it would be read as rows of keys.
    ///
    /// # Errors
    /// As [`keep`](Self::keep).
    pub fn exclude(mask: &Tensor) -> Result<Self> {
        integer("drop mask", mask)?;
        two_to_four_dims("drop mask", mask)?;
        Ok(Self::part(Part::Drop(comparable(mask)?)))
    }

    /// Numbers added to the scaled scores, of a shape that broadcasts to `(b, h, s_q, s_kv)`: fewer dimensions are the
    /// last ones, so a 3-D mask is `(h, s_q, s_kv)`, unlike a 3-D [`keep`](Self::keep). Gradients flow into it.
    ///
    /// Where a number is `-inf` or the lowest finite one of the mask's dtype (Hugging Face's `finfo.min`), the key is
    /// hidden, so that a row of nothing else gives zeros like any other fully masked row.
    ///
    /// # Errors
    /// If the tensor is not of a floating dtype or has more than 4 dimensions.
    pub fn additive(mask: &Tensor) -> Result<Self> {
        if !matches!(mask.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("additive mask", mask.dtype(), "f16, bf16, f32 or f64 (for booleans use `keep`)"));
        }
        if mask.rank() > 4 {
            return Err(Error::shape("additive mask", mask.dims(), "a shape that broadcasts to (b, h, s_q, s_kv)"));
        }
        Ok(Self::part(Part::Additive(mask.clone())))
    }

    /// Each row of the batch has only its first `lengths[b]` keys (`valid_lens` in d2l, one-dimensional).
    pub fn lengths(lengths: &[usize]) -> Self {
        Self::part(Part::Lengths(lengths.to_vec()))
    }

    /// Query `i` of row `b` sees only the first `lengths[b][i]` keys (`valid_lens` in d2l, two-dimensional).
    pub fn query_lengths<L: AsRef<[usize]>>(lengths: &[L]) -> Self {
        Self::part(Part::QueryLengths(lengths.iter().map(|row| row.as_ref().to_vec()).collect()))
    }

    /// Self-attention over rows that are padded at the end: row `b` has only its first `lengths[b]` tokens. The others
    /// are no keys, as under [`lengths`](Self::lengths), and see nothing themselves, so that nothing needs to be computed
    /// for them: a layer on the CPU takes the padding off, runs the tokens that are left, and puts it back.
    pub fn padding(lengths: &[usize]) -> Self {
        Self::part(Part::Padding(lengths.to_vec()))
    }

    /// [`lengths`](Self::lengths) from a `(b)` tensor or [`query_lengths`](Self::query_lengths) from a `(b, s_q)`
    /// tensor of any integer dtype.
    ///
    /// # Errors
    /// If the dtype is not an integer one, the shape is another, or a number is negative.
    pub fn lengths_tensor(lengths: &Tensor) -> Result<Self> {
        integer("lengths", lengths)?;
        let numbers = lengths.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
        let to_usize = |(i, &n): (usize, &i64)| {
            usize::try_from(n).map_err(|_| Error::value(format!("lengths element {i}"), n, "a number from 0 to s_kv"))
        };
        let numbers = numbers.iter().enumerate().map(to_usize).collect::<Result<Vec<_>>>()?;
        match *lengths.dims() {
            [_] => Ok(Self::lengths(&numbers)),
            [b, s_q] => Ok(Self::query_lengths(&(0..b).map(|i| &numbers[i * s_q..(i + 1) * s_q]).collect::<Vec<_>>())),
            _ => Err(Error::shape("lengths", lengths.dims(), "(b) or (b, s_q)")),
        }
    }

    /// Each query sees the keys up to its own position. The last query stands at the last key, so query `i` sees
    /// keys `0 ..= i + s_kv - s_q`: right for self-attention and with a key-value cache alike. If there are more
    /// queries than keys, the first ones see none.
    pub fn causal() -> Self {
        Self::part(Part::Causal)
    }

    /// Each query sees at most `left` keys before its own position and `right` after it; `None` is no limit. Positions
    /// are aligned as in [`causal`](Self::causal). A Hugging Face `sliding_window` of `w` is
    /// `window(Some(w - 1), Some(0))`.
    pub fn window(left: Option<usize>, right: Option<usize>) -> Self {
        Self::part(Part::Window { left, right })
    }

    /// `-slopes[h] · distance` added to the scores, the distance being how many places before the query a key stands,
    /// aligned as in [`causal`](Self::causal); after the query it is negative, or, if `symmetric`, counted alike. This is
    /// ALiBi; a layer whose configuration says so adds it by itself.
    pub fn distances(slopes: Vec<f64>, symmetric: bool) -> Self {
        Self::part(Part::Distances { slopes, symmetric })
    }

    /// A query sees only the keys of its own segment: `queries` `(b, s_q)` and `keys` `(b, s_kv)` hold the segments'
    /// numbers, in any integer dtype. For self-attention pass the same tensor twice.
    ///
    /// # Errors
    /// If a tensor is not of an integer dtype or not 2-D.
    pub fn segments(queries: &Tensor, keys: &Tensor) -> Result<Self> {
        for (name, ids) in [("segments of queries", queries), ("segments of keys", keys)] {
            integer(name, ids)?;
            if ids.rank() != 2 {
                return Err(Error::shape(name, ids.dims(), "(b, s)"));
            }
        }
        Ok(Self::part(Part::Segments { queries: comparable(queries)?, keys: comparable(keys)? }))
    }

    /// A key is seen if both masks let it be seen; additive masks add up.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// Query 0 of row `b` stands at key `starts[b]`, whatever the numbers of queries and keys.
    pub(crate) fn starts(starts: Vec<i64>) -> Self {
        Self::part(Part::Starts(starts))
    }

    /// Whether this is [`full`](Self::full).
    pub fn is_full(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether it is [`causal`](Self::causal) and no more.
    pub(crate) fn is_causal(&self) -> bool {
        !self.is_full() && self.parts.iter().all(|part| matches!(part, Part::Causal))
    }

    /// Whether it does not only hide keys.
    pub(crate) fn adds_numbers(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Additive(_) | Part::Distances { .. }))
    }

    /// Whether nothing but causal masks and windows is in it.
    pub(crate) fn is_band(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Causal | Part::Window { .. }))
    }

    /// The lengths of the rows and what else there is, if that is padding and nothing but causal masks and windows.
    pub(crate) fn as_padding(&self) -> Option<(&[usize], Self)> {
        let (padding, rest): (Vec<_>, Vec<_>) = self.parts.iter().partition(|part| matches!(part, Part::Padding(_)));
        let [Part::Padding(lengths)] = padding[..] else { return None };
        let rest = Self { parts: rest.into_iter().cloned().collect() };
        rest.is_band().then_some((lengths, rest))
    }

    /// Causal masks, windows and distances together; `None` if there is anything else.
    pub(crate) fn as_sliding(&self) -> Option<Sliding> {
        let band = Band::of(&self.parts).unwrap_or(Band { left: None, right: None });
        let mut sliding = Sliding { left: band.left, right: band.right, distances: None };
        for part in &self.parts {
            match part {
                Part::Causal | Part::Window { .. } => {}
                Part::Distances { slopes, symmetric } if sliding.distances.is_none() => {
                    sliding.distances = Some((slopes.clone(), *symmetric));
                }
                _ => return None,
            }
        }
        Some(sliding)
    }

    fn part(part: Part) -> Self {
        Self { parts: vec![part] }
    }
}

impl std::fmt::Display for AttentionMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_full() {
            return f.write_str("full");
        }
        for (i, part) in self.parts.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { " and " })?;
            match part {
                Part::Keep(mask) => write!(f, "keep{:?}", mask.dims())?,
                Part::Drop(mask) => write!(f, "drop{:?}", mask.dims())?,
                Part::Additive(mask) => write!(f, "additive{:?}", mask.dims())?,
                Part::Lengths(rows) => write!(f, "lengths({} rows)", rows.len())?,
                Part::QueryLengths(rows) => write!(f, "lengths({} rows, one per query)", rows.len())?,
                Part::Padding(rows) => write!(f, "padding({} rows)", rows.len())?,
                Part::Causal => f.write_str("causal")?,
                Part::Window { left, right } => write!(f, "window({left:?}, {right:?})")?,
                Part::Starts(rows) => write!(f, "starts({} rows)", rows.len())?,
                Part::Distances { slopes, .. } => write!(f, "distances({} heads)", slopes.len())?,
                Part::Segments { queries, keys } => write!(f, "segments({:?}, {:?})", queries.dims(), keys.dims())?,
            }
        }
        Ok(())
    }
}

fn integer(name: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_int() {
        return Ok(());
    }
    Err(Error::dtype(name, tensor.dtype(), "an integer dtype such as u8"))
}

/// GPUs have no operations on i16 and i32: there such a mask becomes i64, on the CPU.
fn comparable(mask: &Tensor) -> Result<Tensor> {
    let device = mask.device();
    Ok(match mask.dtype() {
        DType::I16 | DType::I32 => mask.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.to_device(device)?,
        _ => mask.clone(),
    })
}

fn two_to_four_dims(name: &str, tensor: &Tensor) -> Result<()> {
    if (2..=4).contains(&tensor.rank()) {
        return Ok(());
    }
    Err(Error::shape(name, tensor.dims(), "(b, s_kv), (b, s_q, s_kv) or (b, h, s_q, s_kv)"))
}
