//! `SparseEncoder`: sparse embeddings, a weight for tokens of the vocabulary.

pub(crate) mod splade;
mod static_weights;
pub(crate) mod vector;

use std::path::Path;

use candle_attention::{Error, Result};
use candle_core::DType;

use crate::constructors::constructors;
use crate::folder::{FEATURES, ModelFolder, ModelSource, Module, TransformerSettings};
use crate::heads::kinds::MaskedLm;
use crate::prompts::Prompts;
use crate::router::{Routes, routes};
use crate::sparse::splade::SpladePooling;
use crate::sparse::static_weights::StaticWeights;
use crate::sparse::vector::SparseVector;
use crate::text::batches::TextBatcher;
use crate::text::options::{EncodeOptions, Task, check_finite};

/// Sparse embeddings as the `SparseEncoder` of sentence-transformers computes them: SPLADE ([Formal
/// 2021](https://arxiv.org/abs/2109.10086)), a masked language model whose logits are pooled; and models that read the
/// weights of a query's tokens from a table (inference-free, [Geng 2024](https://arxiv.org/abs/2411.04403)).
///
/// ```no_run
/// use candle_attention_text::{EncodeOptions, SparseEncoder};
/// use candle_core::{DType, Device};
/// let encoder = SparseEncoder::from_folder("splade-cocondenser-ensembledistil", DType::F32, &Device::Cpu)?;
/// let query = encoder.encode_query(&["Who sleeps?"], &EncodeOptions::default())?;
/// let documents = encoder.encode_document(&["A cat sleeps.", "Stocks fell."], &EncodeOptions::default())?;
/// println!("{:?} {:?}", encoder.similarity(&query, &documents)?, encoder.decode(&documents[0], 10));
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SparseEncoder {
    /// The routes, each with its name in the router.
    routes: Vec<(Option<String>, Route)>,
    /// The index of the route of texts without a task.
    default: Option<usize>,
    /// Whether texts of a task take the route of its name.
    has_router: bool,
    prompts: Prompts,
    settings: Settings,
}

/// A route from texts to sparse vectors.
#[derive(Debug, Clone)]
enum Route {
    Splade(Box<Splade>),
    Static(StaticWeights),
}

/// A masked language model, and how its logits are pooled.
#[derive(Debug, Clone)]
struct Splade {
    head: MaskedLm,
    batcher: TextBatcher,
    pooling: SpladePooling,
}

/// Keys of `config_sentence_transformers.json`.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(default)]
struct Settings {
    max_active_dims: Option<usize>,
    similarity_fn_name: Option<String>,
}

impl SparseEncoder {
    constructors! {
        /// The model of a folder as sentence-transformers saves it, or of a masked language model as transformers saves
        /// it, whose logits are then pooled by their maximum.
        ///
        /// # Errors
        /// A file that is missing or malformed; a model, module or tensor that this version cannot run, such as a
        /// sparse autoencoder.
        from_folder, from_files, from_hub;
    }

    fn open(source: ModelSource) -> Result<Self> {
        let folder = source.folder;
        let settings: Settings = folder.json_or_default(&folder.path.join("config_sentence_transformers.json"))?;
        let stated = routes(folder)?;
        let (default, has_router) =
            stated.as_ref().map_or((Some(0), false), |routes| (routes.default, routes.config.is_some()));
        let routes = match stated {
            // A masked language model at the top.
            None => vec![(None, Route::splade(source, folder.path, SpladePooling::default())?)],
            Some(Routes { all, config, .. }) => {
                let file = config.unwrap_or_else(|| folder.path.join("modules.json"));
                let load =
                    |(name, modules): (Option<String>, Vec<Module>)| Ok((name, Route::load(source, &modules, &file)?));
                all.into_iter().map(load).collect::<Result<_>>()?
            }
        };
        let encoder = Self { routes, default, has_router, prompts: Prompts::load(folder)?, settings };
        encoder.check_max_active_dims()?;
        Ok(encoder)
    }

    /// Sets how many entries of a vector are kept, the largest; `None` keeps all. By default, what the model states.
    ///
    /// # Errors
    /// 0 entries.
    pub fn with_max_active_dims(mut self, max_active_dims: Option<usize>) -> Result<Self> {
        self.settings.max_active_dims = max_active_dims;
        self.check_max_active_dims()?;
        Ok(self)
    }

    fn check_max_active_dims(&self) -> Result<()> {
        match self.settings.max_active_dims {
            Some(0) => Err(Error::config("max_active_dims", 0, "at least 1")),
            _ => Ok(()),
        }
    }

    /// The size of the vectors, zeros included: the number of tokens of the vocabulary.
    pub fn embedding_size(&self) -> usize {
        match &self.routes[0].1 {
            Route::Splade(splade) => splade.head.model().config().vocab_size,
            Route::Static(table) => table.weights.len(),
        }
    }

    /// The vector of each text, by the default route of a model with several.
    ///
    /// # Errors
    /// A batch size of 0; a maximum length beyond the positions of the model; a prompt that the model does not have; a
    /// token that the model does not have; a model without a default route; [`Error::NotFinite`] for the first text
    /// whose vector is not finite.
    pub fn encode(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<SparseVector>> {
        self.run(texts, options, None)
    }

    /// [`encode`](Self::encode) for texts that search: with the model's prompt and route `query`, unless the options
    /// name another prompt.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_query(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<SparseVector>> {
        self.run(texts, options, Some(Task::Query))
    }

