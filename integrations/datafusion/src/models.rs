//! The models of a process, by name.

use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_attention::ComputeType;
use candle_attention::candle_core::Device;
use candle_attention_text::{CrossEncoder, QuantizationRanges, SentenceEncoder};
use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::SessionContext;

use crate::embed::{Embed, Role};
use crate::error::{Error, Result};
use crate::model::{Model, ModelKey};
use crate::rerank::Rerank;
use crate::similarity::Similarity;
use crate::source::Source;

/// The models that queries can name, each loaded once, on the CPU: in f32 unless they are [added in
/// another](Self::with_compute_type) compute type.
///
/// ```no_run
/// use candle_attention_datafusion::{Models, Source};
/// use datafusion::prelude::SessionContext;
///
/// let mut models = Models::new();
/// models.add("minilm", &Source::from("sentence-transformers/all-MiniLM-L6-v2"))?;
/// models.add("small", &Source::Embedded)?;
/// models.add_reranker("judge", &Source::from("./ms-marco-MiniLM-L6-v2"))?;
/// models.register(&SessionContext::new());
/// # Ok::<(), candle_attention_datafusion::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Models {
    node: String,
    compute_type: ComputeType,
    encoders: Vec<Model>,
    rerankers: Vec<Model<CrossEncoder>>,
}

/// Registers the functions on a session with one model, named `default`: from a folder, a hub id, or `embedded`.
///
/// # Errors
/// A model that cannot be loaded.
pub fn register(ctx: &SessionContext, source: &str) -> Result<()> {
    let mut models = Models::new();
    models.add("default", &source.into())?;
    models.register(ctx);
    Ok(())
}

impl Default for Models {
    fn default() -> Self {
        Self::new()
    }
}

impl Models {
    /// No models.
    pub fn new() -> Self {
        let (node, compute_type) = ("this process".to_string(), ComputeType::default());
        Self { node, compute_type, encoders: Vec::new(), rerankers: Vec::new() }
    }

    /// Sets what models compute in that are added after this: a dtype, or a format of weights in few bits
    /// ([`Quantization`](candle_attention::Quantization)). Before, it is `ComputeType::default()`; the fingerprint of a
    /// model in another one is another one.
    pub fn with_compute_type(mut self, compute_type: impl Into<ComputeType>) -> Self {
        self.compute_type = compute_type.into();
        self
    }

    /// Sets what errors call this process, such as `executor 10.0.0.7:50051`.
    pub fn with_node(mut self, node: impl Into<String>) -> Self {
        self.node = node.into();
        self
    }

    /// Loads a model of embeddings and adds it. The first one is the default of queries that name none.
    ///
    /// A model that is there already under another name is shared, not loaded again.
    ///
    /// # Errors
    /// A name that is there already; a model that cannot be loaded.
    pub fn add(&mut self, name: &str, source: &Source) -> Result<()> {
        let compute_type = self.compute_type;
        let model = load(&self.encoders, name, source, compute_type, |folder| match folder {
            Some(folder) => SentenceEncoder::from_folder(folder, compute_type, &Device::Cpu),
            None => SentenceEncoder::embedded(compute_type, &Device::Cpu),
        })?;
        self.encoders.push(model);
        Ok(())
    }

    /// Loads a cross-encoder for `rerank` and adds it. The first one is the default of queries that name none.
    ///
    /// # Errors
    /// A name that another reranker has; a model that cannot be loaded. The embedded model is not a cross-encoder.
    pub fn add_reranker(&mut self, name: &str, source: &Source) -> Result<()> {
        if *source == Source::Embedded {
            return Err(Error::value(format!("the source of reranker `{name}`"), "`embedded`", "a folder or a hub id"));
        }
        let compute_type = self.compute_type;
        let model = load(&self.rerankers, name, source, compute_type, |folder| {
            CrossEncoder::from_folder(folder.unwrap_or(Path::new("")), compute_type, &Device::Cpu)
        })?;
        self.rerankers.push(model);
        Ok(())
    }

    /// Sets the ranges in which the features of a model have their steps in `int8` and `uint8`.
    ///
    /// # Errors
    /// A name that no model has. Ranges of another size are an error of the query.
    pub fn set_ranges(&mut self, name: &str, ranges: QuantizationRanges) -> Result<()> {
        let unknown = self.unknown("model", name, &self.encoders);
        let model = self.encoders.iter_mut().find(|model| model.name() == name).ok_or(unknown)?;
        model.set_ranges(ranges);
        Ok(())
    }

