//! The public mask value: constructors for each kind, `and`, `or`, and printing.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use candle_attention_kernels::Lengths;
use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::kinds::{
    Additive, Boolean, Chunks, Distances, Function, KeyLengths, MaskDims, Or, Polarity, ScoreFunction, Segments, Window,
};
use crate::mask::lower::{is_window, key_lengths};
use crate::mask::shape::check_integers;
use crate::mask::term::MaskTerm;
use crate::tensor::{check_allocation, element_count};

/// Which keys each query attends to, and what is added to their scores.
///
/// `true` (or 1) means *attend*; [`exclude`](Self::exclude) and its variants take the opposite convention. A mask is a
/// description, not a tensor: lengths stay lengths and causal stays causal, so that a backend can skip the keys that
/// are hidden. Masks are joined by [`and`](Self::and): a key is visible if all of them allow it; and by
/// [`or`](Self::or): a key is visible if one of them shows it.
///
/// A query that sees no key gets zeros (before the output projection) and a zero gradient, in every dtype and on every
/// backend.
///
/// Elements of hidden keys have no influence, NaN and infinities included, on any backend: not on outputs, and not on
/// gradients of queries, keys and values. A query that does see such a key or value gets NaN or infinity: in the
/// elements of that value, or, where a kernel of candle runs (FlashAttention, Metal), in all elements of the head. On
/// Apple GPUs this needs the environment variable `CANDLE_METAL_ENABLE_FAST_MATH=0`: candle's default there leaves
/// undefined what NaN compares to.
///
/// # Masks of other libraries
/// | Mask | Convention there | Here |
/// |---|---|---|
/// | `attention_mask` of a Hugging Face tokenizer `(b, s_kv)` | 1 = attend | [`keep_keys`](Self::keep_keys) |
/// | `attn_mask` of PyTorch's `scaled_dot_product_attention`, boolean | true = attend | [`keep`](Self::keep), [`keep_pattern`](Self::keep_pattern) for `(s_q, s_kv)` |
/// | `key_padding_mask` of `nn.MultiheadAttention` `(b, s_kv)`, boolean | true = ignore | [`exclude_keys`](Self::exclude_keys) |
/// | `attn_mask` of `nn.MultiheadAttention` `(s_q, s_kv)`, boolean | true = ignore | [`exclude_pattern`](Self::exclude_pattern), [`exclude`](Self::exclude) with four dimensions |
/// | any of these in floats | added to the scores | [`additive`](Self::additive), [`additive_keys`](Self::additive_keys), [`additive_pattern`](Self::additive_pattern) |
/// | `mask` of Flax, `attention_mask` of Keras | true = attend | [`keep`](Self::keep) |
/// | `valid_lens` of Dive into Deep Learning `(b)`, `(b, s_q)` | the first so many keys | [`lengths`](Self::lengths), [`query_lengths`](Self::query_lengths) |
/// | `is_causal` of PyTorch, with fewer queries than keys | query 0 at key 0 | [`causal`](Self::causal) aligns the *last* query with the last key, as a step of a decoder needs it |
///
/// In the documentation of the constructors `b` is the batch size, `h` the number of query heads, `s_q` the number of
/// queries and `s_kv` the number of keys. The shapes are checked by each call that the mask is used in: one that does
/// not fit is an error of that call.
///
/// ```
/// use candle_attention::AttentionMask;
/// let mask = AttentionMask::causal().and(AttentionMask::lengths(&[3, 2]));
/// assert_eq!(mask.to_string(), "causal and lengths(2 rows)");
/// ```
#[derive(Clone, Default)]
pub struct AttentionMask {
    pub(super) terms: Vec<Arc<dyn MaskTerm>>,
    /// `[b]`: the position of query 0 of each sequence among the keys. `None` aligns the last query with the last key.
    pub(super) starts: Option<Vec<i64>>,
}

impl AttentionMask {
    /// Full attention: every query sees every key.
    #[doc(alias = "none")]
    pub fn full() -> Self {
        Self::default()
    }