    /// [`encode`](Self::encode) for texts that are searched: with the model's prompt and route `document`, unless the
    /// options name another prompt.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_document(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<SparseVector>> {
        self.run(texts, options, Some(Task::Document))
    }

    /// How similar vectors are, each with each: by their dot product, or by their cosine if the model states that.
    ///
    /// # Errors
    /// A model that states another similarity.
    pub fn similarity(&self, queries: &[SparseVector], documents: &[SparseVector]) -> Result<Vec<Vec<f32>>> {
        let similarity: fn(&SparseVector, &SparseVector) -> f32 = match self.settings.similarity_fn_name.as_deref() {
            None | Some("dot" | "dot_score") => SparseVector::dot,
            // `normalize` of PyTorch divides by at least 1e-12.
            Some("cosine" | "cos_sim") => |a, b| a.dot(b) / (a.norm().max(1e-12) * b.norm().max(1e-12)),
            Some(other) => return Err(Error::config("similarity_fn_name", other, "dot or cosine")),
        };
        let scores = |a: &SparseVector| documents.iter().map(|b| similarity(a, b)).collect();
        Ok(queries.iter().map(scores).collect())
    }

    /// The tokens of the largest entries of a vector, at most `top_k`, the largest first.
    pub fn decode(&self, vector: &SparseVector, top_k: usize) -> Vec<(String, f32)> {
        let route = self.route_for(Some(Task::Document)).or(self.default).unwrap_or(0);
        let tokenizer = match &self.routes[route].1 {
            Route::Splade(splade) => &splade.batcher.tokenizer,
            Route::Static(weights) => &weights.tokenizer,
        };
        let mut entries: Vec<(u32, f32)> = vector.indices.iter().copied().zip(vector.values.iter().copied()).collect();
        entries.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        entries.truncate(top_k);
        entries.into_iter().map(|(id, value)| (tokenizer.token(id).unwrap_or_default(), value)).collect()
    }

    /// The index of the route of texts of a task. A model without a router has one route for all tasks.
    fn route_for(&self, task: Option<Task>) -> Option<usize> {
        match task.filter(|_| self.has_router) {
            Some(task) => self.routes.iter().position(|(name, _)| name.as_deref() == Some(task.name())),
            None => self.default,
        }
    }

    fn run(&self, texts: &[&str], options: &EncodeOptions, task: Option<Task<'static>>) -> Result<Vec<SparseVector>> {
        let (options, default_task) = &options.split_task()?;
        let resolved_task = task.or(*default_task);
        let Some(route) = self.route_for(resolved_task) else {
            let name = resolved_task.map_or("default", Task::name);
            return Err(Error::value("the route of the texts", name, "one that the model's router has"));
        };
        let route = &self.routes[route].1;
        let prompt = self.prompts.choose(options, task)?;
        let most = self.settings.max_active_dims;
        let (vectors, dtype) = match route {
            Route::Static(weights) => (weights.encode(texts, prompt, options, most)?, DType::F32),
            Route::Splade(splade) => (splade.encode(texts, prompt, options, most)?, splade.batcher.dtype),
        };
        let is_finite = |i: usize| Ok(vectors[i].values.iter().all(|value: &f32| value.is_finite()));
        check_finite("the embedding", texts, dtype, is_finite)?;
        Ok(vectors)
    }
}

impl Route {
    /// Loads a chain of modules, as `file` lists them.
    fn load(source: ModelSource, modules: &[Module], file: &Path) -> Result<Self> {
        let folder = source.folder;
        let kinds: Vec<&str> = modules.iter().map(Module::kind).collect();
        let path = |module: usize| folder.path.join(&modules[module].path);
        match kinds[..] {
            [transformer @ ("Transformer" | "MLMTransformer"), "SpladePooling"] => {
                check_task(folder, &path(0), transformer)?;
                Self::splade(source, &path(0), folder.json(&path(1).join("config.json"))?)
            }
            ["SparseStaticEmbedding" | "IDF"] => Ok(Self::Static(StaticWeights::load(folder, &path(0))?)),
            _ => {
                let expected = "a transformer and `SpladePooling`, or `SparseStaticEmbedding`, for each route";
                Err(Error::file(file, format!("the modules are {}, expected {expected}", kinds.join(", "))))
            }
        }
    }

    /// A masked language model, pooled so.
    fn splade(source: ModelSource, transformer: &Path, pooling: SpladePooling) -> Result<Self> {
        let config = source.folder.transformer_config(transformer)?;
        let head = MaskedLm::load(&config, source.weights(transformer)?)?;
        let batcher = TextBatcher::load(source.folder, transformer, head.model())?;
        Ok(Self::Splade(Box::new(Splade { head, batcher, pooling })))
    }
}

impl Splade {
    fn encode(
        &self,
        texts: &[&str],
        prompt: &str,
        options: &EncodeOptions,
        max_active_dims: Option<usize>,
    ) -> Result<Vec<SparseVector>> {
        let model = self.head.model();
        self.batcher.batches(model, texts, prompt, options)?.in_text_order(|batch| {
            let hidden = self.batcher.hidden(model, &batch.tokens)?;
            let pooled = self.pooling.pool(&hidden, model.config().vocab_size, |xs| self.head.logits(xs))?;
            Ok(pooled.iter().map(|dense| SparseVector::from_dense(dense, max_active_dims)).collect())
        })
    }
}

/// Checks that a transformer computes logits. One for hidden states would be pooled by mistake.
fn check_task(folder: ModelFolder, path: &Path, kind: &str) -> Result<()> {
    const LOGITS: &str = "fill-mask";
    let default = if kind == "MLMTransformer" { LOGITS } else { FEATURES };
    let settings = TransformerSettings::load(folder, path)?;
    settings.check_task(LOGITS, default)?;
    settings.check_no_expansion()
}
