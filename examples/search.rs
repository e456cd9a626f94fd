//! The command `candle-attention search` as an example of its own.

#[path = "../src/bin/candle-attention/search/mod.rs"]
mod search;
#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;

fn main() -> std::process::ExitCode {
    shared::program::main::<search::Search>()
}
