//! The command `candle-attention encode` as an example of its own.

#[path = "../src/bin/candle-attention/encode/mod.rs"]
mod encode;
#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;

fn main() -> std::process::ExitCode {
    shared::program::main::<encode::Encode>()
}
