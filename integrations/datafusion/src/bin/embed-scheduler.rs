//! `embed-scheduler`: the scheduler of a Ballista cluster that embeds texts.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use candle_attention_datafusion::cluster::{SchedulerOptions, run_scheduler};
use candle_attention_datafusion::program::{cluster_runtime, exit, print_ready};
use candle_attention_datafusion::{Error, Result, Setup, interrupted};
use clap::Parser;

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
    #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(6..=86_400))]
    executor_timeout: u64,
}

fn main() -> ExitCode {
    exit("embed-scheduler", start(Args::parse()))
}

fn start(args: Args) -> Result<ExitCode> {
    let models = args.setup.load()?;
    let options = SchedulerOptions {
        bind: args.bind,
        external_host: args.external_host,
        executor_timeout: Duration::from_secs(args.executor_timeout),
    };
    let failed = |e: std::io::Error| Error::Cluster { node: format!("scheduler {}", args.bind), reason: e.to_string() };
    cluster_runtime().map_err(failed)?.block_on(async {
        tokio::select! {
            ended = run_scheduler(&models, options, |address| print_ready("scheduler", address)) => ended?,
            signal = interrupted() => signal.map_err(failed)?,
        }
        Ok(ExitCode::SUCCESS)
    })
}
