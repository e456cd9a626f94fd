//! The modules of a sparse encoder's folder: one chain, or one for queries and one for documents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::encoder::folder::{ModelFolder, Module, any_modules};
use crate::encoder::prompts::Task;
use crate::error::{Error, Result};
use crate::io::json;

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

/// `router_config.json`.
#[derive(serde::Deserialize)]
struct RouterConfig {
    types: BTreeMap<String, String>,
    structure: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    parameters: RouterParameters,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct RouterParameters {
    default_route: Option<String>,
    route_mappings: BTreeMap<String, Value>,
}

/// The most modules of a route: more could only be an error.
const MAX_MODULES: usize = 16;

impl Layout {
    /// Reads the modules that a folder names. Without `modules.json` the model is a masked language model at the top.
    pub fn load(folder: ModelFolder) -> Result<Self> {
        let path = folder.path.join("modules.json");
        let Some(modules) = any_modules(folder)? else {
            let transformer = folder.path.to_path_buf();
            return Ok(Self::one(Chain::Splade { transformer, pooling: None }));
        };
        match modules.iter().map(Module::kind).collect::<Vec<_>>()[..] {
            ["Router" | "Asym"] => Self::routes(&folder.path.join(&modules[0].path)),
            ref kinds => {
                let paths: Vec<PathBuf> = modules.iter().map(|module| folder.path.join(&module.path)).collect();
                Ok(Self::one(chain(folder, &path, kinds, &paths)?))
            }
        }
    }

    fn one(chain: Chain) -> Self {
        Self { chains: vec![chain], query: Some(0), document: Some(0), default: Some(0) }
    }

    /// Reads `router_config.json` of a router in `path`; earlier versions call it `config.json`.
    fn routes(path: &Path) -> Result<Self> {
        let own = path.join("router_config.json");
        let file = if crate::io::is_present(&own)? { own } else { path.join("config.json") };
        let config: RouterConfig = json(&file)?;
        if let Some((mapping, _)) = config.parameters.route_mappings.first_key_value() {
            let reason = format!("route_mappings has `{mapping}`, which this version does not run");
            return Err(Error::file(&file, reason));
        }
        let (mut chains, mut routes): (Vec<Chain>, BTreeMap<&str, usize>) = (Vec::new(), BTreeMap::new());
        for (route, names) in &config.structure {
            if names.len() > MAX_MODULES {
                return Err(Error::file(&file, format!("{} modules in route `{route}`", names.len())));
            }
            let kind = |name: &String| {
                let class = config.types.get(name).map(|class| class.rsplit('.').next().unwrap_or(class));
                class.filter(|_| is_plain(name)).ok_or_else(|| Error::file(&file, format!("no module `{name}`")))
            };
            let kinds = names.iter().map(kind).collect::<Result<Vec<_>>>()?;
            let paths: Vec<PathBuf> = names.iter().map(|name| path.join(name)).collect();
            let made = chain(ModelFolder::new(path), &file, &kinds, &paths)?;
            let known = chains.iter().position(|chain| *chain == made);
            routes.insert(route, known.unwrap_or(chains.len()));
            if known.is_none() {
                chains.push(made);
            }
        }
        let at = |name: &str| routes.get(name).copied();
        let default = match &config.parameters.default_route {
            Some(name) => {
                let known = || Error::file(&file, format!("default_route is `{name}`, which is no route"));
                Some(at(name).ok_or_else(known)?)
            }
            None => None,
        };
        let (query, document) = (at(Task::Query.name()), at(Task::Document.name()));
        Ok(Self { chains, query, document, default })
    }
}

/// Whether a name of a module is the name of a folder, and not a path that leads elsewhere.
fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(_)), None))
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