    /// The model of embeddings with a name, or the default.
    ///
    /// # Errors
    /// [`Error::Unknown`], which lists the names.
    pub fn model(&self, name: Option<&str>) -> Result<&Model> {
        self.find("model", name, &self.encoders)
    }

    /// The reranker with a name, or the default.
    ///
    /// # Errors
    /// [`Error::Unknown`], which lists the names.
    pub fn reranker(&self, name: Option<&str>) -> Result<&Model<CrossEncoder>> {
        self.find("reranker", name, &self.rerankers)
    }

    /// Encodes one text, to find out whether it can be.
    ///
    /// # Errors
    /// A name that no model has; [`Error::Row`], row 0 of 1, if the text cannot be encoded.
    pub fn check_text(&self, role: Role, name: Option<&str>, text: &str) -> Result<()> {
        let encoded = role.encode(self.model(name)?, &[text]);
        encoded.map(drop).map_err(|error| Error::in_row(0, 1, text, &error))
    }

    /// The functions `embed`, `embed_query`, `embed_document`, `similarity` and `rerank` with these models.
    pub fn functions(&self) -> Vec<ScalarUDF> {
        let models = Arc::new(self.clone());
        let embed = |role: Role| ScalarUDF::from(Embed::new(role, models.clone()));
        let mut functions = Role::ALL.map(embed).to_vec();
        functions.push(ScalarUDF::from(Similarity::new()));
        functions.push(ScalarUDF::from(Rerank::new(models)));
        functions
    }

    /// Registers the functions on a session. Functions of the same names are replaced.
    pub fn register(&self, ctx: &SessionContext) {
        self.functions().into_iter().for_each(|function| ctx.register_udf(function));
    }

    /// The error of a model that is not the one of the plan.
    pub(crate) fn check_fingerprint(&self, name: &str, found: String, expected: Option<&str>) -> Result<()> {
        match expected {
            Some(expected) if expected != found => Err(Error::Fingerprint {
                node: self.node.clone(),
                name: name.to_string(),
                found,
                expected: expected.to_string(),
            }),
            _ => Ok(()),
        }
    }

    fn find<'a, T>(&self, kind: &'static str, name: Option<&str>, models: &'a [Model<T>]) -> Result<&'a Model<T>> {
        let named = |model: &&Model<T>| name.is_none_or(|name| model.name() == name);
        models.iter().find(named).ok_or_else(|| self.unknown(kind, name.unwrap_or("default"), models))
    }

    fn unknown<T>(&self, kind: &'static str, name: &str, models: &[Model<T>]) -> Error {
        let names: Vec<String> = models.iter().map(|model| format!("`{}`", model.name())).collect();
        let known = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        Error::Unknown { node: self.node.clone(), kind, name: name.to_string(), known }
    }

    /// What two sets of models have in common if and only if they are equal.
    fn key(&self) -> (&str, Vec<ModelKey<'_>>, Vec<ModelKey<'_>>) {
        (&self.node, self.encoders.iter().map(Model::key).collect(), self.rerankers.iter().map(Model::key).collect())
    }
}

/// The model of a source, or the one among `models` that has its fingerprint.
fn load<T>(
    models: &[Model<T>],
    name: &str,
    source: &Source,
    compute_type: ComputeType,
    open: impl FnOnce(Option<&Path>) -> candle_attention::Result<T>,
) -> Result<Model<T>> {
    if models.iter().any(|model| model.name() == name) {
        return Err(Error::value("the name of a model", format!("`{name}`"), "a name that no other model has"));
    }
    let loaded = || {
        let folder: Option<PathBuf> = source.folder()?;
        let mut fingerprint = Source::fingerprint(folder.as_ref())?;
        if compute_type != ComputeType::default() {
            fingerprint = format!("{fingerprint}-{compute_type}");
        }
        let model = match models.iter().find(|model| model.fingerprint() == fingerprint) {
            Some(same) => same.model().clone(),
            None => Arc::new(open(folder.as_deref())?),
        };
        Ok(Model::new(name, fingerprint, model))
    };
    loaded().map_err(|source| Error::load(name, source))
}

/// By names and fingerprints.
impl PartialEq for Models {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Models {}

impl Hash for Models {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
