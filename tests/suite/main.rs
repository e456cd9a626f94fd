//! Tests of the layer, without a network and without a model: against golden values of the libraries that own the
//! formulas, against a naive reference in f64, and with invalid input. `tests/golden` holds the scripts that made the
//! golden values.

mod api;
mod caches;
mod checkpoints;
#[allow(dead_code, unused_imports, reason = "the suites of all packages share it")]
#[path = "../common/mod.rs"]
mod common;
mod families;
mod hostile;
mod masks;
#[allow(dead_code, reason = "two suites share it")]
#[path = "../common/models.rs"]
mod models;
mod numerics;
mod with_models;
