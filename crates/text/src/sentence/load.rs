//! Reads the folder of a sentence encoder: its modules, route by route, and its settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::AnySource;
use candle_attention::ensure;
use candle_attention::{Error, Result};
use serde::Deserialize;

use crate::folder::{FEATURES, ModelFolder, ModelSource, Module, TransformerSettings, yes};
use crate::gguf::check_embeds;
use crate::model::config::TextModelConfig;
use crate::model::pooling::{Pooling, PoolingMode};
use crate::model::text_model::TextModel;
use crate::prompts::Prompts;
use crate::router::{Routes, routes};
use crate::sentence::adapters::{Adapters, adapted_folder};
use crate::sentence::modules::Modules;
use crate::sentence::similarity::SimilarityFunction;
use crate::sentence::static_embedding::{StaticEmbedding, model2vec};
use crate::sentence::transformer::{Input, Transformer};
use crate::text::batches::TextBatcher;
use crate::text::chat_template::ChatTemplate;

/// The modules of a route, loaded. A model without a router has one, without a name.
pub(super) struct Route {
    pub name: Option<String>,
    pub input: Input,
    pub modules: Modules,
}

/// Where the weights of transformers come from.
pub(super) enum Weights<'a> {
    /// The folder of the model.
    Folder,
    /// Any source, for the only transformer; `None` once it has them.
    Given(Option<AnySource<'a>>),
}

/// Loads the modules of a folder. Modules that several routes share are loaded once.
pub(super) struct Loader<'a> {
    source: ModelSource<'a>,
    weights: Weights<'a>,
    transformers: BTreeMap<PathBuf, (TextModel, Adapters, TextBatcher)>,
    tables: BTreeMap<PathBuf, StaticEmbedding>,
}

impl<'a> Loader<'a> {
    /// Compute type and device of `source` are those of the folder's weights.
    pub fn new(source: ModelSource<'a>, weights: Weights<'a>) -> Self {
        Self { source, weights, transformers: BTreeMap::new(), tables: BTreeMap::new() }
    }

    /// The transformer in a folder.
    fn model(&mut self, path: &Path) -> Result<(TextModel, Adapters)> {
        let ModelSource { folder, .. } = self.source;
        if let Weights::Given(source) = &mut self.weights {
            let second = || Error::file(path, "is a second transformer, expected one, which takes the weights");
            let source = source.take().ok_or_else(second)?;
            return Ok((TextModel::load_from(&folder.transformer_config(path)?, &source)?, Adapters::default()));
        }
        if let Some((config, source)) = adapted_folder(self.source, path)? {
            return Ok((TextModel::load(&config, source)?, Adapters::default()));
        }
        let config = folder.transformer_config(path)?;
        let source = self.source.weights(path)?;
        let adapters = Adapters::new(&source, &config)?;
        Ok((TextModel::load(&config, source)?, adapters))
    }

    /// The routes of the folder, and the index of the default one, if there is one.
    pub fn load(mut self) -> Result<(Vec<Route>, Option<usize>)> {
        let folder = self.source.folder;
        folder.gguf().map_or(Ok(()), |file| check_embeds(&file))?;
        let Some(Routes { all, default, .. }) = routes(folder)? else {
            let alone = match model2vec(folder)? {
                Some(normalize) => self.bare_table(normalize)?,
                None => self.route(None, &[])?,
            };
            return Ok((vec![alone], Some(0)));
        };
        let loaded = all.into_iter().map(|(name, modules)| self.route(name, &modules)).collect::<Result<_>>()?;
        Ok((loaded, default))
    }

    /// A folder of model2vec without `modules.json`.
    fn bare_table(&mut self, normalize: bool) -> Result<Route> {
        let table = self.table(self.source.folder.path)?;
        let modules = if normalize { Modules::normalize() } else { Modules::default() };
        Ok(Route { name: None, input: Input::Static(table), modules })
    }

    /// The route of a list of modules; of none, a transformer at the top whose tokens are averaged.
    fn route(&mut self, name: Option<String>, modules: &[Module]) -> Result<Route> {
        let folder = self.source.folder;
        let path = folder.path.join(modules.first().map_or("", |module| &module.path));
        let rest: Vec<&Module> = modules.iter().skip(1).collect();
        let (input, rest) = match modules.first().map(Module::kind) {
            None | Some("Transformer") => self.transformer(&path, &rest, modules.is_empty())?,
            Some("StaticEmbedding") => (Input::Static(self.table(&path)?), rest),
            Some(other) => {
                let reason = format!("the first module is `{other}`, expected `Transformer` or `StaticEmbedding`");
                return Err(Error::file(folder.path.join("modules.json"), reason));
            }
        };
        let modules = Modules::load(folder, &rest, input.output_size(), input.device())?;
        Ok(Route { name, input, modules })
    }