    /// A tensor of booleans in any integer dtype, nonzero = attend: `(b, h, s_q, s_kv)`, where each dimension may be 1
    /// and is then shared.
    ///
    /// The dimensions of a mask never depend on its sizes. For the keys of each sequence `(b, s_kv)` there is
    /// [`keep_keys`](Self::keep_keys), for one pattern `(s_q, s_kv)` [`keep_pattern`](Self::keep_pattern). A mask
    /// `(b, s_q, s_kv)` needs `unsqueeze(1)`, a mask `(h, s_q, s_kv)` needs `unsqueeze(0)`.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype or does not have 4 dimensions.
    pub fn keep(mask: &Tensor) -> Result<Self> {
        Self::from_booleans(mask, Polarity::Keep, MaskDims::Scores)
    }

    /// The keys of each sequence that its queries attend to, `(b, s_kv)` in any integer dtype, nonzero = attend: the
    /// `attention_mask` of Hugging Face tokenizers. One row `(1, s_kv)` is shared by all sequences.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype or does not have 2 dimensions.
    #[doc(alias = "attention_mask")]
    pub fn keep_keys(mask: &Tensor) -> Result<Self> {
        Self::from_booleans(mask, Polarity::Keep, MaskDims::Keys)
    }

    /// One pattern for all sequences and heads, `(s_q, s_kv)` in any integer dtype, nonzero = attend.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype or does not have 2 dimensions.
    pub fn keep_pattern(mask: &Tensor) -> Result<Self> {
        Self::from_booleans(mask, Polarity::Keep, MaskDims::Pattern)
    }

    /// [`keep`](Self::keep) in the opposite convention, nonzero = hidden, `(b, h, s_q, s_kv)`. PyTorch's 3-D
    /// `attn_mask` `(b · h, s_q, s_kv)` needs `reshape((b, h, s_q, s_kv))`.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype or does not have 4 dimensions.
    pub fn exclude(mask: &Tensor) -> Result<Self> {
        Self::from_booleans(mask, Polarity::Exclude, MaskDims::Scores)
    }

    /// [`keep_keys`](Self::keep_keys) in the opposite convention, nonzero = hidden, `(b, s_kv)`: the boolean
    /// `key_padding_mask` of PyTorch's `nn.MultiheadAttention`.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype or does not have 2 dimensions.
    #[doc(alias = "key_padding_mask")]
    pub fn exclude_keys(mask: &Tensor) -> Result<Self> {
        Self::from_booleans(mask, Polarity::Exclude, MaskDims::Keys)
    }

    /// [`keep_pattern`](Self::keep_pattern) in the opposite convention, nonzero = hidden, `(s_q, s_kv)`: the boolean
    /// 2-D `attn_mask` of PyTorch's `nn.MultiheadAttention`.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype or does not have 2 dimensions.
    pub fn exclude_pattern(mask: &Tensor) -> Result<Self> {
        Self::from_booleans(mask, Polarity::Exclude, MaskDims::Pattern)
    }

    /// A floating tensor (f16, bf16, f32 or f64) that is added to the scaled scores: `(b, h, s_q, s_kv)`, where each
    /// dimension may be 1 and is then shared, as for [`keep`](Self::keep). Gradients flow into it.
    ///
    /// An element that is `-inf` or the lowest finite value of the mask's dtype (Hugging Face's `finfo.min`) hides the
    /// key, so that a query with no other elements gets zeros like any fully masked query. Any other element is added,
    /// whatever dtype the layer computes in: a row of f32's lowest value in an f64 mask gives the mean of the values.
    ///
    /// # Errors
    /// If the tensor is not of a floating dtype or does not have 4 dimensions.
    pub fn additive(mask: &Tensor) -> Result<Self> {
        Ok(Self::from_term(Additive::new(mask, MaskDims::Scores)?))
    }

