//! Weights in few bits: which integers and scales stand for a row of f32 weights.
//!
//! Packed weights and tables of rows take them from here, so both hold the same numbers. Weights that were read from a
//! quantized checkpoint come as the f32 values that it stands for, and must not lose anything again. So a row of
//! [`Int8`](WeightFormat::Int8) and a block of [`Q8_0`](WeightFormat::Q8_0) or [`Q4_0`](WeightFormat::Q4_0) gets a
//! scale that represents its values exactly, if there is one. Only others are rounded, blocks as llama.cpp rounds them.

use half::f16;

use crate::convert::{Convert, PairFormat};
use crate::error::{Error, Result};
use crate::memory::AlignedVec;

/// The numbers that packed weights are held in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, reason = "the names of GGUF")]
pub enum WeightFormat {
    /// f32, which holds f16 and bf16 weights exactly, too.
    F32,
    /// bf16. Where there are instructions for such products, inputs are rounded to bf16. Elsewhere weights are widened
    /// in registers, and products are those in f32.
    Bf16,
    /// f16. Where there are instructions for such products (Arm's FMLAL), inputs are rounded to f16: an input above
    /// 65,504 becomes infinite, and so do the outputs or they are NaN. Elsewhere weights are widened in registers, and
    /// products are those in f32.
    F16,
    /// 8 bits from -127 to 127, with one f32 scale per output feature; -128 is held too where a row has it exactly,
    /// as others quantize. Each row of inputs is rounded to integers from -127 to 127 with a scale of its own.
    ///
    /// Scales have at most 16 significant bits, so that a weight times its scale is exact in f32: weights that are
    /// unpacked and packed again are the same.
    Int8,
    /// GGUF's format of 8.5 bits: 8 bits from -128 to 127, with one f16 scale per block of 32 inputs. Inputs are
    /// rounded to 8 bits in the same blocks.
    Q8_0,
    /// GGUF's format of 4.5 bits: 4 bits from -8 to 7, with one f16 scale per block of 32 inputs. Inputs are rounded to
    /// 8 bits in the same blocks.
    Q4_0,
}

/// Inputs of a block of [`WeightFormat::Q8_0`] and [`WeightFormat::Q4_0`].
pub(crate) const BLOCK: usize = 32;

/// The largest magnitude of 8-bit integers that are rounded, and of those that are held exactly but for -128.
pub(crate) const MAX_INT8: f32 = 127.0;

/// Adding 1.5 · 2^23 rounds to the nearest integer, ties to even, which is then in the low bits: for magnitudes below
/// 2^22.
pub(crate) const MAGIC: f32 = 12_582_912.0;

impl WeightFormat {
    /// Whether weights are integers with scales.
    pub fn is_quantized(self) -> bool {
        matches!(self, Self::Int8 | Self::Q8_0 | Self::Q4_0)
    }

    /// The numbers of 16 bits that weights are held in.
    pub(crate) fn pairs(self) -> Option<PairFormat> {
        match self {
            Self::Bf16 => Some(PairFormat::Bf16),
            Self::F16 => Some(PairFormat::F16),
            _ => None,
        }
    }

    /// Inputs that share a scale, of `width` inputs.
    pub(crate) fn group(self, width: usize) -> usize {
        if self == Self::Int8 { width } else { BLOCK }
    }

    /// Scales of a row of `width` inputs. Not for formats without scales.
    pub(crate) fn groups(self, width: usize) -> usize {
        if self == Self::Int8 { 1 } else { width / BLOCK }
    }

    /// Zeros for scales: f32 for [`Int8`](Self::Int8), f16 for blocks.
    pub(crate) fn zero_scales(self, what: &str, dims: &[usize]) -> Result<AlignedVec<u8>> {
        if self == Self::Int8 {
            return Ok(AlignedVec::<f32>::zeros_with_dims(what, dims)?.into_bytes());
        }
        Ok(AlignedVec::<f16>::zeros_with_dims(what, dims)?.into_bytes())
    }

    /// The scales in f32: where they are, or converted into `buffer`.
    pub(crate) fn scales_in_f32<'a>(self, scales: &'a [u8], buffer: &'a mut [f32]) -> &'a [f32] {
        if self == Self::Int8 {
            return bytemuck::cast_slice(scales);
        }
        f16::as_f32(bytemuck::cast_slice(scales), buffer)
    }

    /// The scale at a place.
    pub(crate) fn scale(self, scales: &[u8], at: usize) -> f32 {
        if self == Self::Int8 {
            bytemuck::cast_slice::<u8, f32>(scales)[at]
        } else {
            bytemuck::cast_slice::<u8, f16>(scales)[at].to_f32()
        }
    }

