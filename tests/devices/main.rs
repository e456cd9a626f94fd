//! The same calls on every device, by every backend that takes them, against a naive reference in f64.
//!
//! The CPU is always tested; a build with the feature `cuda` or `metal` tests that device too, and fails where there is
//! none. These environment variables change what runs:
//! - `CANDLE_ATTENTION_NO_DEVICE=1`: a build for a device passes on a machine without one.
//! - `CANDLE_ATTENTION_THIN=n`: only every n-th case of the matrix, for an emulated processor.
//! - `CANDLE_ATTENTION_CASE=i`: only case i of the matrix, as a failure names it.

mod cases;
#[allow(dead_code, unused_imports, reason = "the suite uses more of it")]
#[path = "../common/mod.rs"]
mod common;
mod covering;
#[cfg(feature = "encoder")]
mod encoder;
mod inputs;
mod judge;
mod layer;
mod masks;
mod matrix;
mod traps;

use candle_core::{Device, Result};

/// Makes a test of `$run` for each device that the build is for.
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
                found(Device::new_metal(0)).iter().for_each($run);
            }
        }
    )*};
}

on_each_device! {
    every_pair_of_properties: matrix::every_pair_of_properties;
    scoring_and_weights: matrix::scoring_and_weights;
    nothing_at_all: matrix::nothing_at_all;
    more_rows_than_a_grid_has: traps::more_rows_than_a_grid_has;
    a_row_alone_and_in_a_batch: traps::a_row_alone_and_in_a_batch;
    layer_under_every_mask: layer::under_every_mask;
    layer_on_ragged_rows: layer::on_ragged_rows;
    layer_token_by_token: layer::token_by_token;
    layer_with_positions: layer::with_positions;
    few_queries_over_many_keys: traps::few_queries_over_many_keys;
}

#[cfg(feature = "encoder")]
on_each_device! {
    encoders: encoder::padded_and_ragged;
}

/// The device, `None` where its absence is allowed.
#[cfg_attr(not(any(feature = "cuda", feature = "metal")), expect(dead_code, reason = "for builds for a device"))]
fn found(device: Result<Device>) -> Option<Device> {
    let allowed = std::env::var("CANDLE_ATTENTION_NO_DEVICE").is_ok_and(|value| value == "1");
    match device {
        Ok(device) => Some(device),
        Err(_) if allowed => None,
        Err(error) => panic!("no device to test (CANDLE_ATTENTION_NO_DEVICE=1 allows that): {error}"),
    }
}
