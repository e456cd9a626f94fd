//! The attention problem: one call of the kernel, with its operands as views of memory.

use std::ops::Range;

use super::elements::{Element, Elements};
use super::error::{Error, Result};
use super::mask::{Mask, check_view};
use super::memory::element_count;

/// One call of the attention kernel, of queries, keys and values in a dtype or int8.
pub type AttentionProblem<'a, T, K = HeadsView<'a, T>> = AttentionCall<'a, HeadsView<'a, T>, K, Mask<'a>>;

/// An [`AttentionProblem`] of any dtype.
pub(super) type Problem<'a> = AttentionCall<'a, Heads<'a>, Heads<'a>, &'a Mask<'a>>;

/// One call of the attention kernel, by its views of queries, of keys and values, and its mask: see
/// [`AttentionProblem`].
///
/// Shapes: `q` `(b, s_q, h, d)`, `k` `(b, keys, h_kv, d)`, `v` `(b, keys, h_kv, d_v)` with `keys = s_kv + appended`. In
/// a ragged batch `b` is 1, and the tokens of all sequences follow each other.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCall<'a, Q, K, M> {
    /// The queries.
    pub q: Q,
    /// The keys.
    pub k: K,
    /// The values.
    pub v: K,
    /// The sequences and their lengths.
    pub batch: Batch<'a>,
    /// Keys after the `s_kv` keys that the mask covers. Every query sees them.
    pub appended: usize,
    /// Query heads, a multiple of `h_kv`.
    pub h: usize,
    /// Key-value heads.
    pub h_kv: usize,
    /// Values per head of queries and keys.
    pub d: usize,
    /// Values per head of values.
    pub d_v: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores, with their products with embeddings, become `softcap · tanh(score / softcap)` before they are masked.
    pub softcap: Option<f32>,
    /// One score per head that takes part in the softmax but has no value.
    pub sinks: Option<&'a [f32]>,
    /// Which keys a query sees, and what is added to its scores.
    pub mask: M,
    /// Whether the products may round their operands to bf16 where there are instructions for it. Sums stay f32.
    pub bf16: bool,
}

impl<T: Element, K: KeyValueView> AttentionProblem<'_, T, K> {
    /// Multiply-adds of the whole call without a mask. Few queries count as many as are multiplied in the time in which
    /// keys and values are read.
    pub fn multiply_adds(&self) -> usize {
        const MIN_QUERIES: usize = 8;
        let group = self.h / self.h_kv.max(1);
        let pairs = |b: usize| {
            let keys = self.batch.s_kv(b).saturating_add(self.appended);
            self.batch.s_q(b).saturating_mul(group).max(MIN_QUERIES).saturating_mul(keys)
        };
        let pairs = match self.batch {
            Batch::Padded { b, .. } => pairs(0).saturating_mul(b),
            _ => self.batch.sequences().map(pairs).fold(0, usize::saturating_add),
        };
        pairs.saturating_mul(self.h_kv).saturating_mul(self.d.saturating_add(self.d_v))
    }

    /// The problem as kernels take it.
    pub(super) fn erase(&self) -> Problem<'_> {
        let Self { batch, appended, h, h_kv, d, d_v, scale, softcap, sinks, ref mask, bf16, .. } = *self;
        let (q, [k, v]) = (self.q.heads(), [&self.k, &self.v].map(K::heads));
        Problem { q, k, v, batch, appended, h, h_kv, d, d_v, scale, softcap, sinks, mask, bf16 }
    }
}

/// The most values per head in int8: sums of so many products fit into 32 bits.
const MAX_INT8_TERMS: usize = 1 << 17;

/// The most rows of queries of a key-value head that are few: their sums stay in the L2 cache beside a block of keys.
const FEW_ROWS: usize = 128;
/// Keys for each of few queries: with fewer, packing is a small part of the work.
const KEYS_PER_FEW: usize = 4;
/// The most keys of few queries. Far more than any cache holds, they would be those of a view without memory, and the
/// kernel for many queries refuses what it cannot pack.
const KEYS_OF_FEW: usize = 1 << 24;