    /// Writes the scale at a place.
    pub(crate) fn set_scale(self, scales: &mut [u8], at: usize, scale: f32) {
        if self == Self::Int8 {
            bytemuck::cast_slice_mut::<u8, f32>(scales)[at] = scale;
        } else {
            bytemuck::cast_slice_mut::<u8, f16>(scales)[at] = f16::from_f32(scale);
        }
    }

    /// Checks that rows can have `width` inputs.
    pub(crate) fn check_width(self, width: usize) -> Result<()> {
        // Sums of so many products of 8-bit integers fit into i32, and sums of so many inputs are exact in f32.
        const MAX_INPUTS: usize = 1 << 17;
        match self {
            Self::Int8 if width > MAX_INPUTS => {
                Err(Error::value("the number of input features", width, format!("at most {MAX_INPUTS} for int8")))
            }
            Self::Q8_0 | Self::Q4_0 if !width.is_multiple_of(BLOCK) => Err(Error::value(
                "the number of input features",
                width,
                format!("a multiple of {BLOCK}, the block of {self:?}"),
            )),
            _ => Ok(()),
        }
    }

    /// The integers and scales of a row: weight `i` becomes `values[i] · scales[i / group]`. The error names the row by
    /// `output`.
    pub(crate) fn encode(self, output: usize, row: &[f32], values: &mut [i8], scales: &mut [f32]) -> Result<()> {
        if let Some(weight) = row.iter().find(|weight| !weight.is_finite()) {
            let what = format!("a weight of output feature {output}");
            return Err(Error::value(what, weight, format!("a finite number, to be held in {self:?}")));
        }
        if self == Self::Int8 {
            scales[0] = exact_int8(row, values).unwrap_or_else(|| {
                let scale = int8_scale(largest(row));
                values.iter_mut().zip(row).for_each(|(value, weight)| *value = round_to_int8(weight / scale));
                scale
            });
            return Ok(());
        }
        let blocks = row.as_chunks::<BLOCK>().0.iter().zip(values.as_chunks_mut::<BLOCK>().0);
        for ((block, values), scale) in blocks.zip(scales) {
            *scale = match self {
                Self::Q8_0 => exact_q8_0(block, values).unwrap_or_else(|| q8_0(block, values)),
                _ => exact_q4_0(block, values).unwrap_or_else(|| q4_0(block, values)),
            };
            if *scale == 0.0 {
                // Nothing else stands for 0: packing what was unpacked gives the same bits.
                (*scale, *values) = (0.0, [0; BLOCK]);
            }
            if !scale.is_finite() {
                let what = format!("the largest weight of a block of output feature {output}");
                return Err(Error::value(what, largest(block), format!("a weight whose {self:?} scale fits into f16")));
            }
        }
        Ok(())
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// The bits of an f32 that the scale of int8 weights does not have.
const LOW_BITS: u32 = 24 - 16;

/// The scale with which int8 holds a row exactly.
fn exact_int8(row: &[f32], values: &mut [i8]) -> Option<f32> {
    let largest = signed_largest(row);
    // 127 first: a row that was rounded here has it.
    let scales = (1..=127).rev().map(|divisor| largest.abs() / divisor as f32).chain([largest / -128.0]);
    let is_scale = |scale: &f32| scale.to_bits().trailing_zeros() >= LOW_BITS && *scale >= f32::MIN_POSITIVE;
    scales.filter(is_scale).find_map(|scale| exact_values(row, scale, [-128, 127], values))
}

/// The scale of int8 weights up to `largest`: `largest / 127`, rounded up to 16 significant bits. It is at least the
/// smallest normal number, so weights below that are as good as 0.
fn int8_scale(largest: f32) -> f32 {
    let scale = (largest / MAX_INT8).max(f32::MIN_POSITIVE);
    // The division may have rounded down, to a number with 16 bits.
    let too_small = f64::from(scale) * f64::from(MAX_INT8) < f64::from(largest);
    let bits = scale.to_bits() + u32::from(too_small);
    // A carry makes the next power of two. 127 times the largest scale is still finite.
    const LARGEST: u32 = (f32::MAX / MAX_INT8).to_bits() & !((1 << LOW_BITS) - 1);
    f32::from_bits(bits.next_multiple_of(1 << LOW_BITS).min(LARGEST))
}

/// `value / divisor` if that is an f16, and so the scale of a block whose largest value is `divisor` times the scale.
fn f16_quotient(value: f32, divisor: i8) -> Option<f32> {
    // Most divisors are excluded by integers: `value` is an odd number times a power of two, and so is the divisor,
    // whose odd number divides the other one.
    let odd = |bits: u32| bits >> bits.trailing_zeros();
    let (fraction, exponent) = (value.to_bits() & 0x007f_ffff, value.to_bits() >> 23 & 0xff);
    let significand = odd(if exponent == 0 { fraction } else { fraction | 0x0080_0000 });
    if !significand.is_multiple_of(odd(divisor.unsigned_abs().into())) {
        return None;
    }
    let scale = f16::from_f32(value / f32::from(divisor)).to_f32();
    (scale * f32::from(divisor) == value && scale.is_finite()).then_some(scale)
}

/// The nearest integer, ties to even, for magnitudes up to 128. `f32::round_ties_even` is a call where the processor
/// may lack the instruction.
fn round_to_int8(x: f32) -> i8 {
    (x + MAGIC).to_bits() as i8
}

/// Writes `block / scale` to `values` if these are integers in the range. They have at most the magnitude 128.
fn exact_values(block: &[f32], scale: f32, range: [i8; 2], values: &mut [i8]) -> Option<f32> {
    for (value, weight) in values.iter_mut().zip(block) {
        *value = round_to_int8(weight / scale);
        // An integer of 8 bits times a scale is exact in f32. 128 has become -128.
        if f32::from(*value) * scale != *weight || !(range[0]..=range[1]).contains(value) {
            return None;
        }
    }
    Some(scale)
}

/// The scale with which Q8_0 holds a block exactly.
fn exact_q8_0(block: &[f32; BLOCK], values: &mut [i8; BLOCK]) -> Option<f32> {
    // A product of an f16 and such an integer has at most 18 significant bits.
    const LOW_BITS: u32 = (1 << 6) - 1;
    let largest = largest(block);
    if largest == 0.0 {
        return Some(0.0);
    }
    if largest.to_bits() & LOW_BITS != 0 {
        return None;
    }
    // 127 first: a block that was quantized has it. Only -128 can be the largest otherwise.
    let scales = (1..=127).rev().filter_map(|divisor| f16_quotient(largest, divisor));
    let scales = scales.chain(f16_quotient(signed_largest(block), -128));
    scales.into_iter().find_map(|scale| exact_values(block, scale, [-128, 127], values))
}

/// The scale with which Q4_0 holds a block exactly.
fn exact_q4_0(block: &[f32; BLOCK], values: &mut [i8; BLOCK]) -> Option<f32> {
    let largest = signed_largest(block);
    if largest == 0.0 {
        return Some(0.0);
    }
    // -8 first: a block that was quantized has it.
    let divisors = [-8, 7, -7, 6, -6, 5, -5, 4, -4, 3, -3, 2, -2, 1, -1];
    let scales = divisors.into_iter().filter_map(|divisor| f16_quotient(largest, divisor));
    scales.into_iter().find_map(|scale| exact_values(block, scale, [-8, 7], values))
}

/// The first value of the largest magnitude.
fn signed_largest(block: &[f32]) -> f32 {
    block.iter().fold(0.0f32, |largest, value| if value.abs() > largest.abs() { *value } else { largest })
}

/// Rounds a block as llama.cpp does.
fn q8_0(block: &[f32; BLOCK], values: &mut [i8; BLOCK]) -> f32 {
    let scale = largest(block) / MAX_INT8;
    let inverse = inverse(scale);
    for (value, weight) in values.iter_mut().zip(block) {
        // Ties away from zero.
        let quotient = weight * inverse;
        let whole = quotient as i32;
        let fraction = quotient - whole as f32;
        *value = (whole + i32::from(fraction >= 0.5) - i32::from(fraction <= -0.5)) as i8;
    }
    f16::from_f32(scale).to_f32()
}

/// Rounds a block as llama.cpp does.
fn q4_0(block: &[f32; BLOCK], values: &mut [i8; BLOCK]) -> f32 {
    let scale = signed_largest(block) / -8.0;
    let inverse = inverse(scale);
    let nibble = |weight: f32| ((weight * inverse + 8.5) as u8).min(15).cast_signed() - 8;
    values.iter_mut().zip(block).for_each(|(value, weight)| *value = nibble(*weight));
    f16::from_f32(scale).to_f32()
}

/// `1 / scale`; 0 if that is not finite.
fn inverse(scale: f32) -> f32 {
    Some(1.0 / scale).filter(|inverse| inverse.is_finite()).unwrap_or(0.0)
}
