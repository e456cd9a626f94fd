//! The small files of a model folder, as transformers and sentence-transformers save it: which modules run, and the
//! settings of the tokenizer. Everything that reads a folder, downloads one or copies one starts from these.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::io::{is_present, json};

/// The most modules that a model may have. Each one reads files, or downloads them. Published models have at most 6: a
/// transformer, pooling, up to three dense layers, normalization.
const MAX_MODULES: usize = 16;

/// The folder of a model, and what is known of it beforehand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelFolder<'a> {
    pub path: &'a Path,
    /// Files that the folder holds. Other programs that use the hub's cache remove a link and make it again, so one of
    /// these files that is not found is an error, and not an absence that changes the model in silence.
    known: Option<&'a BTreeSet<PathBuf>>,
}

impl<'a> ModelFolder<'a> {
    /// A folder of which nothing is known.
    pub fn new(path: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { path: path.as_ref(), known: None }
    }

    /// A folder that holds these files, named by their full paths.
    #[cfg(feature = "hub")]
    pub fn with_files(path: &'a Path, files: &'a BTreeSet<PathBuf>) -> Self {
        Self { path, known: Some(files) }
    }

    /// Reads an optional JSON file of the folder, `None` if it is absent: nothing has its name, and it is not known to
    /// be there.
    fn optional<T: DeserializeOwned>(self, path: &Path) -> Result<Option<T>> {
        match is_present(path)? || self.known.is_some_and(|known| known.contains(path)) {
            true => json(path).map(Some),
            false => Ok(None),
        }
    }

    /// Reads an optional JSON file of the folder, or returns the default if it is absent.
    pub fn json_or_default<T: DeserializeOwned + Default>(self, path: &Path) -> Result<T> {
        Ok(self.optional(path)?.unwrap_or_default())
    }
}

/// One entry of `modules.json`.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Module {
    pub path: String,
    #[serde(rename = "type")]
    class: String,
}

impl Module {
    /// The class without its Python module, which differs between versions of the library.
    pub(crate) fn kind(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or(&self.class)
    }
}

/// Reads `modules.json` of a model whose first module is a transformer; without one, the model is a transformer at the top
/// and its tokens are averaged.
pub(crate) fn modules(folder: ModelFolder) -> Result<Option<Vec<Module>>> {
    let Some(modules) = listed_modules(folder)? else { return Ok(None) };
    let path = folder.path.join("modules.json");
    match modules.first().map(Module::kind) {
        Some("Transformer") => Ok(Some(modules)),
        Some(other) => Err(Error::file(&path, format!("the first module is `{other}`, expected `Transformer`"))),
        None => Err(Error::file(&path, "no modules, expected `Transformer` first")),
    }
}

/// Reads `modules.json`, whatever the modules are.
///
/// The file counts as absent only if nothing has its name. A link that leads nowhere, as an emptied cache leaves it, is
/// an error: without its modules a model would give other embeddings.
pub(crate) fn listed_modules(folder: ModelFolder) -> Result<Option<Vec<Module>>> {
    let path = folder.path.join("modules.json");
    let Some(modules) = folder.optional::<Vec<Module>>(&path)? else { return Ok(None) };
    if modules.len() > MAX_MODULES {
        return Err(Error::file(&path, format!("{} modules, expected at most {MAX_MODULES}", modules.len())));
    }
    for (i, module) in modules.iter().enumerate() {
        let parts = || Path::new(&module.path).components();
        if !parts().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Error::file(&path, format!("module path `{}` leads out of the folder", module.path)));
        }
        if modules[..i].iter().any(|earlier| Path::new(&earlier.path).components().eq(parts())) {
            return Err(Error::file(&path, format!("two modules have the path `{}`", module.path)));
        }
    }
    Ok(Some(modules))
}

/// `sentence_bert_config.json`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct TransformerConfig {
    max_seq_length: Option<usize>,
    do_lower_case: bool,
}

/// `tokenizer_config.json`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct TokenizerConfig {
    /// About 1e30 where no limit was known.
    model_max_length: Option<f64>,
    model_input_names: Option<Vec<String>>,
    mask_token: Option<Token>,
    truncation_side: Option<String>,
    unk_token: Option<Token>,
}

/// A special token: its text, or an object that holds it.
#[derive(Debug, serde::Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Object { content: String },
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl TokenizerConfig {
    /// Reads the file. Its `padding_side` has no effect: texts are run without padding.
    pub fn load(folder: ModelFolder, transformer: &Path) -> Result<Self> {
        let path = transformer.join("tokenizer_config.json");
        let config: Self = folder.json_or_default(&path)?;
        match config.truncation_side.as_deref() {
            None | Some("right") => Ok(config),
            Some(other) => Err(Error::file(&path, format!("truncation_side is `{other}`, expected `right`"))),
        }
    }

    /// Whether the tokenizer gives segment types to the model.
    pub fn gives_types(&self) -> bool {
        self.model_input_names.as_ref().is_none_or(|names| names.iter().any(|name| name == "token_type_ids"))
    }

    /// The longest input that is stated, in tokens. A cast from float to integer saturates.
    pub fn max_length(&self) -> Option<usize> {
        self.model_max_length.map(|n| n as usize)
    }

    pub fn mask_token(&self) -> Option<&str> {
        self.mask_token.as_ref().map(Token::text)
    }

    pub fn unk_token(&self) -> Option<&str> {
        self.unk_token.as_ref().map(Token::text)
    }
}

/// The longest input in tokens, and whether texts are to be lower-cased first.
pub(crate) fn limits(folder: ModelFolder, transformer: &Path, max_position_embeddings: usize) -> Result<(usize, bool)> {
    let own: TransformerConfig = folder.json_or_default(&transformer.join("sentence_bert_config.json"))?;
    let tokenizer = TokenizerConfig::load(folder, transformer)?;
    let stated = own.max_seq_length.or(tokenizer.max_length());
    let limit = stated.unwrap_or(max_position_embeddings).min(max_position_embeddings);
    if limit < 3 {
        return Err(Error::config("max_seq_length", limit, "at least 3: two special tokens and one of text"));
    }
    Ok((limit, own.do_lower_case))
}

/// Where in a folder the transformer itself is.
pub(crate) fn transformer_of(folder: &Path, modules: Option<&[Module]>) -> PathBuf {
    match modules {
        Some([first, ..]) => folder.join(&first.path),
        _ => folder.to_path_buf(),
    }
}

#[cfg(all(test, feature = "hub"))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_known_to_be_there_is_never_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(modules(ModelFolder::new(path)).unwrap().is_none());
        let files = ["modules.json", "tokenizer_config.json"].map(|name| path.join(name));
        let known = BTreeSet::from(files);
        let folder = ModelFolder::with_files(path, &known);
        for error in [modules(folder).unwrap_err(), TokenizerConfig::load(folder, path).unwrap_err()] {
            assert!(matches!(error, Error::Io { .. }), "{error}");
        }
        assert!(limits(ModelFolder::new(path), path, 512).is_ok());
    }
}
