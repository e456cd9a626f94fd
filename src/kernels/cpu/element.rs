//! The dtypes that kernels read and write; they compute in f32.

use std::mem::MaybeUninit;

use half::{bf16, f16};

#[cfg(target_arch = "aarch64")]
use super::neon;
use super::pairs::{Pair, PairDot};

/// A stored number.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Whether this is f32.
    const IS_F32: bool = false;

    /// Both slices are of one length.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Both slices are of one length. Rounds to nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [MaybeUninit<Self>]);

    /// The numbers themselves, or widened into `buffer`, which is at least as long.
    #[inline(always)]
    fn floats<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
        let buffer = &mut buffer[..from.len()];
        Self::widen(from, buffer);
        buffer
    }

    /// The numbers rounded to bf16, two a pair, by way of `buffer`, which is at least as long; zeros behind.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    #[inline(always)]
    fn to_pairs<D: PairDot>(d: D, from: &[Self], buffer: &mut [f32], to: &mut [Pair]) {
        d.round(Self::floats(from, buffer), to);
    }
}

impl Element for f32 {
    const IS_F32: bool = true;

    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        // Short rows: a loop is inlined, a copy would be a call.
        to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        to.iter_mut().zip(from).for_each(|(to, from)| _ = to.write(*from));
    }
    #[inline(always)]
    fn floats<'a>(from: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        from
    }
}

/// By the processor's instructions where `half` uses them; on Arm it asks for more than they need.
impl Element for f16 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        #[cfg(target_arch = "aarch64")]
        neon::widen_f16(from, to);
        #[cfg(not(target_arch = "aarch64"))]
        half::slice::HalfFloatSliceExt::convert_to_f32_slice(from, to);
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        #[cfg(target_arch = "aarch64")]
        neon::narrow_to_f16(from, to);
        #[cfg(not(target_arch = "aarch64"))]
        narrow_by_half(from, to);
    }
}

#[cfg(not(target_arch = "aarch64"))]
fn narrow_by_half(from: &[f32], to: &mut [MaybeUninit<f16>]) {
    const AT_ONCE: usize = 64;
    let mut narrow = [f16::ZERO; AT_ONCE];
    for (from, to) in from.chunks(AT_ONCE).zip(to.chunks_mut(AT_ONCE)) {
        half::slice::HalfFloatSliceExt::convert_from_f32_slice(&mut narrow[..from.len()], from);
        to.iter_mut().zip(narrow).for_each(|(to, narrow)| _ = to.write(narrow));
    }
}

/// Numbers that are converted together: a vector's worth, so that short rows, too, go by vectors.
const CHUNK: usize = 16;

/// By integers, which the compiler turns into vectors of whatever instruction set the loop is inlined into.
impl Element for bf16 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<CHUNK>(), to.as_chunks_mut::<CHUNK>());
        for (from, to) in from.iter().zip(to) {
            for i in 0..CHUNK {
                to[i] = widen(from[i]);
            }
        }
        to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = widen(*from));
    }
    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [MaybeUninit<Self>]) {
        let ((from, from_rest), (to, to_rest)) = (from.as_chunks::<CHUNK>(), to.as_chunks_mut::<CHUNK>());
        for (from, to) in from.iter().zip(to) {
            for i in 0..CHUNK {
                to[i].write(round(from[i]));
            }
        }
        to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| _ = to.write(round(*from)));
    }
    #[inline(always)]
    fn to_pairs<D: PairDot>(_: D, from: &[Self], _: &mut [f32], to: &mut [Pair]) {
        let (pairs, rest) = from.as_chunks::<2>();
        let (numbers, zeros) = to.split_at_mut(from.len().div_ceil(2));
        for (to, pair) in numbers.iter_mut().zip(pairs) {
            // SAFETY: two bf16 numbers are the four bytes of a pair, the first in the low half (x86 is little-endian).
            *to = u32::from_le(unsafe { pair.as_ptr().cast::<Pair>().read_unaligned() });
        }
        if let [last] = rest {
            numbers[pairs.len()] = u32::from(last.to_bits());
        }
        zeros.fill(0);
    }
}

#[inline(always)]
fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

#[inline(always)]
fn round(x: f32) -> bf16 {
    const QUIET: u32 = 0x0040_0000;
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    bf16::from_bits((if x.is_nan() { bits | QUIET } else { rounded } >> 16) as u16)
}

#[cfg(test)]
#[test]
fn bf16_is_rounded_as_by_half() {
    for high in 0..=u16::MAX {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(high) << 16 | low);
            let (ours, theirs) = (round(x), bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x}: {ours}, {theirs}");
        }
        let narrow = bf16::from_bits(high);
        let mut wide = [0.0];
        bf16::widen(&[narrow], &mut wide);
        assert!(wide[0] == narrow.to_f32() || narrow.is_nan() && wide[0].is_nan(), "{narrow}");
    }
}

/// Every f16, and around each the f32 that lie next to it and next to the middle between it and the next: by the
/// conversion of vectors and by that of what is left over.
#[cfg(test)]
#[test]
fn f16_is_converted_as_by_half() {
    let same = |ours: f16, theirs: f16| ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
    for bits in 0..=u16::MAX {
        let narrow = f16::from_bits(bits);
        let wide = narrow.to_f32();
        let mut ours = [0.0; 21];
        f16::widen(&[narrow; 21], &mut ours);
        assert!(
            ours.iter().all(|x| x.to_bits() == wide.to_bits() || x.is_nan() && wide.is_nan()),
            "{bits:x}: {ours:?}"
        );
        let middle = wide.to_bits() & 0xffff_e000 | 0x1000;
        for center in [wide.to_bits(), middle, u32::from(bits) << 16] {
            let xs: [f32; 21] = std::array::from_fn(|i| f32::from_bits(center.wrapping_add(i as u32).wrapping_sub(10)));
            let mut ours = [MaybeUninit::new(f16::ZERO); 21];
            f16::narrow(&xs, &mut ours);
            for (x, ours) in xs.iter().zip(ours) {
                // SAFETY: it was written above.
                let (ours, theirs) = (unsafe { ours.assume_init() }, f16::from_f32(*x));
                assert!(same(ours, theirs), "{x:e} becomes {ours:e}, by half {theirs:e}");
            }
        }
    }
    // Between subnormal numbers, where the middles lie elsewhere, and the overflow.
    let ulp = 2f32.powi(-24);
    for i in 0..4 * 1024 {
        let middle = (i as f32 + 0.5) * ulp;
        for x in [middle, middle.next_up(), middle.next_down(), 65520.0, 65519.996, f32::MIN_POSITIVE, f32::MAX] {
            let mut ours = [MaybeUninit::new(f16::ZERO)];
            f16::narrow(&[-x], &mut ours);
            // SAFETY: it was written above.
            assert!(same(unsafe { ours[0].assume_init() }, f16::from_f32(-x)), "{x:e}");
        }
    }
}