impl Problem<'_> {
    /// Whether all sequences have so few queries that each key is read once: see [`few_queries`](crate::few_queries).
    pub(super) fn has_few_queries(&self) -> bool {
        let few = |b: usize| {
            let (s_q, keys) = (self.batch.s_q(b), self.batch.s_kv(b).saturating_add(self.appended));
            s_q.saturating_mul(self.h / self.h_kv) <= FEW_ROWS && keys >= KEYS_PER_FEW * s_q && keys <= KEYS_OF_FEW
        };
        self.mask.embeddings.is_none() && self.batch.sequences().all(few)
    }

    /// The number of keys of sequence `b` up to the last one that any of these queries sees.
    pub(super) fn visible_keys(&self, b: usize, queries: Range<usize>) -> usize {
        self.mask.seen_keys(b, queries, [self.batch.s_q(b), self.batch.s_kv(b)], self.appended).end
    }

    /// Whether query `i` of head `h` in sequence `b` sees a key.
    pub(super) fn sees(&self, (b, h, i): (usize, usize, usize), key: usize) -> bool {
        self.mask.sees((b, h, i), key, [self.batch.s_q(b), self.batch.s_kv(b)])
    }

    /// The score of a head that is seen before the first key; -inf if there is none.
    #[inline(always)]
    pub(super) fn sink(&self, h: usize) -> f32 {
        self.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[h])
    }

    /// The size of the output, if the problem is consistent: everything that the kernel, which writes to memory that is
    /// not initialized, relies on.
    pub(super) fn checked_output_size(&self) -> Result<usize> {
        let Self { h, h_kv, d, d_v, appended, batch, .. } = *self;
        if !h.is_multiple_of(h_kv) {
            let expected = format!("a multiple of {h_kv}, the key-value heads");
            return Err(Error::value("the number of query heads", h, expected));
        }
        if d == 0 {
            return Err(Error::value("the head dimension", d, "at least 1"));
        }
        if self.k.data.is_int8() && d > MAX_INT8_TERMS {
            return Err(Error::value("the head dimension", d, format!("at most {MAX_INT8_TERMS} in int8")));
        }
        if self.k.data.is_int8() && self.mask.embeddings.is_some() {
            // They are compared with queries as keys are.
            let found = "one with embeddings of distances";
            return Err(Error::value("the mask of a call with keys in int8", found, "one without"));
        }
        batch.check(appended)?;
        let sequences = batch.masked_sequences();
        let size = match batch {
            Batch::Padded { b, s_q, .. } => element_count("the output of attention", &[b, s_q, h, d_v])?,
            _ => element_count("the output of attention", &[batch.queries(), h, d_v])?,
        };
        if size == 0 {
            return Ok(0);
        }
        let (rows, queries, keys) = match batch {
            Batch::Padded { b, s_q, s_kv } => (b, s_q, s_kv.saturating_add(appended)),
            _ => (1, batch.queries(), batch.queries()),
        };
        self.q.check("queries", [rows, queries, h], d)?;
        self.k.check("keys", [rows, keys, h_kv], d)?;
        self.v.check("values", [rows, keys, h_kv], d_v)?;
        if let Some(sinks) = self.sinks.filter(|sinks| sinks.len() != h) {
            return Err(Error::value("the number of sinks", sinks.len(), format!("{h}, the number of heads")));
        }
        let longest = |length: &dyn Fn(usize) -> usize| match batch {
            Batch::Padded { .. } => length(0),
            _ => (0..sequences).map(length).max().unwrap_or(0),
        };
        let dims = [sequences, h, longest(&|b| batch.s_q(b)), longest(&|b| batch.s_kv(b))];
        self.mask.check(dims, d)?;
        Ok(size)
    }
}

/// Queries, keys or values `(b, s, h, d)` in memory, with the strides of `b`, `s` and `h`. The `d` values of a head are
/// contiguous.
#[derive(Debug, Clone, Copy)]
pub struct HeadsView<'a, T> {
    /// The memory.
    pub data: &'a [T],
    /// From one batch row, token and head to the next.
    pub strides: [usize; 3],
}

/// Keys or values in int8: a head of `d` values is the four bytes of an f32 scale (in the order of the processor), and
/// `d` integers that are multiplied with it. [`quantize_heads`](crate::quantize_heads) makes such heads, with scales
/// that are finite; with others the output is not.
#[derive(Debug, Clone, Copy)]
pub struct Int8Heads<'a>(pub HeadsView<'a, u8>);

/// How keys and values are held: in the dtype of queries ([`HeadsView`]) or in int8 ([`Int8Heads`]). The trait is
/// public for [`AttentionProblem`] alone.
pub trait KeyValueView {
    /// The view as kernels take it.
    fn heads(&self) -> Heads<'_>;
}

impl<T: Element> KeyValueView for HeadsView<'_, T> {
    fn heads(&self) -> Heads<'_> {
        Heads { data: T::elements(self.data), strides: self.strides }
    }
}

impl KeyValueView for Int8Heads<'_> {
    fn heads(&self) -> Heads<'_> {
        Heads { data: Elements::Int8(bytemuck::cast_slice(self.0.data)), strides: self.0.strides }
    }
}

/// Queries, keys or values of any dtype.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    pub data: Elements<'a>,
    pub strides: [usize; 3],
}

impl<'a> Heads<'a> {
    /// Where head `h` of token `start + s` in batch row `b` starts.
    #[inline(always)]
    pub(super) fn offset(&self, (b, start): (usize, usize), s: usize, h: usize) -> usize {
        b * self.strides[0] + (start + s) * self.strides[1] + h * self.strides[2]
    }

