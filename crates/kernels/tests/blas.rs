//! Products by a library, with `sgemm` written out as loops in its place.

use candle_attention_kernels::{Activation, Blas, Element, PackedWeights, Packer, Sgemm, Team, WeightFormat};
use half::{bf16, f16};

use super::loops::{LOOPS, count_multiply_adds};
use super::{Random, downcast, isas, on_threads, upcast};

fn pack<T: Element>(blas: Blas, format: WeightFormat, w: &[T], bias: &[f32], k: usize) -> PackedWeights {
    let mut packer = Packer::with_blas(isas()[0], Some(blas), format, bias.len(), k).unwrap();
    packer.push(bias.len(), w, Some(bias)).unwrap();
    packer.finish().unwrap()
}

fn multiply<A: Element, O: Element>(weights: &PackedWeights, a: &[A], rows: usize, threads: usize) -> Vec<O> {
    let mut out = Vec::new();
    on_threads(threads, || {
        let mut run = |team: Team| weights.multiply(team, a, rows, Activation::Gelu, &mut out);
        if threads == 1 { run(Team::ALONE) } else { Team::with(usize::MAX, run) }
    })
    .unwrap();
    out
}

/// Blocks of rows and of outputs, all dtypes, and threads that share both.
#[test]
fn products_by_a_library_are_those_of_the_kernels() {
    let mut random = Random(54);
    for (rows, k, n) in [(1, 5, 12), (7, 20, 130), (515, 9, 1100), (3, 300, 2050), (257, 2051, 67)] {
        let (a, w, bias) = (random.values::<f32>(rows * k), random.values::<f32>(n * k), random.values(n));
        let (a_bf16, w_bf16, w_f16) = (downcast::<bf16>(&a), downcast::<bf16>(&w), downcast::<f16>(&w));
        let cases = [
            (pack(LOOPS, WeightFormat::F32, &w, &bias, k), w.clone(), WeightFormat::F32, 4),
            (pack(LOOPS, WeightFormat::Bf16, &w_bf16, &bias, k), upcast(&w_bf16), WeightFormat::Bf16, 2),
            (pack(LOOPS, WeightFormat::F16, &w_f16, &bias, k), upcast(&w_f16), WeightFormat::F16, 2),
        ];
        for (packed, w, format, size) in cases {
            let what = format!("{rows}×{k}×{n} {format:?}");
            assert_eq!((packed.format(), packed.bytes()), (format, n * (k * size + 4)), "{what}: held once");
            assert_eq!((packed.unpack::<f32>(0..n).unwrap(), packed.bias(0..n)), (w.clone(), &bias[..]), "{what}");
            assert!(!packed.rounds_to_bf16());
            let kernels = PackedWeights::new(isas()[0], &w, Some(&bias), n, k).unwrap();
            let close = |got: &[f32], want: &[f32], tolerance: f32| {
                assert_eq!(got.len(), want.len());
                for (i, (got, want)) in got.iter().zip(want).enumerate() {
                    assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{what} {i}: {got}, want {want}");
                }
            };
            let (want, alone) = (multiply::<_, f32>(&kernels, &a, rows, 1), multiply::<_, f32>(&packed, &a, rows, 1));
            close(&alone, &want, 1e-4);
            assert_eq!(alone, multiply::<_, f32>(&packed, &a, rows, 3), "{what}: three threads");
            close(&upcast(&multiply::<_, bf16>(&packed, &a, rows, 2)), &want, 0.01);
            let rounded: Vec<f32> = multiply(&kernels, &a_bf16, rows, 1);
            close(&multiply::<_, f32>(&packed, &a_bf16, rows, 1), &rounded, 1e-4);
            // Some outputs, in the same memory.
            let (part, before) = packed.outputs(n / 3..n).unwrap();
            let (part, outputs) = (multiply::<_, f32>(&part, &a, rows, 1), n - n / 3);
            assert_eq!(before, 0);
            for (part, all) in part.chunks(outputs).zip(alone.chunks(n)) {
                assert_eq!(part, &all[n / 3..], "{what}: some outputs");
            }
        }
    }
}

#[test]
fn each_value_is_multiplied_once() {
    let (k, n) = (70, 1100);
    let w = Random(55).values::<f32>(k * n);
    for format in [WeightFormat::F32, WeightFormat::F16] {
        for (rows, threads) in [(0, 1), (1, 1), (300, 1), (1, 3), (300, 3)] {
            let found = count_multiply_adds(|counted| {
                let packed = pack(counted, format, &w, &vec![0.0; n], k);
                multiply::<f32, f32>(&packed, &vec![1.0; rows * k], rows, threads);
            });
            // The fewest rows of a product are 4.
            let rows = if rows == 1 { 4 } else { rows };
            assert_eq!(found, rows * n * k, "{rows} rows on {threads} threads");
        }
    }
}

#[test]
fn sizes_that_a_library_cannot_have_are_errors_and_nothing_is_no_call() {
    fn never(_: Sgemm) {
        unreachable!("a product without terms")
    }
    let never = Blas { name: "never", sgemm: never };
    let inputs = 1 << 31;
    let message = Packer::with_blas(isas()[0], Some(never), WeightFormat::F32, 12, inputs).err().unwrap().to_string();
    assert_eq!(
        message,
        "the number of input features is 2147483648, expected at most 2147483647 for products by never"
    );
    let (none, zeros) = ([0f32; 0], vec![0f32; 60]);
    let bias = vec![2.0; 12];
    assert_eq!(multiply::<f32, f32>(&pack(never, WeightFormat::F32, &none, &bias, 0), &none, 3, 1).len(), 36);
    assert!(multiply::<f32, f32>(&pack(never, WeightFormat::F16, &zeros, &bias, 5), &none, 0, 1).is_empty());
    // What stays with the kernels: no outputs, few outputs, few bits.
    assert!(multiply::<f32, f32>(&pack(never, WeightFormat::F32, &none, &none, 5), &zeros, 12, 1).is_empty());
    assert_eq!(
        multiply::<f32, f32>(&pack(never, WeightFormat::F32, &zeros[..55], &bias[..11], 5), &zeros, 12, 1).len(),
        132
    );
    assert_eq!(multiply::<f32, f32>(&pack(never, WeightFormat::Int8, &zeros, &bias, 5), &zeros, 12, 1).len(), 144);
}

/// The library that the build is linked with, if there is one.
#[test]
fn the_linked_library_multiplies() {
    let Some(blas) = Blas::linked() else { return };
    let mut random = Random(56);
    for (rows, k, n) in [(1, 3, 15), (300, 70, 1100)] {
        let (a, w, bias) = (random.values::<f32>(rows * k), random.values::<f32>(n * k), random.values(n));
        let [got, want] =
            [blas, LOOPS].map(|blas| multiply::<_, f32>(&pack(blas, WeightFormat::F32, &w, &bias, k), &a, rows, 2));
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{}: {got}, want {want}", blas.name);
        }
    }
}
