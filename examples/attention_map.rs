//! The command `candle-attention attention-map` as an example of its own.

#[path = "../src/bin/candle-attention/attention_map.rs"]
mod attention_map;
#[allow(dead_code)] // Every command uses a part of it.
#[path = "../src/bin/candle-attention/shared/mod.rs"]
mod shared;

fn main() -> std::process::ExitCode {
    shared::program::main::<attention_map::AttentionMap>()
}