    /// [`additive`](Self::additive) with one number per key of each sequence, `(b, s_kv)`: the floating
    /// `key_padding_mask` of PyTorch's `nn.MultiheadAttention`, not a mask of 0 and 1, which is
    /// [`keep_keys`](Self::keep_keys). One row `(1, s_kv)` is shared by all sequences.
    ///
    /// # Errors
    /// If the tensor is not of a floating dtype or does not have 2 dimensions.
    pub fn additive_keys(mask: &Tensor) -> Result<Self> {
        Ok(Self::from_term(Additive::new(mask, MaskDims::Keys)?))
    }

    /// [`additive`](Self::additive) with one pattern for all sequences and heads, `(s_q, s_kv)`: the floating 2-D
    /// `attn_mask` of PyTorch's `nn.MultiheadAttention`.
    ///
    /// # Errors
    /// If the tensor is not of a floating dtype or does not have 2 dimensions.
    pub fn additive_pattern(mask: &Tensor) -> Result<Self> {
        Ok(Self::from_term(Additive::new(mask, MaskDims::Pattern)?))
    }

    /// Only the first `lengths[b]` keys of sequence `b` are visible (`valid_lens` in d2l, one-dimensional).
    ///
    /// A call needs `b` lengths of at most `s_kv`.
    pub fn lengths(lengths: &[usize]) -> Self {
        Self::from_term(KeyLengths(Lengths::PerSequence(lengths.to_vec())))
    }

    /// Query `i` of sequence `b` sees only the first `lengths[b][i]` keys (`valid_lens` in d2l, two-dimensional).
    ///
    /// A call needs `b` rows of `s_q` lengths of at most `s_kv`.
    pub fn query_lengths<L: AsRef<[usize]>>(lengths: &[L]) -> Self {
        let lengths = lengths.iter().map(|row| row.as_ref().to_vec()).collect();
        Self::from_term(KeyLengths(Lengths::PerQuery(lengths)))
    }

    /// Self-attention over sequences padded at the end: only the first `lengths[b]` tokens of sequence `b` are real.
    /// Padding is hidden as keys, as with [`lengths`](Self::lengths), and as queries it sees nothing. So nothing has to
    /// be computed for it: on the CPU a layer removes the padding, runs the ragged batch, and puts the padding back.
    ///
    /// A call needs `b` lengths of at most `s_kv`, and as many queries as keys.
    pub fn padding(lengths: &[usize]) -> Self {
        Self::from_term(KeyLengths(Lengths::Padding(lengths.to_vec())))
    }

    /// [`lengths`](Self::lengths) from a tensor `(b)`, or [`query_lengths`](Self::query_lengths) from a tensor
    /// `(b, s_q)`, of any integer dtype.
    ///
    /// # Errors
    /// If the tensor is not of an integer dtype, has another number of dimensions, or holds a negative element.
    pub fn lengths_tensor(lengths: &Tensor) -> Result<Self> {
        check_integers("lengths", lengths)?;
        check_allocation::<i64>("lengths", element_count("lengths", lengths.dims())?)?;
        let elements = lengths.to_device(&Device::Cpu)?.to_dtype(DType::I64)?.flatten_all()?.to_vec1::<i64>()?;
        let to_usize = |(i, &n): (usize, &i64)| {
            usize::try_from(n).map_err(|_| Error::value(format!("lengths element {i}"), n, "a length from 0 to s_kv"))
        };
        let elements = elements.iter().enumerate().map(to_usize).collect::<Result<Vec<_>>>()?;
        match *lengths.dims() {
            [_] => Ok(Self::lengths(&elements)),
            [b, s_q] => Ok(Self::query_lengths(&(0..b).map(|i| &elements[i * s_q..][..s_q]).collect::<Vec<_>>())),
            _ => Err(Error::shape("lengths", lengths.dims(), "(b) or (b, s_q)")),
        }
    }

    /// Each query sees the keys up to its own position. The last query is aligned with the last key, so query `i` sees
    /// the keys `0 ..= i + s_kv - s_q`, with and without a key-value cache. If there are more queries than keys, the
    /// first ones see no key.
    #[doc(alias = "is_causal")]
    pub fn causal() -> Self {
        Self::from_term(Window::CAUSAL)
    }