    /// The transformer of a folder with its pooling, which is among the modules, and the modules that remain. `bare`:
    /// the folder lists no modules.
    fn transformer<'m>(&mut self, path: &Path, modules: &[&'m Module], bare: bool) -> Result<(Input, Vec<&'m Module>)> {
        let folder = self.source.folder;
        if ChatTemplate::load(folder, path, !bare)?.is_some() {
            let reason = "its texts go through a chat template, which this version does for cross-encoders alone";
            return Err(Error::file(path, reason));
        }
        let (model, adapters, batcher) = match self.transformers.get(path) {
            Some(loaded) => loaded.clone(),
            None => {
                let settings = TransformerSettings::load(folder, path)?;
                settings.check_task(FEATURES, FEATURES)?;
                settings.check_no_expansion()?;
                let (model, adapters) = self.model(path)?;
                let batcher = TextBatcher::load(folder, path, &model)?;
                let loaded = (model, adapters, batcher);
                self.transformers.insert(path.to_path_buf(), loaded.clone());
                loaded
            }
        };
        // Nothing that works on embeddings is before pooling; without pooling, tokens are averaged.
        let mut rest: Vec<&Module> = modules.iter().copied().skip_while(|module| module.kind() == "Dropout").collect();
        let (mut modes, mut include_prompt) = (vec![default_mode(model.config(), bare)?], true);
        if rest.first().is_some_and(|module| module.kind() == "Pooling") {
            let file = folder.path.join(&rest.remove(0).path).join("config.json");
            let config: PoolingConfig = folder.json(&file)?;
            include_prompt = config.include_prompt;
            modes = config.modes().map_err(|e| Error::file(file, e))?;
        } else if let Some(module) = rest.first() {
            let reason = format!("module `{}` at this place is not one this version runs", module.kind());
            return Err(Error::file(folder.path.join("modules.json"), reason));
        }
        let pooling = Pooling::new(modes)?;
        Ok((Input::Transformer(Box::new(Transformer { model, batcher, pooling, include_prompt, adapters })), rest))
    }

    /// The static embedding of a folder.
    fn table(&mut self, path: &Path) -> Result<StaticEmbedding> {
        if let Some(loaded) = self.tables.get(path) {
            return Ok(loaded.clone());
        }
        let table = StaticEmbedding::load(self.source, path)?;
        self.tables.insert(path.to_path_buf(), table.clone());
        Ok(table)
    }
}

/// How tokens are pooled where no module says it: by their mean or, of a language model that sees earlier tokens alone
/// and lists no modules, by the last one.
fn default_mode(config: &TextModelConfig, bare: bool) -> Result<PoolingMode> {
    let is_causal = bare && config.is_language_model() && config.key_flag("is_causal")? != Some(false);
    Ok(if is_causal { PoolingMode::LastToken } else { PoolingMode::Mean })
}

/// `config.json` of a pooling module.
#[derive(serde::Deserialize)]
struct PoolingConfig {
    pooling_mode: Option<serde_json::Value>,
    /// Whether pooling includes the tokens of a prompt.
    #[serde(default = "yes")]
    include_prompt: bool,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

/// The most pooling modes: each makes an embedding longer by the width of the model. Six modes exist.
const MAX_POOLING_MODES: usize = 16;

/// The boolean keys of earlier versions, in the order in which their vectors are concatenated.
const POOLING_KEYS: [(&str, PoolingMode); 6] = [
    ("pooling_mode_cls_token", PoolingMode::Cls),
    ("pooling_mode_max_tokens", PoolingMode::Max),
    ("pooling_mode_mean_tokens", PoolingMode::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", PoolingMode::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", PoolingMode::WeightedMean),
    ("pooling_mode_lasttoken", PoolingMode::LastToken),
];

/// The mode of this name.
fn named_mode(name: &serde_json::Value) -> Result<PoolingMode> {
    let allowed = "cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken, or a list of them";
    PoolingMode::deserialize(name).map_err(|_| Error::config("pooling_mode", name, allowed))
}

impl PoolingConfig {
    /// The modes, in the order in which their vectors are concatenated.
    fn modes(&self) -> Result<Vec<PoolingMode>> {
        const SIZES: [&str; 2] = ["embedding_dimension", "word_embedding_dimension"];
        let is_known =
            |key: &&String| SIZES.contains(&key.as_str()) || POOLING_KEYS.iter().any(|(name, _)| name == key);
        if let Some(key) = self.others.keys().find(|key| !is_known(key)) {
            return Err(Error::value("a key of the pooling module", key, "one of a mode that this version knows"));
        }
        let modes = match &self.pooling_mode {
            Some(serde_json::Value::Array(modes)) => modes.iter().map(named_mode).collect::<Result<_>>()?,
            Some(mode) => vec![named_mode(mode)?],
            None => {
                let mut modes = Vec::new();
                for (key, mode) in POOLING_KEYS {
                    match self.others.get(key) {
                        Some(serde_json::Value::Bool(true)) => modes.push(mode),
                        None | Some(serde_json::Value::Bool(false) | serde_json::Value::Null) => {}
                        Some(other) => return Err(Error::config(key, other, "true or false")),
                    }
                }
                if modes.is_empty() { vec![PoolingMode::Mean] } else { modes }
            }
        };
        if modes.len() > MAX_POOLING_MODES {
            let found = format!("{} modes", modes.len());
            return Err(Error::config("pooling_mode", found, format!("at most {MAX_POOLING_MODES}")));
        }
        Ok(modes)
    }
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct SettingsFile {
    similarity_fn_name: Option<String>,
    truncate_dim: Option<usize>,
}

/// `config_sentence_transformers.json`: prompts, the similarity of embeddings, and their size.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    pub prompts: Prompts,
    /// Cosine where the file states none, or one of multi-vector models.
    pub similarity: SimilarityFunction,
    pub truncate_dim: Option<usize>,
}

impl Settings {
    /// Reads the file of a model's folder, which may be absent.
    pub(crate) fn load(folder: ModelFolder) -> Result<Self> {
        let path = folder.path.join("config_sentence_transformers.json");
        let SettingsFile { similarity_fn_name, truncate_dim } = folder.json_or_default(&path)?;
        ensure!(truncate_dim != Some(0), Error::file(path, "truncate_dim is 0, expected at least 1"));
        let similarity = similarity_fn_name.and_then(|name| name.parse().ok()).unwrap_or_default();
        Ok(Self { prompts: Prompts::load(folder)?, similarity, truncate_dim })
    }
}