    /// The `d` values of a head.
    #[inline(always)]
    pub(super) fn head(&self, start: (usize, usize), s: usize, h: usize, d: usize) -> Elements<'a> {
        let at = self.offset(start, s, h);
        self.data.part(at..at + self.data.head_size(d))
    }

    /// Checks that all heads of `dims` `[b, s, h]` are in memory. Then no index of one wraps around.
    fn check(&self, name: &str, dims: [usize; 3], d: usize) -> Result<()> {
        check_view(name, &dims, &self.strides, self.data.head_size(d), self.data.len())
    }
}

/// The sequences of a call and their lengths.
#[derive(Debug, Clone, Copy)]
pub enum Batch<'a> {
    /// `b` sequences of one length.
    Padded {
        /// Sequences.
        b: usize,
        /// Queries of each.
        s_q: usize,
        /// Keys of each.
        s_kv: usize,
    },
    /// Self-attention over a ragged batch: sequence `i` is the tokens `offsets[i] .. offsets[i + 1]`.
    Ragged {
        /// One more than there are sequences, rising from 0.
        offsets: &'a [usize],
    },
    /// The sequences `first .. last` of a ragged batch. Views and output hold only their tokens; masks are those of the
    /// whole batch.
    Part {
        /// Those of the whole batch.
        offsets: &'a [usize],
        /// The first sequence of the part.
        first: usize,
        /// The first sequence after it.
        last: usize,
    },
}

impl Batch<'_> {
    /// Checks that the sequences of a ragged batch follow each other from token 0 on, and that there are keys to
    /// append.
    fn check(&self, appended: usize) -> Result<()> {
        let Some(offsets) = self.offsets() else { return Ok(()) };
        if appended > 0 {
            return Err(Error::value("the number of appended keys", appended, "0 in a ragged batch"));
        }
        if offsets.first().is_some_and(|first| *first != 0) || !offsets.is_sorted() {
            return Err(Error::value("the list of offsets", format!("{offsets:?}"), "a rising list from 0"));
        }
        match *self {
            Self::Part { first, last, .. } if first > last || last >= offsets.len() => {
                let expected = format!("two of the {} offsets in order", offsets.len());
                Err(Error::value("the part of a ragged batch", format!("{first} to {last}"), expected))
            }
            _ => Ok(()),
        }
    }

    /// The offsets of all sequences of a ragged batch.
    fn offsets(&self) -> Option<&[usize]> {
        match self {
            Self::Padded { .. } => None,
            Self::Ragged { offsets } | Self::Part { offsets, .. } => Some(offsets),
        }
    }

    /// The sequences to compute, by their numbers in the batch.
    pub fn sequences(&self) -> Range<usize> {
        match *self {
            Self::Padded { b, .. } => 0..b,
            Self::Ragged { offsets } => 0..offsets.len().saturating_sub(1),
            Self::Part { first, last, .. } => first..last,
        }
    }

    /// The number of sequences that masks cover.
    fn masked_sequences(&self) -> usize {
        match self {
            Self::Padded { b, .. } => *b,
            Self::Ragged { offsets } | Self::Part { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }

    /// The number of queries of sequence `b`.
    pub fn s_q(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_q, .. } => *s_q,
            Self::Ragged { offsets } | Self::Part { offsets, .. } => offsets[b + 1] - offsets[b],
        }
    }

    /// The number of keys of sequence `b` that the mask covers.
    pub fn s_kv(&self, b: usize) -> usize {
        match self {
            Self::Padded { s_kv, .. } => *s_kv,
            Self::Ragged { .. } | Self::Part { .. } => self.s_q(b),
        }
    }

    /// Where sequence `b` starts in a [`HeadsView`]: the batch row, and the token in it.
    pub(super) fn start(&self, b: usize) -> (usize, usize) {
        match self {
            Self::Padded { .. } => (b, 0),
            Self::Ragged { .. } | Self::Part { .. } => (0, self.queries_before(b)),
        }
    }

    /// The number of queries of all sequences before `b`.
    pub(super) fn queries_before(&self, b: usize) -> usize {
        match *self {
            Self::Padded { s_q, .. } => b * s_q,
            Self::Ragged { offsets } => offsets[b],
            Self::Part { offsets, first, .. } => offsets[b] - offsets[first],
        }
    }

    /// The number of queries of all sequences.
    pub fn queries(&self) -> usize {
        match *self {
            Self::Padded { b, s_q, .. } => b * s_q,
            Self::Ragged { offsets } => offsets.last().copied().unwrap_or(0),
            Self::Part { offsets, first, last } => offsets[last] - offsets[first],
        }
    }
}
