//! The same calls on every device, on every backend that supports them, against a naive reference in f64.
//!
//! The CPU is always tested. A build with the feature `cuda` or `metal` also tests that device, and fails if there is
//! none. Environment variables:
//! - `CANDLE_ATTENTION_NO_DEVICE=1`: a build for a device passes on a machine without it.
//! - `CANDLE_ATTENTION_THIN=n`: runs every n-th case of the matrix only, for emulated processors; with
//!   `CANDLE_ATTENTION_FIRST=i` from case i on, so that n processes share them.
//! - `CANDLE_ATTENTION_CASE=i`: runs case i of the matrix only; failures print the number.

mod cases;
#[allow(dead_code, unused_imports, reason = "the suite uses more of it")]
#[path = "../common/mod.rs"]
mod common;
mod covering;
mod encoder;
mod inputs;
mod judge;
mod layer;
mod masks;
mod matrix;
mod traps;

use candle_core::Device;

/// Defines a test of `$run` per device of the build.
macro_rules! on_each_device {
    ($($name:ident: $run:path;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn cpu() {
                $run(&Device::Cpu);
            }

            #[cfg(feature = "cuda")]
            #[test]
            fn cuda() {
                found(Device::new_cuda(0)).iter().for_each($run);
            }

            #[cfg(feature = "metal")]
            #[test]
            fn metal() {
                found(candle_attention::metal_device(0)).iter().for_each($run);
            }
        }
    )*};
}

on_each_device! {
    every_pair_of_properties: matrix::every_pair_of_properties;
    additive_scoring_and_attention_weights: matrix::additive_scoring_and_attention_weights;
    empty_calls: matrix::empty_calls;
    more_rows_than_a_grid: traps::more_rows_than_a_grid;
    batch_invariance: traps::batch_invariance;
    hidden_keys: traps::hidden_keys;
    layer_under_every_mask: layer::under_every_mask;
    layer_on_ragged_batches: layer::on_ragged_batches;
    layer_token_by_token: layer::token_by_token;
    layer_with_positions: layer::with_positions;
    few_queries_over_many_keys: traps::few_queries_over_many_keys;
}

on_each_device! {
    encoders: encoder::padded_and_ragged;
}

/// The device; `None` if it is missing and that is allowed.
#[cfg_attr(
    not(any(feature = "cuda", feature = "metal")),
    expect(dead_code, reason = "only builds for a device use it")
)]
fn found<E: std::fmt::Display>(device: Result<Device, E>) -> Option<Device> {
    let allowed = std::env::var("CANDLE_ATTENTION_NO_DEVICE").is_ok_and(|value| value == "1");
    match device {
        Ok(device) => Some(device),
        Err(_) if allowed => None,
        Err(error) => panic!("no device to test (CANDLE_ATTENTION_NO_DEVICE=1 allows that): {error}"),
    }
}
