//! The command `candle-attention train` as an example of its own.

#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;
#[path = "../src/bin/candle-attention/train/mod.rs"]
mod train;

fn main() -> std::process::ExitCode {
    shared::program::main::<train::Train>()
}
