//! `embed`: a column of text embeddings for Parquet files, in this process or on a Ballista cluster.

mod args;
mod failure;
mod inputs;
mod job;
mod locate;
mod outputs;
mod progress;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use candle_attention_datafusion::program::{exit, note, print};
use candle_attention_datafusion::{Models, Role, encoding_totals, interrupted, read_ranges};
use clap::Parser;
use datafusion::prelude::{SessionConfig, SessionContext};
use tempfile::TempDir;

use crate::args::Args;
use crate::failure::{Failure, Result};
use crate::job::{Job, Run, run_all};
use crate::outputs::{Existing, Origin, existing, unfinished_folder};
use crate::progress::Progress;

/// The exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    exit("embed", start(Args::parse()))
}

fn start(args: Args) -> Result<ExitCode> {
    if let Some(threads) = args.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global().map_err(Failure::new)?;
    }
    let at_a_time = args.jobs.map_or(if args.cluster.is_some() { 8 } else { 2 }, |jobs| jobs.get());
    // Jobs block their threads while a batch is encoded.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(at_a_time + 1)
        .enable_all()
        .build()
        .map_err(Failure::new)?;
    let code = runtime.block_on(embed(args, at_a_time));
    // A thread that still encodes is not waited for: nothing of it is needed.
    runtime.shutdown_background();
    code
}

async fn embed(args: Args, at_a_time: usize) -> Result<ExitCode> {
    let models = load(&args)?;
    let (jobs, kept) = plan(&args, &models)?;
    let ctx = context(&args, &models).await?;
    let folder = unfinished_folder(&args.output)?;
    let started = Instant::now();
    let progress = Progress::new(jobs.len() as u64, jobs.iter().map(|job| job.input.rows).sum());
    let files = jobs.len();
    let run = Arc::new(Run {
        ctx,
        url: args.cluster.clone(),
        models,
        model: args.model.name.clone(),
        role: args.role.into(),
        retries: args.retries,
        folder: folder.path().to_path_buf(),
        progress,
        #[cfg(feature = "cluster")]
        submitted: Default::default(),
    });
    let before = encoding_totals().time;
    let done = tokio::select! {
        done = run_all(run.clone(), jobs, at_a_time) => Some(done),
        signal = interrupted() => match signal {
            Ok(()) => None,
            Err(error) => Some(Err(Failure::new(error))),
        },
    };
    run.progress.clear();
    if !matches!(done, Some(Ok(_))) {
        cancel(&run).await;
    }
    remove(folder);
    let Some(done) = done else {
        note("embed: interrupted; the same command goes on with the files that are not finished");
        return Ok(ExitCode::from(INTERRUPTED));
    };
    let (texts, seconds) = (done?, started.elapsed().as_secs_f64());
    let encoder = match args.cluster {
        Some(_) => "unknown".to_string(),
        None => format!("{:.3}", (encoding_totals().time - before).as_secs_f64()),
    };
    print(format_args!(
        "texts: {texts}, seconds: {seconds:.3}, encoder seconds: {encoder}, files: {files}, kept: {kept}"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The model that the command names.
fn load(args: &Args) -> Result<Models> {
    let mut models = Models::new().with_compute_type(args.dtype);
    models.add(&args.model.name, &args.model.source)?;
    if let Some(ranges) = &args.ranges {
        models.set_ranges(&args.model.name, read_ranges(ranges)?)?;
    }
    Ok(models)
}

/// The files to be made, and the number of those that are finished.
fn plan(args: &Args, models: &Models) -> Result<(Vec<Job>, usize)> {
    let fingerprint = models.model(Some(&args.model.name))?.fingerprint_for(args.precision)?;
    let (mut jobs, mut kept, mut names) = (Vec::new(), 0, BTreeMap::new());
    for path in inputs::find(&args.input)? {
        let name = path.file_name().unwrap_or_default().to_os_string();
        if let Some(other) = names.insert(name.clone(), path.clone()) {
            let reason = format!("has the name of {}, and both would be the same output file", other.display());
            return Err(Failure::at(&path, reason));
        }
        let input = inputs::open(path, &args.column, &args.output_column)?;
        let origin = Origin {
            version: 1,
            input_sha256: input.sha256.clone(),
            column: args.column.clone(),
            output_column: args.output_column.clone(),
            function: Role::from(args.role).function().to_string(),
            fingerprint: fingerprint.clone(),
            precision: args.precision.to_string(),
        };
        let output = args.output.join(name);
        match existing(&output, &origin)? {
            Existing::Finished => kept += 1,
            Existing::Other if !args.overwrite => {
                let reason =
                    "was made of another input, with another model or other settings; --overwrite makes it again";
                return Err(Failure::at(&output, reason));
            }
            found => jobs.push(Job { number: jobs.len(), input, output, origin, replace: found == Existing::Other }),
        }
    }
    Ok((jobs, kept))
}

/// The session that runs the queries: a file is read from its beginning to its end, and its types stay as they are.
async fn context(args: &Args, models: &Models) -> Result<SessionContext> {
    let batch_rows = args.batch_rows.get();
    let set = move |config: SessionConfig| {
        config
            .with_target_partitions(1)
            .with_batch_size(batch_rows)
            .set_bool("datafusion.execution.parquet.schema_force_view_types", false)
            .set_bool("datafusion.execution.parquet.skip_metadata", false)
    };
    match &args.cluster {
        None => {
            let ctx = SessionContext::new_with_config(set(SessionConfig::new()));
            models.register(&ctx);
            Ok(ctx)
        }
        #[cfg(feature = "cluster")]
        Some(url) => candle_attention_datafusion::cluster::connect(url, models, set)
            .await
            .map_err(|e| Failure::new(format!("--cluster {url}: {e}"))),
        #[cfg(not(feature = "cluster"))]
        Some(url) => {
            Err(Failure::new(format!("--cluster {url}: this program was built without its feature `cluster`")))
        }
    }
}

/// Ends the queries that still run on a cluster.
#[cfg(feature = "cluster")]
async fn cancel(run: &Run) {
    let submitted: Vec<_> = run.submitted.lock().unwrap_or_else(|e| e.into_inner()).values().cloned().collect();
    for query in submitted {
        if let Err(error) = query.cancel().await {
            note(format_args!("embed: {error}"));
        }
    }
}

#[cfg(not(feature = "cluster"))]
async fn cancel(_: &Run) {}

/// Removes the folder of unfinished files.
fn remove(folder: TempDir) {
    let path = folder.path().to_path_buf();
    if let Err(error) = folder.close() {
        note(format_args!("embed: {}: {error}", path.display()));
    }
}
