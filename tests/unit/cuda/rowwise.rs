//! The row-wise kernels on the emulator against f64 loops: normalization, activation and rotary embedding.

use candle_attention_kernels::Element;
use half::{bf16, f16};
use libloading::Library;

use super::emulator::{EMULATOR, Memory, compile, dtype};
use crate::kernels::cuda::{ActivationParams, NormParams, RotaryParams, RowStrides, Rowwise};
use crate::support::{Random, upcast};

/// A view `(b, s, h, size)` of a larger tensor.
#[derive(Debug, Clone, Copy)]
struct View {
    dims: [usize; 4],
    strides: [usize; 3],
    start: usize,
}

impl View {
    fn packed(dims: [usize; 4]) -> Self {
        let [_, s, h, size] = dims;
        Self { dims, strides: [s * h * size, h * size, size], start: 0 }
    }

    /// Some of the heads of a packed projection.
    fn part(dims: [usize; 4], heads: usize, first: usize) -> Self {
        let [_, s, _, size] = dims;
        Self { dims, strides: [s * heads * size, heads * size, size], start: first * size }
    }

    fn rows(&self) -> usize {
        self.dims[..3].iter().product()
    }

    fn memory_len(&self) -> usize {
        let last: usize = self.dims[..3].iter().zip(self.strides).map(|(dim, stride)| (dim - 1) * stride).sum();
        self.start + last + self.dims[3]
    }

    /// Offset of row `r`.
    fn row(&self, r: usize) -> usize {
        let [_, s, h, _] = self.dims;
        let [b_stride, s_stride, h_stride] = self.strides;
        self.start + r / h / s * b_stride + r / h % s * s_stride + r % h * h_stride
    }

    fn row_strides(&self) -> RowStrides {
        RowStrides { strides: self.strides.map(|s| s as i64), s: self.dims[1] as i32, h: self.dims[2] as i32 }
    }

    fn aligned<T: Element>(&self) -> bool {
        let per = Rowwise(dtype::<T>()).vector_size();
        [self.start, self.dims[3]].iter().chain(&self.strides).all(|number| number.is_multiple_of(per))
    }
}

struct Emulator<'a> {
    kernels: &'a Library,
    random: Random,
}

impl Emulator<'_> {
    /// The `count` elements that the kernel `entry` writes to the address passed to `params`.
    fn run<T: Element, P>(
        &mut self,
        entry: &str,
        blocks: usize,
        count: usize,
        memory: &mut Memory,
        params: impl FnOnce(u64) -> P,
    ) -> Vec<f32> {
        let out = memory.hold(&vec![0xffu8; count * size_of::<T>()]);
        let params = params(out);
        self.random.next();
        // SAFETY: the library is compiled from the sources, whose structs have the same fields.
        unsafe {
            let entry = self.kernels.get::<unsafe extern "C" fn(&P, u32, u32)>(entry.as_bytes()).unwrap();
            entry(&params, blocks as u32, self.random.0 as u32);
            upcast(std::slice::from_raw_parts(out as *const T, count))
        }
    }
}

fn at<T>(address: u64, start: usize) -> u64 {
    address + (start * size_of::<T>()) as u64
}

fn check(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance * (1.0 + want.abs()), "{what}: [{i}] {got}, want {want}");
    }
}

