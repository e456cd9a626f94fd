//! Conversions between f32 and the half types, against those of `half`.

use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::convert::{Convert, copy_pairs};

#[test]
fn bf16_conversions_match_half() {
    for high in 0..=u16::MAX {
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(high) << 16 | low);
            let mut ours = [MaybeUninit::new(bf16::ZERO)];
            bf16::downcast(&[x], &mut ours);
            // SAFETY: `downcast` writes every element.
            let (ours, theirs) = (unsafe { ours[0].assume_init() }, bf16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || x.is_nan() && ours.is_nan(), "{x}: {ours}, {theirs}");
        }
        let narrow = bf16::from_bits(high);
        let mut wide = [0.0];
        bf16::upcast(&[narrow], &mut wide);
        assert!(wide[0] == narrow.to_f32() || narrow.is_nan() && wide[0].is_nan(), "{narrow}");
    }
}

/// Odd numbers of values end in half a pair, also where the pairs before it are not a whole number of blocks.
#[test]
fn pairs_of_any_number_of_values() {
    for count in 0..=70u16 {
        let values: Vec<bf16> = (1..=count).map(bf16::from_bits).collect();
        let mut pairs = [u32::MAX; 40];
        copy_pairs(bytemuck::cast_slice(&values), &mut pairs);
        let half = |i: usize| values.get(i).map_or(0, |value| u32::from(value.to_bits()));
        for (i, pair) in pairs.into_iter().enumerate() {
            assert_eq!(pair, half(2 * i) | half(2 * i + 1) << 16, "pair {i} of {count} values");
        }
    }
}

/// Every f16, and the f32 values around it and around the midpoint to the next f16. Slices of 21 values test both the
/// conversion of whole vectors and that of the remainder.
#[test]
fn f16_conversions_match_half() {
    let same = |ours: f16, theirs: f16| ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
    for bits in 0..=u16::MAX {
        let narrow = f16::from_bits(bits);
        let wide = narrow.to_f32();
        let mut ours = [0.0; 21];
        f16::upcast(&[narrow; 21], &mut ours);
        assert!(
            ours.iter().all(|x| x.to_bits() == wide.to_bits() || x.is_nan() && wide.is_nan()),
            "{bits:x}: {ours:?}"
        );
        let middle = wide.to_bits() & 0xffff_e000 | 0x1000;
        for center in [wide.to_bits(), middle, u32::from(bits) << 16] {
            let xs: [f32; 21] = std::array::from_fn(|i| f32::from_bits(center.wrapping_add(i as u32).wrapping_sub(10)));
            let mut ours = [MaybeUninit::new(f16::ZERO); 21];
            f16::downcast(&xs, &mut ours);
            for (x, ours) in xs.iter().zip(ours) {
                // SAFETY: `downcast` writes every element.
                let (ours, theirs) = (unsafe { ours.assume_init() }, f16::from_f32(*x));
                assert!(same(ours, theirs), "{x:e} becomes {ours:e}, by half {theirs:e}");
            }
        }
    }
    // Midpoints between subnormal values, and the overflow.
    let ulp = 2f32.powi(-24);
    for i in 0..4 * 1024 {
        let middle = (i as f32 + 0.5) * ulp;
        for x in [middle, middle.next_up(), middle.next_down(), 65520.0, 65519.996, f32::MIN_POSITIVE, f32::MAX] {
            let mut ours = [MaybeUninit::new(f16::ZERO)];
            f16::downcast(&[-x], &mut ours);
            // SAFETY: `downcast` writes every element.
            assert!(same(unsafe { ours[0].assume_init() }, f16::from_f32(-x)), "{x:e}");
        }
    }
}
