//! The program `candle-attention`: what the library does, as commands.

#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::process::ExitCode;

use candle_attention_cli::shared::program::{self, Command};
use candle_attention_cli::shared::{Result, interrupt};
use candle_attention_cli::{
    attend, attention_map, bench, classify, completions, encode, fill_mask, inspect, man, prune, quantize, rerank,
    search, train,
};
use clap::{CommandFactory, Parser, Subcommand};

/// Text embeddings, semantic search, attention maps, and the attention layers of published checkpoints.
///
/// Without --model, the commands that read texts run a small model that is part of this program.
#[derive(Parser)]
#[command(name = "candle-attention", version, max_term_width = 100)]
struct Program {
    #[command(subcommand)]
    command: Commands,
    /// The number of threads that compute [default: RAYON_NUM_THREADS, or all cores]
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    threads: Option<u16>,
}

fn threads(text: &str) -> std::result::Result<u16, &'static str> {
    text.parse().ok().filter(|threads| (1..=1024).contains(threads)).ok_or("expected a whole number from 1 to 1024")
}

#[derive(Subcommand)]
enum Commands {
    Encode(encode::Encode),
    Search(search::Search),
    Rerank(rerank::Rerank),
    Classify(classify::Classify),
    FillMask(fill_mask::FillMask),
    Inspect(inspect::Inspect),
    Attend(attend::Attend),
    AttentionMap(attention_map::AttentionMap),
    Prune(prune::Prune),
    Quantize(quantize::Quantize),
    Train(train::Train),
    Bench(bench::Bench),
    Completions(completions::Completions),
    Man(man::ManPages),
}

impl Command for Program {
    fn run(self) -> Result<()> {
        // Rayon panics where it starts the threads itself and cannot; 0 is its own number.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads.unwrap_or(0).into());
        pool.build_global().map_err(|e| match self.threads {
            Some(threads) => format!("--threads {threads}: {e}"),
            None => format!("the threads of RAYON_NUM_THREADS, or one for each core: {e}; --threads 1 takes one"),
        })?;
        match self.command {
            Commands::Encode(command) => command.run(),
            Commands::Search(command) => command.run(),
            Commands::Rerank(command) => command.run(),
            Commands::Classify(command) => command.run(),
            Commands::FillMask(command) => command.run(),
            Commands::Inspect(command) => command.run(),
            Commands::Attend(command) => command.run(),
            Commands::AttentionMap(command) => command.run(),
            Commands::Prune(command) => command.run(),
            Commands::Quantize(command) => command.run(),
            Commands::Train(command) => command.run(),
            Commands::Bench(command) => command.run(),
            Commands::Completions(command) => command.run(Self::command()),
            Commands::Man(command) => command.run(Self::command()),
        }
    }
}

fn main() -> ExitCode {
    // Elsewhere there is no line to clean up, and `nohup` stays what it is.
    if std::io::stderr().is_terminal() {
        interrupt::listen();
    }
    program::main::<Program>()
}