/// Runs `test` per element type.
fn for_each_element(test: impl Fn(&mut Emulator, Kind)) {
    let folder = tempfile::tempdir().unwrap();
    for kind in [Kind::F32, Kind::F16, Kind::BF16] {
        let rows = Rowwise(match kind {
            Kind::F32 => dtype::<f32>(),
            Kind::F16 => dtype::<f16>(),
            Kind::BF16 => dtype::<bf16>(),
        });
        let text = rows.source(EMULATOR)
            + include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda_emulator/launch_rowwise.cpp"));
        let kernels = compile(&text, &rows.definitions(), &folder.path().join(format!("{kind:?}.so")));
        test(&mut Emulator { kernels: &kernels, random: Random(12) }, kind);
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    F32,
    F16,
    BF16,
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_norms() {
    for_each_element(|emulator, kind| match kind {
        Kind::F32 => norms::<f32>(emulator, 2e-6),
        Kind::F16 => norms::<f16>(emulator, 1e-3),
        Kind::BF16 => norms::<bf16>(emulator, 8e-3),
    });
}

fn norms<T: Element>(emulator: &mut Emulator, tolerance: f64) {
    let views = [
        View::packed([1, 11, 1, 384]),
        View::packed([1, 3, 1, 33]),
        View::packed([1, 1, 1, 1]),
        View::part([2, 5, 3, 64], 7, 2),
        View::part([2, 3, 2, 40], 3, 0),
        View { start: 1, ..View::part([1, 3, 2, 64], 4, 0) },
    ];
    for view in views {
        let [_, _, h, size] = view.dims;
        let (rows, count) = (view.rows(), view.rows() * size);
        // Added, which comes with a bias of its own where a sum is wanted, a sum wanted, a bias, a weight for each
        // head, the mean stays, something added to the weight.
        let kinds = [
            (false, false, true, false, false, 0.0),
            (true, true, true, false, false, 0.0),
            (true, false, false, false, false, 0.0),
            (false, false, false, h > 1, true, 1.0),
            (false, false, true, h > 1, true, 0.0),
        ];
        for (with_add, keep_sum, with_bias, per_head, rms, offset) in kinds {
            let mut memory = Memory::new(emulator.kernels);
            let parameters = if per_head { h * size } else { size };
            let random = &mut emulator.random;
            let xs: Vec<T> = random.values(view.memory_len());
            let [add, add_bias, weight, bias] =
                [count, size, parameters, parameters].map(|count| random.values::<T>(count));
            let sum = memory.hold(&vec![0xffu8; count * size_of::<T>()]);
            let (x, add_at) = (memory.hold(&xs), memory.hold_optional(with_add.then(|| add.clone())));
            let add_bias_at = memory.hold_optional(keep_sum.then(|| add_bias.clone()));
            let (weight_at, bias_at) = (memory.hold(&weight), memory.hold_optional(with_bias.then(|| bias.clone())));
            let eps = 1e-5;
            let blocks = Rowwise::blocks_per_rows(rows);
            let got = emulator.run::<T, _>("emulate_norm", blocks, count, &mut memory, |out| NormParams {
                x: at::<T>(x, view.start),
                residual: add_at,
                residual_bias: add_bias_at,
                weight: weight_at,
                bias: bias_at,
                sum: if keep_sum { sum } else { 0 },
                out,
                row_strides: view.row_strides(),
                rows: rows as i64,
                size: size as i32,
                weight_stride: if per_head { size as i32 } else { 0 },
                rms: i32::from(rms),
                weight_offset: offset,
                eps,
                vectorized: i32::from(view.aligned::<T>()),
            });
            let [xs, add, add_bias, weight, bias] = [&xs, &add, &add_bias, &weight, &bias].map(|values| upcast(values));
            let (mut sums, mut want) = (Vec::new(), Vec::new());
            for r in 0..rows {
                let row: Vec<f64> = (0..size)
                    .map(|c| {
                        let add = if with_add { f64::from(add[r * size + c]) } else { 0.0 };
                        let add_bias = if keep_sum { f64::from(add_bias[c]) } else { 0.0 };
                        f64::from(xs[view.row(r) + c]) + add + add_bias
                    })
                    .collect();
                let mean = if rms { 0.0 } else { row.iter().sum::<f64>() / size as f64 };
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / size as f64;
                let factor = 1.0 / (variance + f64::from(eps)).sqrt();
                let first = if per_head { r % h * size } else { 0 };
                want.extend(row.iter().enumerate().map(|(c, x)| {
                    let bias = if with_bias { f64::from(bias[first + c]) } else { 0.0 };
                    (x - mean) * factor * f64::from(weight[first + c] + offset) + bias
                }));
                sums.extend(row);
            }
            let what = format!("{view:?}, add {with_add}, bias {with_bias}, by head {per_head}, rms {rms}");
            check(&got, &want, tolerance, &what);
            if keep_sum {
                // SAFETY: the kernel wrote `count` elements there, and `memory` still holds them.
                let got = upcast(unsafe { std::slice::from_raw_parts(sum as *const T, count) });
                check(&got, &sums, tolerance, &what);
            }
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_activations() {
    for_each_element(|emulator, kind| match kind {
        Kind::F32 => activations::<f32>(emulator, 1e-6),
        Kind::F16 => activations::<f16>(emulator, 1e-3),
        Kind::BF16 => activations::<bf16>(emulator, 8e-3),
    });
}

/// The error function.
fn erf(x: f64) -> f64 {
    candle_core::cpu::erf::erf_f64(x)
}

fn activations<T: Element>(emulator: &mut Emulator, tolerance: f64) {
    let functions: [fn(f64) -> f64; 5] = [
        |x| x,
        |x| x * 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        |x| x / (1.0 + (-x).exp()),
        |x| x.max(0.0),
    ];
    for (i, (rows, size, width)) in [(5, 384, 768), (3, 33, 33), (1, 1, 3), (70, 40, 80)].into_iter().enumerate() {
        for (activation, function) in functions.into_iter().enumerate() {
            for (with_bias, with_gate) in [(true, false), (false, false), (false, true), (true, true)] {
                let mut memory = Memory::new(emulator.kernels);
                let random = &mut emulator.random;
                // The gate is the second half of a packed projection, or a tensor of its own.
                let both: Vec<T> = random.values(rows * width);
                let second = if width == 2 * size { size } else { 0 };
                let biases: [Vec<T>; 2] = [random.values(size), random.values(size)];
                let x = memory.hold(&both);
                let [bias, gate_bias] =
                    biases.each_ref().map(|bias| memory.hold_optional(with_bias.then(|| bias.clone())));
                let aligned = [size, width].iter().all(|n| n.is_multiple_of(Rowwise(dtype::<T>()).vector_size()));
                let blocks = Rowwise(dtype::<T>()).blocks_per_elements(rows * size, aligned);
                let got = emulator.run::<T, _>("emulate_activation", blocks, rows * size, &mut memory, |out| {
                    ActivationParams {
                        x,
                        bias,
                        gate: if with_gate { at::<T>(x, second) } else { 0 },
                        gate_bias: if with_gate { gate_bias } else { 0 },
                        out,
                        x_stride: width as i64,
                        gate_stride: width as i64,
                        rows: rows as i32,
                        size: size as i32,
                        activation: activation as i32,
                        vectorized: i32::from(aligned),
                    }
                });
                let (both, biases) = (upcast(&both), biases.map(|bias| upcast(&bias)));
                let number = |r: usize, c: usize, first: usize, bias: &[f32]| {
                    f64::from(both[r * width + first + c]) + if with_bias { f64::from(bias[c]) } else { 0.0 }
                };
                let places = (0..rows).flat_map(|r| (0..size).map(move |c| (r, c)));
                let want: Vec<f64> = places
                    .map(|(r, c)| {
                        let gate = if with_gate { number(r, c, second, &biases[1]) } else { 1.0 };
                        function(number(r, c, 0, &biases[0])) * gate
                    })
                    .collect();
                check(&got, &want, tolerance, &format!("case {i}, function {activation}, gate {with_gate}"));
            }
        }
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_rotations() {
    for_each_element(|emulator, kind| match kind {
        Kind::F32 => rotations::<f32>(emulator, 1e-6),
        Kind::F16 => rotations::<f16>(emulator, 1e-3),
        Kind::BF16 => rotations::<bf16>(emulator, 8e-3),
    });
}

fn rotations<T: Element>(emulator: &mut Emulator, tolerance: f64) {
    let views = [
        (View::packed([2, 5, 3, 64]), 32),
        (View::part([2, 3, 2, 80], 5, 1), 16),
        (View::packed([1, 9, 1, 7]), 3),
        (View::part([1, 2, 2, 160], 4, 2), 80),
    ];
    for (view, pairs) in views {
        for (interleaved, per_sequence) in [(false, false), (true, false), (false, true), (true, true)] {
            let [b, s, h, d] = view.dims;
            let mut memory = Memory::new(emulator.kernels);
            let xs: Vec<T> = emulator.random.values(view.memory_len());
            let angles = if per_sequence { b * s } else { s } * pairs;
            let [cos, sin] = [0, 1].map(|_| emulator.random.values::<T>(angles));
            let (x, cos_at, sin_at) = (memory.hold(&xs), memory.hold(&cos), memory.hold(&sin));
            let (rows, count) = (view.rows(), view.rows() * d);
            let blocks = Rowwise::blocks_per_rows(rows);
            let got = emulator.run::<T, _>("emulate_rotary", blocks, count, &mut memory, |out| RotaryParams {
                x: at::<T>(x, view.start),
                cos: cos_at,
                sin: sin_at,
                out,
                row_strides: view.row_strides(),
                rows: rows as i64,
                batch_offset: if per_sequence { s as i64 } else { 0 },
                d: d as i32,
                pairs: pairs as i32,
                interleaved: i32::from(interleaved),
            });
            let [xs, cos, sin] = [&xs, &cos, &sin].map(|values| upcast(values));
            let mut want = Vec::new();
            for r in 0..rows {
                let mut row: Vec<f64> = xs[view.row(r)..][..d].iter().map(|x| f64::from(*x)).collect();
                for i in 0..pairs {
                    let angle = (if per_sequence { r / h } else { r / h % s }) * pairs + i;
                    let (cos, sin) = (f64::from(cos[angle]), f64::from(sin[angle]));
                    let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
                    let (x, y) = (row[first], row[second]);
                    (row[first], row[second]) = (x * cos - y * sin, y * cos + x * sin);
                }
                want.extend(row);
            }
            check(&got, &want, tolerance, &format!("{view:?}, {pairs} pairs, {interleaved}, {per_sequence}"));
        }
    }
}
