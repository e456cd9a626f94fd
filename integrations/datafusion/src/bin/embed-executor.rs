//! `embed-executor`: an executor of a Ballista cluster that embeds texts.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use candle_attention_datafusion::cluster::{ExecutorOptions, run_executor};
use candle_attention_datafusion::program::{cluster_runtime, exit, host_and_port, print, print_ready, threads};
use candle_attention_datafusion::{Error, Result, Setup, encoding_totals};
use clap::Parser;
use tempfile::TempDir;

/// An executor of a Ballista cluster whose queries call `embed`, `similarity` and `rerank`
///
/// It listens without authentication: keep it in a trusted network. Ctrl-C ends it when its tasks are done, and it says
/// how many texts it has encoded.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "\
Examples:
  embed-executor
  embed-executor --scheduler 10.0.0.1:50050 --bind 0.0.0.0:50051 --model minilm=./all-MiniLM-L6-v2"
)]
struct Args {
    #[command(flatten)]
    setup: Setup,

    /// The scheduler
    #[arg(long, default_value = "127.0.0.1:50050", value_name = "HOST:PORT", value_parser = host_and_port)]
    scheduler: (String, u16),

    /// The address to listen on; port 0 is any that is free
    #[arg(long, default_value = "127.0.0.1:0", value_name = "IP:PORT")]
    bind: SocketAddr,

    /// The host name under which others reach this one [default: the address from which it connects to the scheduler]
    #[arg(long, value_name = "HOST")]
    external_host: Option<String>,

    /// The folder for results of queries [default: a temporary one, removed at the end]
    #[arg(long, value_name = "FOLDER")]
    work_dir: Option<PathBuf>,

    /// How many tasks run at a time: one is encoded by all cores, the others read and write beside it
    #[arg(long, default_value = "2", value_name = "N", value_parser = threads)]
    concurrent_tasks: NonZeroUsize,

    /// For how many seconds the scheduler is waited for
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    connect_timeout: u16,
}

fn main() -> ExitCode {
    exit("embed-executor", start(Args::parse()))
}

fn start(args: Args) -> Result<ExitCode> {
    let models = args.setup.load()?;
    let failed = |e: std::io::Error| Error::Cluster { node: format!("executor {}", args.bind), reason: e.to_string() };
    let own = match &args.work_dir {
        None => Some(TempDir::new().map_err(failed)?),
        Some(folder) => {
            std::fs::create_dir_all(folder).map_err(|e| Error::File { path: folder.clone(), reason: e.to_string() })?;
            None
        }
    };
    let work_dir = own.as_ref().map(|folder| folder.path().to_path_buf()).or(args.work_dir).unwrap_or_default();
    let options = ExecutorOptions {
        scheduler_host: args.scheduler.0,
        scheduler_port: args.scheduler.1,
        bind: args.bind,
        external_host: args.external_host,
        work_dir,
        concurrent_tasks: args.concurrent_tasks.get(),
        connect_timeout: Duration::from_secs(args.connect_timeout.into()),
    };
    let ready = |address| print_ready("executor", address);
    let result = cluster_runtime().map_err(failed)?.block_on(run_executor(&models, options, ready));
    let totals = encoding_totals();
    let printed = print(format_args!("texts: {}, encoder seconds: {:.3}", totals.texts, totals.time.as_secs_f64()));
    // Why the executor ended comes first.
    result.and(printed)?;
    Ok(ExitCode::SUCCESS)
}
