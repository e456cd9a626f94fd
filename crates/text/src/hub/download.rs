//! Which files of a model are downloaded.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::folder::transformer_settings::TRANSFORMER_SETTINGS;
use crate::folder::{ModelFolder, Module, any_modules};
use crate::hub::check_id;
use crate::hub::options::HubOptions;
use crate::hub::repository::Repository;
use crate::kind::EncoderKind;
use crate::router::{ROUTER_CONFIGS, is_router, routes};
use crate::text::chat_template::CHAT_TEMPLATE;
use candle_attention::Result;
use candle_attention::checkpoint::{Checkpoint, read_index};
use candle_attention::io::read_json;

/// Downloads the files that [`SentenceEncoder`](crate::SentenceEncoder) needs of the model `id` into the hub's
/// cache, and returns their folder. All files are of one commit.
///
/// The cache is that of huggingface_hub, which other programs share. Where the hub does not answer, the files that the
/// cache holds of the revision are used.
///
/// # Trust
/// The hub's operator, and that of a mirror, is trusted with the content of files (numbers in safetensors files,
/// settings in JSON files; nothing is code), with the cache (hf-hub makes its `ETag` a file name there), and with the
/// space on the disk. What arrives is checked before it is used: its length, the SHA-256 of large files, that JSON
/// parses, and that a safetensors file is as long as its header says. What fails is removed from the cache. The names
/// of modules and shards are checked before they become parts of paths; so are `id`, the revision and its commit. The
/// connection is https, or plain http to this machine; another plain http endpoint must be asked for, by
/// [`HubOptions::with_plain_http`]. The token goes to the endpoint only.
///
/// # Errors
/// [`Error::Hub`](candle_attention::Error::Hub): no such model, revision or file, no access, no network, offline and
/// not in the cache, a hub that stays silent for [`HubOptions::timeout`] or sends something else than it announced.
/// [`Error::Value`](candle_attention::Error::Value): an invalid id, revision, endpoint or token.
/// [`Error::File`](candle_attention::Error::File), [`Error::Io`](candle_attention::Error::Io): a file that this version
/// cannot read, a cache that cannot be read or written.
pub fn download(id: &str, options: &HubOptions) -> Result<PathBuf> {
    snapshot(id, options).map(|snapshot| snapshot.path)
}

/// The files of a model in the cache.
pub(crate) struct Snapshot {
    path: PathBuf,
    /// The files that the repository holds, of those that were asked for.
    files: BTreeSet<PathBuf>,
}

impl Snapshot {
    /// The folder, which is known to hold the files.
    pub fn folder(&self) -> ModelFolder<'_> {
        ModelFolder::with_files(&self.path, &self.files)
    }
}

/// Like [`download`], and says which files there are.
pub(crate) fn snapshot(id: &str, options: &HubOptions) -> Result<Snapshot> {
    check_id(id)?;
    let run = || {
        let mut model = Download { repository: Repository::open(id, options)?, files: BTreeSet::new() };
        model.run()?;
        model.repository.keep_commit()?;
        Ok(Snapshot { path: model.repository.snapshot(), files: model.files })
    };
    // On a thread of its own, because a caller in an asynchronous runtime may not start another one.
    let result = std::thread::scope(|scope| scope.spawn(run).join());
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A download in progress.
struct Download {
    repository: Repository,
    files: BTreeSet<PathBuf>,
}

impl Download {
    fn run(&mut self) -> Result<()> {
        let path = self.repository.snapshot();
        let has_modules = self.fetch("", "modules.json")?.is_some();
        self.fetch("", "config_sentence_transformers.json")?;
        if !has_modules {
            self.transformer("")?;
            // Its presence decides whether the model reads texts through it.
            self.fetch("", CHAT_TEMPLATE)?;
            if EncoderKind::detect(ModelFolder::with_files(&path, &self.files))? == EncoderKind::MultiVector {
                self.fetch("", "artifact.metadata")?;
            }
            return Ok(());
        }
        let listed = any_modules(ModelFolder::with_files(&path, &self.files))?;
        for router in listed.iter().flatten().filter(|module| is_router(module)) {
            for name in ROUTER_CONFIGS {
                self.fetch(&router.path, name)?;
            }
        }
        let routes = routes(ModelFolder::with_files(&path, &self.files))?;
        let modules: Vec<Module> = routes.iter().flat_map(|routes| routes.modules().into_values().cloned()).collect();
        // Only rerankers read texts through a template.
        let reranks = modules.iter().any(|module| module.kind() == "LogitScore");
        modules.iter().try_for_each(|module| self.module(module, reranks))
    }

    fn module(&mut self, module: &Module, reranks: bool) -> Result<()> {
        let inside = module.path.as_str();
        match module.kind() {
            "Transformer" | "MLMTransformer" => {
                if reranks && module.kind() == "Transformer" {
                    self.fetch(inside, CHAT_TEMPLATE)?;
                }
                self.transformer(inside)
            }
            "SparseStaticEmbedding" | "IDF" => {
                self.required(inside, "tokenizer.json")?;
                self.fetch(inside, "tokenizer_config.json")?;
                self.fetch(inside, "config.json")?;
                // A weight per token is a tensor, or JSON, which may be at the top.
                if self.weights(inside, "model.safetensors")?.is_none() && self.fetch(inside, "idf.json")?.is_none() {
                    self.required("", "idf.json")?;
                }
                Ok(())
            }
            kind => {
                if kind == "StaticEmbedding" {
                    self.required(inside, "tokenizer.json")?;
                }
                self.fetch(inside, "config.json")?;
                if matches!(kind, "StaticEmbedding" | "Dense" | "LayerNorm") {
                    let weights = self.weights(inside, "model.safetensors")?;
                    weights.ok_or_else(|| self.repository.absent(&format!("{inside}/model.safetensors")))?;
                }
                Ok(())
            }
        }
    }

    /// Brings the files of a transformer.
    fn transformer(&mut self, inside: &str) -> Result<()> {
        self.required(inside, "config.json")?;
        self.required(inside, "tokenizer.json")?;
        self.fetch(inside, "tokenizer_config.json")?;
        // The first that states something counts.
        for file in TRANSFORMER_SETTINGS {
            let found = self.fetch(inside, file)?;
            let stated = found.map(|path| read_json::<serde_json::Map<_, _>>(&path)).transpose()?;
            if stated.is_some_and(|stated| !stated.is_empty()) {
                break;
            }
        }
        if self.weights(inside, "model.safetensors")?.is_some() {
            return Ok(());
        }
        let Some(index) = self.fetch(inside, "model.safetensors.index.json")? else {
            return Err(self.repository.absent("model.safetensors` or `model.safetensors.index.json"));
        };
        let shards: BTreeSet<String> = read_index(&index)?.into_values().collect();
        for shard in shards {
            self.weights(inside, &shard)?.ok_or_else(|| self.repository.absent(&shard))?;
        }
        Ok(())
    }

    fn fetch(&mut self, inside: &str, name: &str) -> Result<Option<PathBuf>> {
        let found = self.repository.fetch(inside, name)?;
        self.files.extend(found.clone());
        Ok(found)
    }

    fn required(&mut self, inside: &str, name: &str) -> Result<()> {
        self.fetch(inside, name)?.map(drop).ok_or_else(|| self.repository.absent(name))
    }

    /// A weight file that can be opened.
    fn weights(&mut self, inside: &str, name: &str) -> Result<Option<PathBuf>> {
        let found = self.fetch(inside, name)?;
        found.iter().try_for_each(|path| Checkpoint::open(path).map(drop))?;
        Ok(found)
    }
}
