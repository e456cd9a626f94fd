//! The work on one file: a query over it, whose batches are written as they come.

#[cfg(feature = "cluster")]
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(feature = "cluster")]
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "cluster")]
use candle_attention_datafusion::cluster::Submitted;
use candle_attention_datafusion::{Models, Role};
use datafusion::arrow::array::Array;
use datafusion::common::{Column, DataFusionError};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{Expr, lit};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionContext};
use futures::StreamExt;
use url::Url;

use crate::failure::{Failure, Result};
use crate::inputs::Input;
use crate::locate::{explain, is_final};
use crate::outputs::{Origin, Unfinished};
use crate::progress::Progress;

/// A file to be made.
pub struct Job {
    pub number: usize,
    pub input: Input,
    pub output: PathBuf,
    pub origin: Origin,
    /// Whether a file of this program is replaced.
    pub replace: bool,
}

/// What all jobs share.
pub struct Run {
    pub ctx: SessionContext,
    /// The scheduler.
    pub url: Option<String>,
    pub models: Models,
    pub model: String,
    pub role: Role,
    pub retries: usize,
    /// The folder of unfinished files.
    pub folder: PathBuf,
    pub progress: Progress,
    /// The queries that run on a cluster, by the number of their jobs.
    #[cfg(feature = "cluster")]
    pub submitted: Mutex<HashMap<usize, Submitted>>,
}

/// Why a file was not made.
enum Trouble {
    Failure(Failure),
    /// An error of the query, which may be one of the cluster; with the number of rows that were written.
    Query(DataFusionError, u64),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl Run {
    /// Makes a file, in several attempts if the cluster fails. Returns the number of texts that are not null.
    pub async fn make(&self, job: &Job) -> Result<u64> {
        let mut attempts = if self.url.is_some() { self.retries } else { 0 };
        loop {
            match self.attempt(job).await {
                Ok(texts) => {
                    self.progress.add_file();
                    return Ok(texts);
                }
                Err(Trouble::Failure(failure)) => return Err(failure),
                Err(Trouble::Query(error, rows)) => {
                    self.progress.take_back(rows);
                    if attempts == 0 || is_final(&error) {
                        return Err(explain(self, job, &error));
                    }
                    attempts -= 1;
                    self.progress.line(&format!("{}: begun again after: {error}", job.input.path.display()));
                }
            }
        }
    }

    async fn attempt(&self, job: &Job) -> std::result::Result<u64, Trouble> {
        let of_query = |error| Trouble::Query(error, 0);
        let plan = self.query(job).await.map_err(of_query)?.create_physical_plan().await.map_err(of_query)?;
        #[cfg(feature = "cluster")]
        if let Some(url) = &self.url {
            let mut submitted = self.submitted.lock().unwrap_or_else(PoisonError::into_inner);
            submitted.insert(job.number, Submitted::new(url, plan.clone()));
        }
        let mut batches = execute_stream(plan, self.ctx.task_ctx()).map_err(of_query)?;
        let mut file = Unfinished::create(&self.folder, job.number, batches.schema())?;
        let mut texts = 0;
        while let Some(batch) = batches.next().await {
            let batch = batch.map_err(|error| Trouble::Query(error, file.rows))?;
            texts += batch.columns().last().map_or(0, |column| column.len() - column.null_count()) as u64;
            file.write(&batch)?;
            self.progress.add_rows(batch.num_rows() as u64);
        }
        if file.rows != job.input.rows {
            let reason = format!("the query gave {} rows of {}", file.rows, job.input.rows);
            return Err(Trouble::Query(DataFusionError::Execution(reason), file.rows));
        }
        file.finish(&job.output, &job.origin, job.replace)?;
        #[cfg(feature = "cluster")]
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner).remove(&job.number);
        Ok(texts)
    }

    /// All columns of the file, and the embeddings.
    async fn query(&self, job: &Job) -> datafusion::common::Result<DataFrame> {
        // As a URL, because a path may have characters of patterns.
        let url = Url::from_file_path(&job.input.path)
            .map_err(|()| DataFusionError::Execution("not an absolute path".to_string()))?;
        let extension = job.input.path.extension().map_or(String::new(), |name| format!(".{}", name.to_string_lossy()));
        let options = ParquetReadOptions { file_extension: &extension, ..ParquetReadOptions::default() };
        let frame = self.ctx.read_parquet(url.as_str(), options).await?;
        let column = |name: &str| Expr::Column(Column::from_name(name));
        let mut columns: Vec<Expr> = frame.schema().fields().iter().map(|field| column(field.name())).collect();
        let embed = self.ctx.udf(self.role.function())?;
        let arguments = vec![column(&job.origin.column), lit(&self.model), lit(&job.origin.precision)];
        columns.push(embed.call(arguments).alias(&job.origin.output_column));
        frame.select(columns)
    }
}

/// Runs jobs, `at_a_time` of them together, until all are done or one fails. Returns the number of texts.
pub async fn run_all(run: Arc<Run>, jobs: Vec<Job>, at_a_time: usize) -> Result<u64> {
    let (mut waiting, mut running) = (jobs.into_iter(), tokio::task::JoinSet::new());
    let mut texts = 0;
    loop {
        while running.len() < at_a_time
            && let Some(job) = waiting.next()
        {
            let run = run.clone();
            running.spawn(async move { run.make(&job).await });
        }
        match running.join_next().await {
            None => return Ok(texts),
            Some(Ok(made)) => texts += made?,
            Some(Err(panic)) => return Err(Failure::new(panic)),
        }
    }
}
