//! The command `candle-attention attend` as an example of its own.

#[path = "../src/bin/candle-attention/attend/mod.rs"]
mod attend;
#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;

fn main() -> std::process::ExitCode {
    shared::program::main::<attend::Attend>()
}
