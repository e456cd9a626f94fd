//! `embed-sql`: a query with the functions, over Parquet files, in this process or on a Ballista cluster.

use std::process::ExitCode;

use candle_attention_datafusion::program::{cluster_url, exit, print};
use candle_attention_datafusion::{Error, Models, Setup};
use clap::Parser;
use datafusion::common::{DataFusionError, Result};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};

/// Runs a query with `embed`, `similarity` and `rerank` over Parquet files and prints its result as a table
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "\
Examples:
  embed-sql --table texts=texts/ \"SELECT id, embed(text) FROM texts LIMIT 3\"
  embed-sql --cluster df://127.0.0.1:50050 --table texts=texts/ \"SELECT count(embed(text)) FROM texts\""
)]
struct Args {
    #[command(flatten)]
    setup: Setup,

    /// A table: its name, and a Parquet file, a folder of them or a pattern; may be given more than once
    #[arg(long, value_name = "NAME=PATH", value_parser = table)]
    table: Vec<(String, String)>,

    /// The scheduler of a Ballista cluster, whose nodes see the files at the same paths
    #[arg(long, value_name = "df://HOST:PORT", value_parser = cluster_url)]
    cluster: Option<String>,

    /// The query
    sql: String,
}

fn table(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_string(), path.to_string())),
        _ => Err("expected NAME=PATH".to_string()),
    }
}

fn main() -> ExitCode {
    let done = start(Args::parse());
    exit("embed-sql", done.map_err(|e| Error::find_in(&e).map_or_else(|| e.to_string(), ToString::to_string)))
}

fn start(args: Args) -> Result<ExitCode> {
    let models = args.setup.load()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(DataFusionError::IoError)?;
    runtime.block_on(async {
        let ctx = context(args.cluster.as_deref(), &models).await?;
        for (name, path) in &args.table {
            let path = absolute(path)?;
            ctx.register_parquet(name, path, ParquetReadOptions::default()).await?;
        }
        let result = ctx.sql(&args.sql).await?;
        print(result.to_string().await?)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The path as the nodes of a cluster see it, whose current folder is another. A pattern stays as it is after its folder.
fn absolute(path: &str) -> Result<String> {
    Ok(std::path::absolute(path).map_err(DataFusionError::IoError)?.to_string_lossy().into_owned())
}

async fn context(cluster: Option<&str>, models: &Models) -> Result<SessionContext> {
    match cluster {
        None => {
            let ctx = SessionContext::new_with_config(SessionConfig::new());
            models.register(&ctx);
            Ok(ctx)
        }
        #[cfg(feature = "cluster")]
        Some(url) => candle_attention_datafusion::cluster::connect(url, models, |config| config).await,
        #[cfg(not(feature = "cluster"))]
        Some(_) => datafusion::common::plan_err!("this program was built without its feature `cluster`"),
    }
}
