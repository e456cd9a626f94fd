//! The command `inspect` of the program `candle-attention`, as a program of its own.

fn main() -> std::process::ExitCode {
    candle_attention_cli::shared::program::main::<candle_attention_cli::inspect::Inspect>()
}
