//! The command `candle-attention inspect` as an example of its own.

#[path = "../src/bin/candle-attention/inspect.rs"]
mod inspect;
#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;

fn main() -> std::process::ExitCode {
    shared::program::main::<inspect::Inspect>()
}
