//! Which files of a model are downloaded.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use candle_attention::checkpoint::{Checkpoint, read_index};
use candle_attention::{Error, Result};

use crate::folder::{ModelFolder, Module, any_modules};
use crate::hub::cache::Cache;
use crate::hub::client::Client;
use crate::hub::endpoint::Endpoint;
use crate::hub::environment;
use crate::hub::fetcher::{Fetcher, Found, Kind};
use crate::hub::model_id::check_id;
use crate::hub::names::{Commit, RepoPath, Revision};
use crate::hub::options::HubOptions;
use crate::kind::EncoderKind;
use crate::router::{ROUTER_CONFIGS, is_router, routes};
use crate::text::chat_template::CHAT_TEMPLATE;

/// The most shards of one model. The largest published models have about 200.
const MAX_SHARDS: usize = 4096;

/// How long the hub may stay silent unless [`HubOptions::timeout`] says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Downloads the files that [`SentenceEncoder`](crate::SentenceEncoder) needs of the model `id` into the hub's
/// cache, and returns their folder. All files are of one commit.
///
/// The cache is that of huggingface_hub, which other programs share. Where the hub does not answer, the files that the
/// cache holds of the revision are used.
///
/// # Trust
/// The hub's operator, and that of a mirror, is trusted for the content of files: numbers in safetensors files, and
/// settings in JSON files. Nothing that they send is code. It is trusted with nothing else:
/// - **Paths.** What the hub calls a file (`ETag`), its commit, and the names of modules and shards are checked before
///   they become parts of paths; so are `id` and the revision. Only the cache is written.
/// - **Content.** A file is stored when it is proven whole: by the SHA-256 or git's SHA-1 that the hub announced, or by
///   its size where a mirror announces no hash; large files must have one of them. Error pages and cut files are not
///   stored.
/// - **Size.** A JSON file may have 256 MiB, a weight file 512 GiB, a model 4096 shards. Nothing beyond the announced
///   size is read.
/// - **Time.** A hub that stays silent for [`HubOptions::timeout`], or sends less than 1024 bytes per second, is left.
///   Requests to a hub that is busy are repeated three times.
/// - **Connection.** https, or plain http to this machine; another plain http endpoint must be asked for, by
///   [`HubOptions::with_plain_http`]. An https endpoint never leads to plain http. The token goes to the endpoint only.
/// - **Absence.** A file counts as absent only if the hub itself says so, by `x-error-code: EntryNotFound`.
///
/// Nothing of the cache is deleted. A blob whose content is not what its name says is downloaded again, and replaced
/// once the new one is whole.
///
/// # Errors
/// [`Error::Hub`]: no such model or file, no access, no network, offline and not in the cache, a hub that sends
/// something else than it announced. [`Error::Value`]: an id, a revision, an endpoint or a token that is none.
/// [`Error::File`], [`Error::Io`]: a file that this version cannot read, a cache that cannot be read or written.
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
    let revision = Revision::parse(options.revision.as_deref().unwrap_or("main"))?;
    let fetcher = fetcher(id, options)?;
    let mut model = Model { fetcher, asked: revision.clone(), files: BTreeSet::new() };
    // All other files come from the commit of the first one, because a branch may move meanwhile.
    let first = model.fetch("", "modules.json", &revision)?;
    let commit = match first.commit {
        Some(commit) => commit,
        // Some mirrors do not say of which commit a file is absent.
        None => model.fetch("", "config.json", &revision)?.commit.ok_or_else(|| model.absent("config.json"))?,
    };
    let path = model.bring(&commit, first.path.is_some())?;
    // Not earlier: a download that breaks off leaves the branch at the commit whose files are all there.
    model.fetcher.cache.set_commit(&revision, &commit)?;
    Ok(Snapshot { path, files: model.files })
}

fn fetcher<'a>(id: &'a str, options: &HubOptions) -> Result<Fetcher<'a>> {
    let folder = options.cache_dir.clone().or_else(environment::cache_dir);
    let folder = folder.ok_or_else(|| Error::value("the hub's cache folder", "not set", "HF_HOME or a home folder"))?;
    let cache = Cache::new(&folder, id);
    let timeout = options.timeout.unwrap_or(TIMEOUT);
    if timeout.is_zero() {
        return Err(Error::value("the hub's timeout", "0", "more"));
    }
    if options.offline.unwrap_or_else(environment::offline) {
        return Ok(Fetcher { id, cache, client: None, timeout, progress: false });
    }
    let endpoint = options.endpoint.clone().unwrap_or_else(environment::endpoint);
    let endpoint = Endpoint::parse(&endpoint, options.plain_http.unwrap_or_else(environment::plain_http))?;
    let token = options.token.clone().or_else(environment::token);
    let client = Some(Client::new(endpoint, token.as_deref(), timeout)?);
    Ok(Fetcher { id, cache, client, timeout, progress: options.progress })
}

struct Model<'a> {
    fetcher: Fetcher<'a>,
    /// The revision that the caller asked for.
    asked: Revision,
    files: BTreeSet<PathBuf>,
}

