//! Gates of rows.

use candle_attention_kernels::{GateFunction, RowGate, Team};

use super::{Random, isas};

fn function(function: GateFunction, x: f32) -> f64 {
    let x = f64::from(x);
    match function {
        GateFunction::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        GateFunction::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
    }
}

#[test]
fn rows_of_odd_sizes_match_the_reference() {
    let mut random = Random(7);
    for (rows, count, group, beside) in [(1, 1, 1, 0), (3, 7, 1, 5), (5, 3, 6, 2), (37, 33, 1, 0), (40, 17, 3, 11)] {
        let (width, stride) = (count * group, count + beside);
        let (xs, gates): (Vec<f32>, Vec<f32>) = (random.values(rows * width), random.values(rows * stride));
        let gates: Vec<f32> = gates.iter().map(|gate| gate * 20.0).collect();
        for isa in isas() {
            for of in [GateFunction::Sigmoid, GateFunction::Softplus] {
                let mut got = xs.clone();
                let gate = RowGate { gates: &gates[..rows * stride - beside], stride, count, function: of };
                gate.apply(isa, Team::ALONE, &mut got, width).unwrap();
                for (i, (got, x)) in got.iter().zip(&xs).enumerate() {
                    let gate = gates[i / width * stride + i % width / group];
                    let want = f64::from(*x) * function(of, gate);
                    let off = (f64::from(*got) - want).abs();
                    assert!(off <= 4e-7 * f64::from(gate.abs()).max(1.0), "{} {i}: {got}, {want}", isa.name());
                }
            }
        }
    }
}

/// Far from 0 both functions are 0, 1 or the number itself, and NaN is not lost.
#[test]
fn gates_of_extreme_numbers_are_those_of_the_limit() {
    let numbers = [-1e30, f32::NEG_INFINITY, 1e30, 50.0, 0.0, f32::NAN];
    for isa in isas() {
        let gate = |function| {
            let mut xs = [1.0; 6];
            let gate = RowGate { gates: &numbers, stride: 6, count: 6, function };
            gate.apply(isa, Team::ALONE, &mut xs, 6).unwrap();
            xs
        };
        let sigmoid = gate(GateFunction::Sigmoid);
        assert_eq!(sigmoid[..5], [0.0, 0.0, 1.0, 1.0, 0.5], "{}", isa.name());
        let softplus = gate(GateFunction::Softplus);
        assert_eq!(softplus[..4], [0.0, 0.0, 1e30, 50.0], "{}", isa.name());
        assert!((softplus[4] - std::f32::consts::LN_2).abs() < 1e-7, "{}", isa.name());
        assert!(sigmoid[5].is_nan() && softplus[5].is_nan(), "{}", isa.name());
    }
}

#[test]
fn gates_that_do_not_fit_are_an_error() {
    let isa = isas()[0];
    let apply = |gates: &[f32], stride, count, xs: &mut [f32], width| {
        RowGate { gates, stride, count, function: GateFunction::Sigmoid }.apply(isa, Team::ALONE, xs, width)
    };
    assert!(apply(&[0.0; 6], 3, 3, &mut [1.0; 12], 6).is_ok());
    assert!(apply(&[0.0; 5], 3, 3, &mut [1.0; 12], 6).is_err(), "too few gates");
    assert!(apply(&[0.0; 6], 3, 3, &mut [1.0; 11], 6).is_err(), "half a row");
    assert!(apply(&[0.0; 6], 3, 4, &mut [1.0; 12], 6).is_err(), "4 gates for 6 values");
    assert!(apply(&[0.0; 6], 3, 0, &mut [1.0; 12], 6).is_err(), "no gates");
    assert!(apply(&[], 3, 3, &mut [], 6).is_ok());
}
