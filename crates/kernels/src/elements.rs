//! The dtypes of callers, and slices of any of them: what kernels read and write.
//!
//! A generic function is compiled in the crate that calls it, for each type that it is called with; a kernel even for
//! each instruction set. So a caller's dtype ends here: a kernel takes [`Elements`]. Values become f32 where it reads
//! them, row by row, and f32 becomes the dtype of the output where it writes a row.

use std::mem::MaybeUninit;
use std::ops::Range;

use half::{bf16, f16};

use super::convert::{Convert, Pair, PairFormat};
use super::int8::heads;
use super::isa::pair_dot::PairDot;
use super::isa::simd::Simd;
use super::team::SharedOut;

/// A dtype that kernels read and write: f32, f16 or bf16. They compute in f32.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The values in f32, which is exact: `from` itself, or converted into `buffer`, which is at least as long.
    fn as_f32<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];

    /// Rounds to nearest, ties to even, into a slice of the same length.
    fn round(from: &[f32], to: &mut [MaybeUninit<Self>]);

    /// A slice of any dtype. No other crate can name the type, nor implement this trait.
    #[doc(hidden)]
    fn elements(values: &[Self]) -> Elements<'_>;

    /// An output of any dtype.
    #[doc(hidden)]
    fn output(to: SharedOut<Self>) -> ElementsOut;
}

macro_rules! elements {
    ($($element:ident: $elements:ident,)+) => {$(
        impl Element for $element {
            fn as_f32<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
                <Self as Convert>::as_f32(from, buffer)
            }
            fn round(from: &[f32], to: &mut [MaybeUninit<Self>]) {
                assert_eq!(from.len(), to.len());
                Self::downcast(from, to);
            }
            fn elements(values: &[Self]) -> Elements<'_> {
                Elements::$elements(values)
            }
            fn output(to: SharedOut<Self>) -> ElementsOut {
                ElementsOut::$elements(to)
            }
        }
    )+};
}

elements! {
    f32: F32,
    f16: F16,
    bf16: Bf16,
}

/// Values of one dtype that are read.
#[derive(Debug, Clone, Copy)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
    /// Heads as in [`Int8Heads`](crate::Int8Heads). A part of them that is read is one head.
    Int8(&'a [i8]),
}

/// Runs an expression with the slice of any [`Elements`], with the memory of any [`ElementsOut`], or with what else
/// there is for each dtype.
macro_rules! with_elements {
    ($kind:ident($elements:expr), $values:ident => $body:expr $(, Int8($head:ident) => $of_head:expr)?) => {
        match $elements {
            $kind::F32($values) => $body,
            $kind::F16($values) => $body,
            $kind::Bf16($values) => $body,
            $($kind::Int8($head) => $of_head,)?
        }
    };
}

pub(crate) use with_elements;

impl<'a> Elements<'a> {
    pub(crate) fn is_f32(self) -> bool {
        matches!(self, Self::F32(_))
    }

    pub(crate) fn is_int8(self) -> bool {
        matches!(self, Self::Int8(_))
    }

    pub(crate) fn len(self) -> usize {
        with_elements!(Self(self), values => values.len(), Int8(bytes) => bytes.len())
    }

    /// Bytes of one value, or of an integer.
    #[inline(always)]
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32(_) => size_of::<f32>(),
            Self::F16(_) | Self::Bf16(_) => size_of::<f16>(),
            Self::Int8(_) => size_of::<i8>(),
        }
    }

    /// The size of a head of `d` values.
    #[inline(always)]
    pub(crate) fn head_size(self, d: usize) -> usize {
        if self.is_int8() { d.saturating_add(heads::SCALE_BYTES) } else { d }
    }

    /// The first value.
    #[inline(always)]
    pub(crate) fn start(self) -> *const u8 {
        with_elements!(Self(self), values => values.as_ptr().cast(), Int8(bytes) => bytes.as_ptr().cast())
    }

    #[inline(always)]
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::F32(values) => Self::F32(&values[range]),
            Self::F16(values) => Self::F16(&values[range]),
            Self::Bf16(values) => Self::Bf16(&values[range]),
            Self::Int8(bytes) => Self::Int8(&bytes[range]),
        }
    }

    /// The values in f32: where they are, or converted into `buffer`, which is at least as long.
    #[inline(always)]
    pub(crate) fn as_f32<'b>(self, buffer: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        with_elements!(Self(self), values => Convert::as_f32(values, buffer), Int8(head) => heads::widen(head, buffer))
    }

    /// Converts to f32, which is exact. Both have the same length.
    #[inline(always)]
    pub(crate) fn upcast(self, to: &mut [f32]) {
        if let Self::F32(values) = self {
            return to.iter_mut().zip(values).for_each(|(to, x)| *to = *x);
        }
        with_elements!(Self(self), values => Convert::upcast(values, to), Int8(head) => _ = heads::widen(head, to));
    }

    /// The bits of the values, if they are of a format of 16 bits.
    #[inline(always)]
    pub(crate) fn as_halves(self, format: PairFormat) -> Option<&'a [u16]> {
        with_elements!(Self(self), values => Convert::as_halves(format, values), Int8(_head) => None)
    }

    /// The values as pairs of a format, where they are such pairs in memory.
    #[inline(always)]
    pub(crate) fn as_pairs(self, format: PairFormat) -> Option<&'a [Pair]> {
        self.as_halves(format).and_then(|halves| bytemuck::try_cast_slice(halves).ok())
    }

    /// Rounds the values to pairs and fills the rest of `to` with zeros. `buffer` is at least as long as the values.
    #[inline(always)]
    pub(crate) fn to_pairs<D: PairDot>(self, dot: D, buffer: &mut [f32], to: &mut [Pair]) {
        with_elements!(
            Self(self),
            values => dot.to_pairs(values, buffer, to),
            Int8(head) => dot.round_to_pairs(heads::widen(head, buffer), to)
        );
    }
}

/// Memory of an output, in any dtype.
#[derive(Clone, Copy)]
pub enum ElementsOut {
    F32(SharedOut<f32>),
    F16(SharedOut<f16>),
    Bf16(SharedOut<bf16>),
}

impl ElementsOut {
    pub(crate) fn is_bf16(self) -> bool {
        matches!(self, Self::Bf16(_))
    }

    /// Stores a row at `at`, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// The elements are allocated, and nobody else uses them now.
    #[inline(always)]
    pub(crate) unsafe fn store<S: Simd>(self, s: S, at: usize, row: &[f32]) {
        // SAFETY: the caller promises it.
        unsafe {
            with_elements!(Self(self), to => store(s, row, to.part(at, row.len())));
        }
    }

    /// [`store`](Self::store) outside of a kernel.
    ///
    /// # Safety
    /// That of `store`.
    pub(crate) unsafe fn round(self, at: usize, row: &[f32]) {
        // SAFETY: the caller promises it.
        unsafe { with_elements!(Self(self), to => Convert::downcast(row, to.part(at, row.len()))) };
    }
}

#[inline(always)]
fn store<S: Simd, T: Convert>(s: S, row: &[f32], to: &mut [MaybeUninit<T>]) {
    let whole = if T::STORES_VECTORS { row.len().min(to.len()) / S::LANES * S::LANES } else { 0 };
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: both have `LANES` elements from `at` on.
        unsafe { s.store_as(to.as_mut_ptr().add(at).cast::<T>(), s.load(row.as_ptr().add(at))) };
    }
    T::downcast(&row[whole..], &mut to[whole..]);
}