impl Model<'_> {
    /// Brings the files of a commit, which has a `modules.json` or not, and returns their folder.
    fn bring(&mut self, commit: &Commit, has_modules: bool) -> Result<PathBuf> {
        let folder = self.fetcher.cache.snapshot(commit);
        let revision = Revision::of(commit);
        self.fetch("", "config_sentence_transformers.json", &revision)?;
        if !has_modules {
            self.transformer("", &revision)?;
            // Its presence decides whether the model reads texts through it.
            self.fetch("", CHAT_TEMPLATE, &revision)?;
            if EncoderKind::of(ModelFolder::with_files(&folder, &self.files))? == EncoderKind::MultiVector {
                self.fetch("", "artifact.metadata", &revision)?;
            }
            return Ok(folder);
        }
        let listed = any_modules(ModelFolder::with_files(&folder, &self.files))?;
        for router in listed.iter().flatten().filter(|module| is_router(module)) {
            for name in ROUTER_CONFIGS {
                self.fetch(&router.path, name, &revision)?;
            }
        }
        let routes = routes(ModelFolder::with_files(&folder, &self.files))?;
        let modules: Vec<Module> = routes.iter().flat_map(|routes| routes.modules().into_values().cloned()).collect();
        // Only rerankers read texts through one.
        if modules.iter().any(|module| module.kind() == "LogitScore") {
            for transformer in modules.iter().filter(|module| module.kind() == "Transformer") {
                self.fetch(&transformer.path, CHAT_TEMPLATE, &revision)?;
            }
        }
        for module in modules {
            match module.kind() {
                "Transformer" | "MLMTransformer" => self.transformer(&module.path, &revision)?,
                "SparseStaticEmbedding" | "IDF" => self.token_weights(&module.path, &revision)?,
                "StaticEmbedding" => {
                    self.required(&module.path, "tokenizer.json", &revision)?;
                    self.fetch(&module.path, "config.json", &revision)?;
                    self.required_weights(&module.path, &revision)?;
                }
                kind => {
                    self.fetch(&module.path, "config.json", &revision)?;
                    if matches!(kind, "Dense" | "LayerNorm") {
                        self.required_weights(&module.path, &revision)?;
                    }
                }
            }
        }
        Ok(folder)
    }

    /// Brings the files of a table with a weight per token: as a tensor, or as JSON, which may be at the top.
    fn token_weights(&mut self, inside: &str, revision: &Revision) -> Result<()> {
        self.required(inside, "tokenizer.json", revision)?;
        for file in ["tokenizer_config.json", "config.json"] {
            self.fetch(inside, file, revision)?;
        }
        if self.weights(inside, "model.safetensors", revision)?.is_none()
            && self.fetch(inside, "idf.json", revision)?.path.is_none()
        {
            self.required("", "idf.json", revision)?;
        }
        Ok(())
    }

    /// Brings the files of a transformer.
    fn transformer(&mut self, inside: &str, revision: &Revision) -> Result<()> {
        self.required(inside, "config.json", revision)?;
        self.required(inside, "tokenizer.json", revision)?;
        for file in ["tokenizer_config.json", "sentence_bert_config.json"] {
            self.fetch(inside, file, revision)?;
        }
        if self.weights(inside, "model.safetensors", revision)?.is_none() {
            self.sharded(inside, revision)?;
        }
        Ok(())
    }

    /// Brings the weights of a module that has one file of them.
    fn required_weights(&mut self, inside: &str, revision: &Revision) -> Result<()> {
        match self.weights(inside, "model.safetensors", revision)? {
            Some(_) => Ok(()),
            None => Err(self.absent(&format!("{inside}/model.safetensors"))),
        }
    }

    fn fetch(&mut self, folder: &str, name: &str, revision: &Revision) -> Result<Found> {
        let path = self.path(folder, name)?;
        let found = self.fetcher.fetch(&path, revision, Kind::Small)?;
        self.files.extend(found.path.clone());
        Ok(found)
    }

    fn required(&mut self, folder: &str, name: &str, revision: &Revision) -> Result<PathBuf> {
        self.fetch(folder, name, revision)?.path.ok_or_else(|| self.absent(name))
    }

    /// A weight file that can be opened.
    fn weights(&mut self, folder: &str, name: &str, revision: &Revision) -> Result<Option<PathBuf>> {
        let path = self.path(folder, name)?;
        let Some(mut found) = self.fetcher.fetch(&path, revision, Kind::Weights)?.path else { return Ok(None) };
        if matches!(Checkpoint::open(&found), Err(Error::File { .. })) {
            // Either it is broken, or it is whole and this version cannot read it.
            found = self.fetcher.mend(&path, revision, found)?;
            Checkpoint::open(&found)?;
        }
        self.files.insert(found.clone());
        Ok(Some(found))
    }

    fn sharded(&mut self, transformer: &str, revision: &Revision) -> Result<()> {
        let Some(index) = self.fetch(transformer, "model.safetensors.index.json", revision)?.path else {
            return Err(self.absent("model.safetensors` or `model.safetensors.index.json"));
        };
        let shards: BTreeSet<String> = read_index(&index)?.into_values().collect();
        if shards.len() > MAX_SHARDS {
            let reason = format!("the index names {} shards, expected at most {MAX_SHARDS}", shards.len());
            return Err(Error::file(index, reason));
        }
        for shard in shards {
            self.weights(transformer, &shard, revision)?.ok_or_else(|| self.absent(&shard))?;
        }
        Ok(())
    }

    fn path(&self, folder: &str, name: &str) -> Result<RepoPath> {
        RepoPath::parse(folder, name).map_err(|reason| Error::Hub { id: self.fetcher.id.to_string(), reason })
    }

    fn absent(&self, file: &str) -> Error {
        let reason = format!("the repository holds no `{file}` at revision `{}`", self.asked.as_str());
        Error::Hub { id: self.fetcher.id.to_string(), reason }
    }
}
