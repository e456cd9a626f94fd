//! The modules of a sparse encoder's folder: one chain, or one for queries and one for documents.

use std::path::{Path, PathBuf};

use candle_attention::{Error, Result};

use crate::folder::{ModelFolder, Module};
use crate::router::{Routes, routes};
use crate::text::options::Task;

/// A chain of modules that makes sparse vectors of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chain {
    /// A masked language model in `transformer`, pooled as `pooling` states; by default the largest logits.
    Splade { transformer: PathBuf, pooling: Option<PathBuf> },
    /// A weight per token.
    Static { path: PathBuf },
}

/// The chains of a model.
#[derive(Debug)]
pub(crate) struct Layout {
    pub chains: Vec<Chain>,
    /// Which one texts of each task take, and those without a task.
    pub query: Option<usize>,
    pub document: Option<usize>,
    pub default: Option<usize>,
}

impl Layout {
    /// Reads the modules that a folder names. Without `modules.json` the model is a masked language model at the top.
    pub fn load(folder: ModelFolder) -> Result<Self> {
        let Some(Routes { all, default, config }) = routes(folder)? else {
            let chain = Chain::Splade { transformer: folder.path.to_path_buf(), pooling: None };
            return Ok(Self { chains: vec![chain], query: Some(0), document: Some(0), default: Some(0) });
        };
        let file = config.clone().unwrap_or_else(|| folder.path.join("modules.json"));
        let (mut chains, mut names) = (Vec::new(), Vec::new());
        for (name, modules) in &all {
            let kinds: Vec<&str> = modules.iter().map(Module::kind).collect();
            let paths: Vec<PathBuf> = modules.iter().map(|module| folder.path.join(&module.path)).collect();
            chains.push(chain(folder, &file, &kinds, &paths)?);
            names.push(name.as_deref());
        }
        // A model without a router takes texts of all tasks the same way.
        let at = |task: Task| match config {
            Some(_) => names.iter().position(|name| *name == Some(task.name())),
            None => default,
        };
        let (query, document) = (at(Task::Query), at(Task::Document));
        Ok(Self { chains, query, document, default })
    }
}

/// The chain of modules of these kinds, as `file` lists them.
fn chain(folder: ModelFolder, file: &Path, kinds: &[&str], paths: &[PathBuf]) -> Result<Chain> {
    match *kinds {
        [transformer @ ("Transformer" | "MLMTransformer"), "SpladePooling"] => {
            check_task(folder, &paths[0], transformer)?;
            Ok(Chain::Splade { transformer: paths[0].clone(), pooling: Some(paths[1].clone()) })
        }
        ["SparseStaticEmbedding" | "IDF"] => Ok(Chain::Static { path: paths[0].clone() }),
        _ => {
            let expected = "a transformer and `SpladePooling`, or `SparseStaticEmbedding`, for each route";
            Err(Error::file(file, format!("the modules are {}, expected {expected}", kinds.join(", "))))
        }
    }
}

/// `sentence_bert_config.json`.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct TransformerConfig {
    transformer_task: Option<String>,
}

/// Checks that a transformer computes logits. One for hidden states would be pooled by mistake.
fn check_task(folder: ModelFolder, path: &Path, kind: &str) -> Result<()> {
    let file = path.join("sentence_bert_config.json");
    let config: TransformerConfig = folder.json_or_default(&file)?;
    let stated = config.transformer_task.as_deref();
    match stated {
        Some("fill-mask") => Ok(()),
        None if kind == "MLMTransformer" => Ok(()),
        other => {
            let found = other.unwrap_or("feature-extraction");
            Err(Error::file(file, format!("transformer_task is `{found}`, expected `fill-mask` before SpladePooling")))
        }
    }
}