    /// Each query sees at most `left` keys before its own position and `right` keys after it; `None` is no limit.
    /// Positions are aligned as in [`causal`](Self::causal). A Hugging Face `sliding_window` of `w` in a causal layer
    /// is `window(Some(w - 1), Some(0))`.
    pub fn window(left: Option<usize>, right: Option<usize>) -> Self {
        Self::from_term(Window { left, right })
    }

    /// Each query sees the keys of its own chunk: chunks have `size` tokens, from the first token of the sequence on
    /// (Llama 4's `attention_chunk_size`). Positions are aligned as in [`causal`](Self::causal), and a cache has to
    /// keep all tokens.
    pub fn chunks(size: usize) -> Self {
        Self::from_term(Chunks(size))
    }

    /// A prefix LM ([T5](https://arxiv.org/abs/1910.10683), PaliGemma): every query of sequence `b` sees its first
    /// `lengths[b]` keys, and otherwise the keys up to its own position. It is `causal` or `lengths`, and no tensor.
    ///
    /// A call needs `b` lengths of at most `s_kv`: with a cache, the first chunk holds the prefix. A rotating cache
    /// drops keys from the front, so that there lengths count the keys that are left.
    pub fn prefix_lm(lengths: &[usize]) -> Self {
        let prefix = Self::lengths(lengths);
        Self::from_term(Or::from_hiding([Self::causal(), prefix]))
    }

    /// Adds `-slopes[h] · distance` to the scores: [ALiBi](https://arxiv.org/abs/2108.12409). The distance is the
    /// query's position minus the key's, aligned as in [`causal`](Self::causal); if `symmetric`, its absolute value.
    /// A layer whose configuration has ALiBi positions adds this by itself.
    ///
    /// A call needs one slope per query head, of magnitude up to 1e15.
    pub fn distances(slopes: Vec<f64>, symmetric: bool) -> Self {
        Self::from_term(Distances { slopes, symmetric })
    }

    /// Each query sees only the keys of its own segment: `queries` `(b, s_q)` and `keys` `(b, s_kv)` hold segment ids
    /// in any integer dtype. In self-attention pass the same tensor twice.
    ///
    /// # Errors
    /// If a tensor is not of an integer dtype or does not have 2 dimensions.
    pub fn segments(queries: &Tensor, keys: &Tensor) -> Result<Self> {
        Ok(Self::from_term(Segments::new(queries, keys)?))
    }

    /// The keys for which a function is true: query `q` of head `h` in sequence `b` sees key `k` if `sees(b, h, q, k)`
    /// ([Dong 2024](https://arxiv.org/abs/2412.05496)). `q` counts from 0; in a call with a cache it goes on after the
    /// tokens in it, and a cache that drops tokens is an error.
    ///
    /// The CPU kernel asks the function tile by tile and never makes a matrix of the mask. Which blocks of keys are
    /// visible whole, in part or not at all is found out in the first call; a mask that is kept, and its clones, skip
    /// hidden blocks from then on without asking again, in calls of the same sizes: so the function has to answer alike
    /// each time. Backends other than the CPU kernel read the mask as a tensor; so does [`or`](Self::or) with a tensor.
    ///
    /// ```
    /// use candle_attention::AttentionMask;
    /// let documents = [0, 0, 0, 1, 1, 2];
    /// let same = AttentionMask::from_pattern_fn(move |q, k| documents[q] == documents[k]);
    /// let mask = AttentionMask::causal().and(same);
    /// assert_eq!(mask.to_string(), "causal and a function of (q, k)");
    /// ```
    ///
    /// A function that panics is an error of the call.
    #[doc(alias = "mask_mod")]
    pub fn from_fn(sees: impl Fn(usize, usize, usize, usize) -> bool + Send + Sync + 'static) -> Self {
        Self::from_term(Function::new(sees, false))
    }

