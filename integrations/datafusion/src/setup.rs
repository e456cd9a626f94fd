//! Options that the programs have in common, and waiting for Ctrl-C.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use candle_attention::ComputeType;
use clap::Args;

use crate::error::{Error, Result};
use crate::models::Models;
use crate::precision::read_ranges;
use crate::program::threads;
use crate::source::NamedSource;

/// The models of a program, as its command line names them.
#[derive(Args, Debug, Clone)]
#[non_exhaustive]
pub struct Setup {
    /// A model of embeddings: a folder, a hub id, or `embedded`, whose name is `default` unless given; may be given more
    /// than once, the first is the default of queries [default: embedded]
    #[arg(long, value_name = "[NAME=]SOURCE")]
    pub model: Vec<NamedSource>,

    /// A cross-encoder for `rerank`; may be given more than once
    #[arg(long, value_name = "[NAME=]SOURCE")]
    pub reranker: Vec<NamedSource>,

    /// Ranges of a model's features for int8 and uint8, as JSON: [[least, …], [largest, …]]
    #[arg(long, value_name = "NAME=FILE", value_parser = named_file)]
    pub ranges: Vec<(String, PathBuf)>,

    /// What models compute in: f32, f64, f16 or bf16; or with weights in few bits: int8, q8_0 or q4_0; auto is f32,
    /// with weights that are stored in few bits as they are
    #[arg(long, default_value_t, value_name = "DTYPE")]
    pub dtype: ComputeType,

    /// The number of threads of the encoder [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<NonZeroUsize>,
}

fn named_file(text: &str) -> std::result::Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => Ok((name.to_string(), file.into())),
        _ => Err("expected NAME=FILE".to_string()),
    }
}

impl Setup {
    /// Loads the models, and sets the number of threads of the encoder, which can be done once in a process.
    ///
    /// # Errors
    /// A model or a file that cannot be loaded; a name that is there twice.
    pub fn load(&self) -> Result<Models> {
        if let Some(threads) = self.threads {
            let built = rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global();
            built.map_err(|e| Error::value("the number of threads", threads, e.to_string()))?;
        }
        let mut models = Models::new().with_compute_type(self.dtype);
        if self.model.is_empty() {
            models.add("default", &"embedded".into())?;
        }
        for NamedSource { name, source } in &self.model {
            models.add(name, source)?;
        }
        for NamedSource { name, source } in &self.reranker {
            models.add_reranker(name, source)?;
        }
        for (name, file) in &self.ranges {
            models.set_ranges(name, read_ranges(file)?)?;
        }
        Ok(models)
    }
}

/// Waits for Ctrl-C or, on Unix, SIGTERM.
///
/// # Errors
/// If the operating system does not let this process wait for signals.
pub async fn interrupted() -> std::io::Result<()> {
    #[cfg(unix)]
    {
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            pressed = tokio::signal::ctrl_c() => pressed,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}
