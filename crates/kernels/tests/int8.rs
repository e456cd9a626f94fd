//! Products with int8, Q8_0 and Q4_0 weights, against integers summed in 64 bits.

use candle_attention_kernels::{Activation, Element, Isa, PackedWeights, Packer, QuantizedRows, Team, WeightFormat};
use half::{bf16, f16};

use super::{Random, downcast, isas, on_threads, upcast};

const FORMATS: [WeightFormat; 3] = [WeightFormat::Int8, WeightFormat::Q8_0, WeightFormat::Q4_0];

fn pack(isa: Isa, format: WeightFormat, w: &[f32], bias: Option<&[f32]>, n: usize, k: usize) -> PackedWeights {
    let mut packer = Packer::new(isa, format, n, k).unwrap();
    packer.push(n, w, bias).unwrap();
    let packed = packer.finish().unwrap();
    assert_eq!(packed.format(), format);
    packed
}

fn multiply<A: Element, O: Element>(packed: &PackedWeights, a: &[A], rows: usize) -> Vec<O> {
    let mut out = Vec::new();
    packed.multiply(Team::ALONE, a, rows, Activation::Identity, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The integers of inputs that share a scale, and the scale.
fn quantize(xs: &[f32]) -> (Vec<i64>, f32) {
    let largest = xs.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    if largest == 0.0 {
        return (vec![0; xs.len()], 0.0);
    }
    let scale = (largest / 127.0).max(f32::MIN_POSITIVE);
    (xs.iter().map(|x| (x * (1.0 / scale)).round_ties_even() as i64).collect(), scale)
}

/// A product of `a` with weights `w`, which packed weights hold exactly.
fn reference(format: WeightFormat, a: &[f32], w: &QuantizedRows, bias: &[f32], rows: usize) -> Vec<f32> {
    let (n, k) = (w.rows(), w.width());
    let group = if format == WeightFormat::Int8 { k } else { 32 };
    let mut out = Vec::new();
    for row in a.chunks_exact(k).take(rows) {
        let inputs: Vec<_> = row.chunks(group).map(quantize).collect();
        for (output, bias) in bias.iter().enumerate().take(n) {
            let mut weights = vec![0.0; k];
            w.row_into(output, &mut weights);
            let mut result = 0f32;
            for (index, ((xs, x_scale), weights)) in inputs.iter().zip(weights.chunks(group)).enumerate() {
                let scale = format.scale(&w.scales, output * format.groups(k) + index);
                let integer = |weight: f32| if scale == 0.0 { 0 } else { (weight / scale) as i64 };
                let sum: i64 = xs.iter().zip(weights).map(|(x, weight)| x * integer(*weight)).sum();
                result += sum as f32 * (x_scale * scale);
            }
            out.push(result + bias);
        }
    }
    out
}

fn table(format: WeightFormat, w: &[f32], n: usize, k: usize) -> QuantizedRows {
    let mut rows = QuantizedRows::new(format, n, k).unwrap();
    rows.push(w).unwrap();
    rows
}

fn widths(format: WeightFormat) -> &'static [usize] {
    if format == WeightFormat::Int8 { &[1, 3, 31, 33, 384, 1000] } else { &[32, 64, 96, 384, 1024] }
}

#[test]
fn products_have_the_bits_of_the_reference_on_every_instruction_set() {
    let mut random = Random(31);
    for format in FORMATS {
        for &k in widths(format) {
            for (rows, n) in [(1, 1), (2, 15), (9, 47), (13, 49), (131, 97)] {
                let a = random.values::<f32>(rows * k);
                let (w, bias) = (random.values::<f32>(n * k), random.values::<f32>(n));
                let want = reference(format, &a, &table(format, &w, n, k), &bias, rows);
                for isa in isas() {
                    let what = format!("{} {format:?} {rows}×{k}×{n}", isa.name());
                    let packed = pack(isa, format, &w, Some(&bias), n, k);
                    let got = multiply::<f32, f32>(&packed, &a, rows);
                    assert_eq!(bits(&got), bits(&want), "{what}");
                    // A row alone, and on several threads.
                    let alone = multiply::<f32, f32>(&packed, &a[(rows - 1) * k..], 1);
                    assert_eq!(bits(&alone), bits(&want[(rows - 1) * n..]), "{what}");
                    let shared = on_threads(3, || {
                        let mut out = vec![f32::NAN; rows * n];
                        Team::with(usize::MAX, |team| {
                            packed.multiply_into(team, &a, rows, Activation::Identity, &mut out)
                        })
                        .unwrap();
                        out
                    });
                    assert_eq!(bits(&shared), bits(&want), "{what}");
                }
            }
        }
    }
}

#[test]
fn inputs_and_outputs_of_each_dtype_are_those_of_f32() {
    let mut random = Random(32);
    let (rows, k, n) = (11, 96, 50);
    for format in FORMATS {
        let (a, w) = (random.values::<f32>(rows * k), random.values::<f32>(n * k));
        for isa in isas() {
            let packed = pack(isa, format, &w, None, n, k);
            fn check<A: Element + PartialEq + std::fmt::Debug>(
                packed: &PackedWeights,
                a: &[A],
                upcast: &[f32],
                rows: usize,
            ) {
                let want = multiply::<f32, f32>(packed, upcast, rows);
                assert_eq!(bits(&multiply::<A, f32>(packed, a, rows)), bits(&want));
                assert_eq!(multiply::<A, f16>(packed, a, rows), downcast::<f16>(&want));
                assert_eq!(multiply::<A, bf16>(packed, a, rows), downcast::<bf16>(&want));
            }
            check(&packed, &a, &a, rows);
            let (f16s, bf16s) = (downcast::<f16>(&a), downcast::<bf16>(&a));
            check(&packed, &f16s, &upcast(&f16s), rows);
            check(&packed, &bf16s, &upcast(&bf16s), rows);
        }
    }
}

/// Weights and inputs of the largest magnitude, and long rows of them.
#[test]
fn sums_do_not_overflow() {
    for (k, n) in [(4, 16), (64, 50), (4096, 17), (131_072, 2)] {
        // The longest rows take the emulator of AMX seconds.
        let signs = [(-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0)];
        for (x, w) in signs.into_iter().take(if k > 4096 { 2 } else { 4 }) {
            for format in FORMATS {
                // 8 bits can have -128, of a scale of 1 / 128, where another weight keeps the scale.
                let mut weights = vec![w; n * k];
                let low = format != WeightFormat::Q4_0 && w < 0.0;
                if low {
                    weights.iter_mut().skip(31).step_by(32).for_each(|weight| *weight = 1.0 / 128.0);
                }
                if format != WeightFormat::Int8 && k % 32 != 0 {
                    continue;
                }
                let inputs = vec![x; 3 * k];
                let want = reference(format, &inputs, &table(format, &weights, n, k), &vec![0.0; n], 3);
                for isa in isas() {
                    let packed = pack(isa, format, &weights, None, n, k);
                    let got = multiply::<f32, f32>(&packed, &inputs, 3);
                    assert_eq!(bits(&got), bits(&want), "{} {format:?} {k}×{n} {x} {w}", isa.name());
                }
            }
        }
    }
    let too_many = Packer::new(isas()[0], WeightFormat::Int8, 1, 131_073).err().unwrap().to_string();
    assert!(too_many.contains("input features is 131073, expected at most 131072"), "{too_many}");
}

#[test]
fn rows_that_are_not_finite_become_nan_and_others_do_not() {
    let (rows, k, n) = (7, 64, 20);
    let mut random = Random(33);
    let (w, bias) = (random.values::<f32>(n * k), random.values::<f32>(n));
    for format in FORMATS {
        for isa in isas() {
            let packed = pack(isa, format, &w, Some(&bias), n, k);
            let mut a = random.values::<f32>(rows * k);
            let want = multiply::<f32, f32>(&packed, &a, rows);
            (a[k + 5], a[3 * k + 63], a[4 * k]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
            a[5 * k..6 * k].fill(0.0);
            let got = multiply::<f32, f32>(&packed, &a, rows);
            for (row, (got, want)) in got.chunks_exact(n).zip(want.chunks_exact(n)).enumerate() {
                match row {
                    1 | 3 | 4 => assert!(got.iter().all(|y| y.is_nan()), "{} {format:?} row {row}", isa.name()),
                    5 => assert_eq!(got, bias),
                    _ => assert_eq!(got, want),
                }
            }
            // Far below what has an inverse, and the largest of all.
            for x in [f32::from_bits(1), 1e-39, f32::MIN_POSITIVE, 1e-37, 1e35] {
                let got = multiply::<f32, f32>(&packed, &[x].repeat(k), 1);
                let sums = packed.unpack::<f32>(0..n).unwrap();
                for (column, got) in got.iter().enumerate() {
                    let sum: f64 = sums[column * k..][..k].iter().map(|w| f64::from(*w)).sum();
                    let want = sum * f64::from(x) + f64::from(bias[column]);
                    assert!((f64::from(*got) - want).abs() <= 1e-5 * want.abs() + 1e-30, "{x:e}: {got}, want {want}");
                }
            }
        }
    }
}

/// Packing what was unpacked gives the same bits.
#[test]
fn packing_again_loses_nothing() {
    let mut random = Random(34);
    let (n, k) = (70, 64);
    for format in FORMATS {
        for factor in [1.0, 1e-3, 3e-7, 1e4, 1e-30, 1e-37, 1e-39, 1e-45, 1e30] {
            if format != WeightFormat::Int8 && factor > 1e20 {
                continue; // beyond f16
            }
            let mut w: Vec<f32> = random.values::<f32>(n * k).iter().map(|w| w * factor).collect();
            w[..k].fill(0.0);
            w[k..2 * k].fill(0.0);
            w[k + 9] = -factor;
            for isa in isas() {
                let packed = pack(isa, format, &w, None, n, k);
                let values = packed.unpack::<f32>(0..n).unwrap();
                let again = pack(isa, format, &values, None, n, k);
                assert!(packed.has_same_bits(&again), "{} {format:?} {factor:e}", isa.name());
                assert_eq!(bits(&again.unpack::<f32>(0..n).unwrap()), bits(&values));
                let mut rows = table(format, &w, n, k);
                for source in [&w, &values] {
                    let mut row = vec![0.0; k];
                    for (index, values) in values.chunks_exact(k).enumerate() {
                        rows.row_into(index, &mut row);
                        assert_eq!(bits(&row), bits(values), "{format:?} {factor:e} row {index}");
                    }
                    rows = table(format, source, n, k);
                }
            }
            // What is lost is at most half a step, for the largest of 127, 127 or 8 steps.
            let values = pack(isas()[0], format, &w, None, n, k).unpack::<f32>(0..n).unwrap();
            let steps = if format == WeightFormat::Q4_0 { 8.0 } else { 127.0 };
            let group = if format == WeightFormat::Int8 { k } else { 32 };
            for (w, values) in w.chunks_exact(group).zip(values.chunks_exact(group)) {
                let largest = w.iter().fold(0f32, |largest, w| largest.max(w.abs()));
                // Q4_0 has 7 steps on one side. f16 has no smaller numbers than 6e-8.
                let step = 1.01 * largest / steps * if format == WeightFormat::Q4_0 { 2.0 } else { 1.0 };
                let least = if format == WeightFormat::Int8 { f32::MIN_POSITIVE } else { 130.0 * 6e-8 };
                for (w, value) in w.iter().zip(values) {
                    assert!(
                        (w - value).abs() <= 0.51 * step + 5e-4 * largest + least,
                        "{format:?} {factor:e}: {w:e} {value:e}"
                    );
                }
            }
        }
    }
}

/// Blocks of any scale and any integers, whether or not the largest integer is the one that GGUF would have chosen.
#[test]
fn blocks_of_any_encoder_are_held_exactly() {
    let mut random = Random(35);
    for format in FORMATS {
        let (low, high) = if format == WeightFormat::Q4_0 { (-8.0, 7.0) } else { (-128.0, 127.0) };
        let (group, is_int8) = if format == WeightFormat::Int8 { (128, true) } else { (32, false) };
        let mut w = Vec::<f32>::new();
        for block in 0..100 * 128 / group {
            let scale = random.values::<f32>(1)[0] * [1.0, 0.01, 1e-5, 300.0][block % 4];
            // 16 significant bits, or f16.
            let cut = f32::from_bits(scale.abs().to_bits() & !0xff);
            let scale = if is_int8 { cut } else { f16::from_f32(scale).to_f32() };
            let reach = [1.0f32, 0.9, 0.5, 0.1, 0.02][block % 5];
            let xs = random.values::<f32>(group);
            let most = xs.iter().fold(0f32, |most, x| most.max(x.abs()));
            let integer = |x: &f32| (x / most * reach * -low).round().clamp(low, high);
            w.extend(xs.iter().map(|x| integer(x) * scale));
        }
        let rows = table(format, &w, 100, 128);
        let mut row = [0.0; 128];
        for (index, w) in w.chunks_exact(128).enumerate() {
            rows.row_into(index, &mut row);
            assert_eq!(row, w, "{format:?} row {index}");
        }
    }
}

#[test]
fn weights_that_no_format_holds_are_refused_by_name() {
    let isa = isas()[0];
    for format in FORMATS {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut w = [1f32; 3 * 64];
            w[2 * 64 + 40] = bad;
            let mut packer = Packer::new(isa, format, 3, 64).unwrap();
            let message = packer.push(3, &w, None).unwrap_err().to_string();
            assert!(message.contains("output feature 2") && message.contains("finite"), "{message}");
            let message = QuantizedRows::new(format, 3, 64).unwrap().push(&w).unwrap_err().to_string();
            assert!(message.contains("output feature 2"), "{message}");
        }
    }
    for format in [WeightFormat::Q8_0, WeightFormat::Q4_0] {
        let message = Packer::new(isa, format, 1, 48).err().unwrap().to_string();
        assert!(message.contains("input features is 48, expected a multiple of 32"), "{message}");
        let mut packer = Packer::new(isa, format, 1, 32).unwrap();
        let message = packer.push(1, &[1e8f32; 32], None).unwrap_err().to_string();
        assert!(message.contains("output feature 0") && message.contains("f16"), "{message}");
    }
    assert!(QuantizedRows::new(WeightFormat::F32, 1, 32).is_err());
    assert!(QuantizedRows::new(WeightFormat::Int8, 1, 32).unwrap().push(&[0f32; 64]).is_err());
}

#[test]
fn ranges_of_outputs_and_sizes_of_zero() {
    let mut random = Random(36);
    let (rows, n, k) = (5, 131, 32);
    for format in FORMATS {
        let (a, w) = (random.values::<f32>(rows * k), random.values::<f32>(n * k));
        for isa in isas() {
            let whole = pack(isa, format, &w, None, n, k);
            let want = multiply::<f32, f32>(&whole, &a, rows);
            for range in [0..n, 47..49, 100..n, n..n] {
                let (part, before) = whole.outputs(range.clone()).unwrap();
                let got = multiply::<f32, f32>(&part, &a, rows);
                for row in 0..rows {
                    let got = &got[row * part.out_features()..][before..][..range.len()];
                    assert_eq!(got, &want[row * n..][range.clone()], "{} {range:?}", isa.name());
                }
            }
            for (n, k) in [(0, 32), (3, 0)] {
                let packed = pack(isa, format, &[], None, n, k);
                assert_eq!(multiply::<f32, f32>(&packed, &vec![1.0; 2 * k], 2), vec![0.0; 2 * n]);
                assert_eq!(packed.unpack::<f32>(0..n).unwrap(), []);
            }
        }
    }
}

#[test]
fn tables_take_the_memory_of_their_format() {
    for (format, bits) in [(WeightFormat::Int8, 8), (WeightFormat::Q8_0, 8), (WeightFormat::Q4_0, 4)] {
        let scales = if format == WeightFormat::Int8 { 4 } else { 2 * 384 / 32 };
        assert_eq!(table(format, &[0.5; 3 * 384], 3, 384).bytes(), 3 * (384 * bits / 8 + scales));
    }
}

/// A model of the sizes of all-MiniLM-L6-v2, which has f32 beside: position table, types, norms.
#[test]
fn a_model_takes_the_memory_of_its_format() {
    const WORDS: usize = 30_522;
    const HIDDEN: usize = 384;
    const LAYERS: usize = 6;
    let sizes = [(3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN)];
    let projections: usize = LAYERS * sizes.iter().map(|(n, k)| n * k + n).sum::<usize>();
    let others = (512 + 2) * HIDDEN + (1 + 2 * LAYERS) * 2 * HIDDEN;
    let whole = size_of::<f32>() * (WORDS * HIDDEN + projections + others);
    for (format, most) in [(WeightFormat::Int8, 0.27), (WeightFormat::Q8_0, 0.28), (WeightFormat::Q4_0, 0.16)] {
        for isa in isas() {
            let packed = sizes.map(|(n, k)| pack(isa, format, &vec![0.5; n * k], None, n, k).bytes());
            let words = QuantizedRows::new(format, WORDS, HIDDEN).unwrap().bytes();
            let all = LAYERS * packed.iter().sum::<usize>() + words + size_of::<f32>() * others;
            let share = all as f64 / whole as f64;
            println!("{format:?}, {}: {share:.4} of f32", isa.name());
            assert!(share <= most, "{format:?}, {}: {share}", isa.name());
        }
    }
}