    /// [`from_fn`](Self::from_fn) for a function `sees(q, k)` that all sequences and heads share: it is asked once for
    /// all of them.
    pub fn from_pattern_fn(sees: impl Fn(usize, usize) -> bool + Send + Sync + 'static) -> Self {
        Self::from_term(Function::new(move |_, _, q, k| sees(q, k), true))
    }

    /// A function that the scores go through: the score of query `q` of head `h` in sequence `b` with key `k` becomes
    /// `function(score, b, h, q, k)` ([Dong 2024](https://arxiv.org/abs/2412.05496)). `q` counts as in
    /// [`from_fn`](Self::from_fn).
    ///
    /// The score that it gets is scaled and capped; biases of other masks are added to what it returns, and several
    /// functions are called in the order of [`and`](Self::and). Minus infinity hides the key. Scores are f32, whatever
    /// the dtype of the call is. A key that another mask hides stays hidden; the function may be asked for it.
    ///
    /// On the CPU no matrix of scores is stored. On GPUs the scores are brought to the CPU and back. A call that tracks
    /// a gradient is an error: it needs [`from_score_fn_with_derivative`](Self::from_score_fn_with_derivative). A
    /// function that panics is an error of the call.
    ///
    /// ```
    /// use candle_attention::AttentionMask;
    /// // Keys lose weight by their distance, in each head at another rate.
    /// let slope = |h: usize| 0.1 * (h + 1) as f32;
    /// let decay = AttentionMask::from_score_fn(move |score, _, h, q, k| score - slope(h) * q.abs_diff(k) as f32);
    /// let mask = AttentionMask::causal().and(decay);
    /// assert_eq!(mask.to_string(), "causal and a function of (score, b, h, q, k)");
    /// ```
    #[doc(alias = "score_mod")]
    pub fn from_score_fn(function: impl Fn(f32, usize, usize, usize, usize) -> f32 + Send + Sync + 'static) -> Self {
        Self::from_term(ScoreFunction::new(function))
    }

    /// [`from_score_fn`](Self::from_score_fn) with the derivative of the function by the score, of the same arguments:
    /// gradients of queries and keys go through it.
    pub fn from_score_fn_with_derivative(
        function: impl Fn(f32, usize, usize, usize, usize) -> f32 + Send + Sync + 'static,
        derivative: impl Fn(f32, usize, usize, usize, usize) -> f32 + Send + Sync + 'static,
    ) -> Self {
        Self::from_term(ScoreFunction::new(function).with_derivative(derivative))
    }

