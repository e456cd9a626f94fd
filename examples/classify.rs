//! The command `candle-attention classify` as an example of its own.

#[path = "../src/bin/candle-attention/classify.rs"]
mod classify;
#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;

fn main() -> std::process::ExitCode {
    shared::program::main::<classify::Classify>()
}
