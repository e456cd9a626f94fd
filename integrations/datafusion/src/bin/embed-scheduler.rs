//! `embed-scheduler`: the scheduler of a Ballista cluster that embeds texts.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use candle_attention_datafusion::cluster::{SchedulerOptions, run_scheduler};
use candle_attention_datafusion::{Error, Result, Setup, interrupted};
use clap::Parser;

/// The stack of a thread.
const STACK_BYTES: usize = 32 << 20;

/// The scheduler of a Ballista cluster whose queries call `embed`, `similarity` and `rerank`
///
/// It plans queries, for which it needs the models that they name; executors compute. It listens without authentication:
/// keep it in a trusted network. Ctrl-C ends it.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "\
Examples:
  embed-scheduler
  embed-scheduler --bind 10.0.0.1:50050 --external-host 10.0.0.1 --model minilm=./all-MiniLM-L6-v2"
)]
struct Args {
    #[command(flatten)]
    setup: Setup,

    /// The address to listen on; port 0 is any that is free
    #[arg(long, default_value = "127.0.0.1:50050", value_name = "IP:PORT")]
    bind: SocketAddr,

    /// The host name under which executors and clients reach this one
    #[arg(long, default_value = "localhost", value_name = "HOST")]
    external_host: String,

    /// After how many seconds without a report an executor's work is given to others; a busy one reports every 5
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(6..))]
    executor_timeout: u64,
}

fn main() -> ExitCode {
    match start(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("embed-scheduler: {error}");
            ExitCode::from(2)
        }
    }
}

fn start(args: Args) -> Result<()> {
    let models = args.setup.load()?;
    let options = SchedulerOptions {
        bind: args.bind,
        external_host: args.external_host,
        executor_timeout: Duration::from_secs(args.executor_timeout),
    };
    let failed = |e: std::io::Error| Error::Cluster { node: format!("scheduler {}", args.bind), reason: e.to_string() };
    // Plans are made by recursion, which Ballista's own program gives as much stack.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build();
    runtime.map_err(failed)?.block_on(async {
        tokio::select! {
            ended = run_scheduler(&models, options, |address| println!("scheduler ready at {address}")) => ended,
            signal = interrupted() => signal.map_err(failed),
        }
    })
}