    /// The mask under which a key is visible if both masks allow it. Additive masks add up.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.terms.extend(other.terms);
        self.starts = self.starts.or(other.starts);
        self
    }

    /// The mask under which a key is visible if one of both masks shows it.
    ///
    /// ```
    /// use candle_attention::AttentionMask;
    /// use candle_core::{Device, Tensor};
    /// // Gemma 3: text is causal, the tokens 1 to 4 of one image see each other.
    /// // Text has other ids as queries than as keys, so that it is in no segment.
    /// let queries = Tensor::new(&[[-1i64, 7, 7, 7, 7, -1]], &Device::Cpu)?;
    /// let keys = Tensor::new(&[[-2i64, 7, 7, 7, 7, -2]], &Device::Cpu)?;
    /// let mask = AttentionMask::causal().or(AttentionMask::segments(&queries, &keys)?)?;
    /// assert_eq!(mask.to_string(), "(causal or segments([1, 6], [1, 6]))");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If one of both adds to scores ([`additive`](Self::additive), [`distances`](Self::distances)): a bias has no
    /// meaning where the other mask shows the key. `and` joins it to the whole mask.
    pub fn or(self, other: Self) -> Result<Self> {
        let starts = self.starts.clone().or_else(|| other.starts.clone());
        let full = self.is_full() || other.is_full();
        let or = Or::new([self, other])?;
        Ok(if full { Self::full() } else { Self { terms: vec![Arc::new(or)], starts } })
    }

    /// The number of tokens of each sequence, if the mask states it ([`lengths`](Self::lengths),
    /// [`padding`](Self::padding)) and nothing else: what layers need to know that have no attention.
    pub fn sequence_lengths(&self) -> Option<&[usize]> {
        match self.terms.as_slice() {
            [only] if self.starts.is_none() => key_lengths(only),
            _ => None,
        }
    }

    /// The keys before and after its own position that a query sees at most, as [`window`](Self::window) takes them:
    /// `(None, Some(0))` of a causal mask, `(None, None)` of one without causal masks and windows.
    pub fn window_sizes(&self) -> (Option<usize>, Option<usize>) {
        let Window { left, right } = self.narrowest_window();
        (left, right)
    }

    /// Whether this is [`full`](Self::full) attention.
    pub fn is_full(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether a part of the mask is causal or a window, which go by the order of queries and keys.
    pub(crate) fn follows_order(&self) -> bool {
        self.terms.iter().any(is_window)
    }

    /// The mask with query 0 of sequence `b` at the key `starts[b]`, whatever the numbers of queries and keys.
    pub(crate) fn with_query_starts(mut self, starts: Vec<i64>) -> Self {
        self.starts = Some(starts);
        self
    }

    /// [`with_query_starts`](Self::with_query_starts), unless the mask says already where they stand.
    pub(crate) fn with_default_starts(self, starts: Vec<i64>) -> Self {
        if self.starts.is_some() { self } else { self.with_query_starts(starts) }
    }

    fn from_booleans(mask: &Tensor, polarity: Polarity, dims: MaskDims) -> Result<Self> {
        Ok(Self::from_term(Boolean::new(mask, polarity, dims)?))
    }

    /// A mask of one term.
    pub(crate) fn from_term(term: impl MaskTerm + 'static) -> Self {
        Self { terms: vec![Arc::new(term)], starts: None }
    }
}

/// Two masks are equal if they consist of causal masks and windows that leave the same keys visible, or of the same
/// terms: those of a mask and of its clones. Tensors are not compared element by element.
impl PartialEq for AttentionMask {
    fn eq(&self, other: &Self) -> bool {
        if self.is_windowed() && other.is_windowed() {
            return self.structure() == other.structure();
        }
        let same = |(a, b): (&Arc<dyn MaskTerm>, &Arc<dyn MaskTerm>)| Arc::ptr_eq(a, b);
        self.starts == other.starts
            && self.terms.len() == other.terms.len()
            && self.terms.iter().zip(&other.terms).all(same)
    }
}

/// The mask of a call: `&mask` to borrow one, `mask` to give one, or `None` for [none](AttentionMask::full).
#[derive(Debug, Clone)]
pub struct CallMask<'a>(pub(crate) Cow<'a, AttentionMask>);

impl<'a> From<&'a AttentionMask> for CallMask<'a> {
    fn from(mask: &'a AttentionMask) -> Self {
        Self(Cow::Borrowed(mask))
    }
}

impl From<AttentionMask> for CallMask<'_> {
    fn from(mask: AttentionMask) -> Self {
        Self(Cow::Owned(mask))
    }
}

impl<'a> From<Cow<'a, AttentionMask>> for CallMask<'a> {
    fn from(mask: Cow<'a, AttentionMask>) -> Self {
        Self(mask)
    }
}

impl<'a> From<Option<&'a AttentionMask>> for CallMask<'a> {
    fn from(mask: Option<&'a AttentionMask>) -> Self {
        mask.map_or_else(|| AttentionMask::full().into(), Self::from)
    }
}

impl fmt::Debug for AttentionMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttentionMask({self})")
    }
}

impl fmt::Display for AttentionMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `none`: what the examples `inspect` and `attend` print for a layer without a mask.
        if self.is_full() {
            return f.write_str("none");
        }
        for (i, term) in self.terms.iter().enumerate() {
            let separator = if i == 0 { "" } else { " and " };
            write!(f, "{separator}{}", term.describe())?;
        }
        Ok(())
    }
}
