//! The command `candle-attention prune` as an example of its own.

#[path = "../src/bin/candle-attention/prune/mod.rs"]
mod prune;
#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;

fn main() -> std::process::ExitCode {
    shared::program::main::<prune::Prune>()
}
