//! The tokens of queries and documents of a multi-vector model.

use candle_attention::{Error, Result};

use crate::folder::{ModelFolder, TokenizerConfig};
use crate::model::config::TextModelConfig;
use crate::multi_vector::settings::{Expansion, Settings, Strategy};
use crate::text::options::Task;
use crate::text::tokenizer::{Text, Tokenizer, Tokens};

/// The rules for the tokens of queries and documents.
#[derive(Debug, Clone)]
pub(crate) struct TokenRules {
    query_length: Option<usize>,
    document_length: Option<usize>,
    /// The tokens that short queries are filled up with, and their id.
    expansion: Option<(Expansion, u32)>,
    /// Prompts that are one token, and its id.
    markers: Vec<(String, u32)>,
    /// Special tokens before the text.
    before: usize,
    /// Sorted ids of tokens that get no vector, and the tasks that they are skipped for.
    skipped: Vec<u32>,
    skip_in_queries: bool,
    skip_in_documents: bool,
    /// The only ids that get a vector in documents, sorted; empty if all do.
    kept: Vec<u32>,
}

impl TokenRules {
    /// The rules of `settings` with the ids of the tokenizer.
    ///
    /// # Errors
    /// A length beyond the positions of the model or without room for text; a token that the tokenizer does not have.
    pub fn new(
        folder: ModelFolder,
        settings: &Settings,
        tokenizer: &Tokenizer,
        config: &TextModelConfig,
    ) -> Result<Self> {
        let tokenizer_config = TokenizerConfig::load(folder, &settings.transformer)?;
        let known = |name: &str| (name.to_string(), tokenizer.id(name));
        let expansion = settings.expansion.as_ref().map(|stated| {
            let names: Vec<&str> = match &stated.token {
                Some(token) => vec![token],
                None => {
                    let masks = tokenizer_config.mask_token().into_iter().chain(["[MASK]", "<mask>"]);
                    // As PyLate does for decoders, which have no mask.
                    masks.chain(tokenizer_config.eos_token()).collect()
                }
            };
            let Some(id) = names.iter().find_map(|name| known(name).1) else {
                return Err(Error::value("the token that expands queries", names.join(" or "), "one of the tokenizer"));
            };
            let most = config.max_tokens();
            if !(3..=most).contains(&stated.length) {
                return Err(Error::config("query_expansion length", stated.length, format!("3 to {most}")));
            }
            Ok((stated.clone(), id))
        });
        let marker = |marker: &String| {
            let first = marker.split_whitespace().next().unwrap_or_default();
            [marker.as_str(), first]
                .into_iter()
                .filter(|text| !text.trim().is_empty())
                .map(known)
                .find_map(|(text, id)| Some((text, id?)))
        };
        let mut skipped: Vec<u32> = settings.mask.skiplist_words.iter().filter_map(|word| tokenizer.id(word)).collect();
        skipped.sort_unstable();
        let mut kept = settings.mask.keep_only_token_ids.clone().unwrap_or_default();
        kept.sort_unstable();
        let tasks = &settings.mask.skiplist_tasks;
        let tokens = tokenizer.with_places().encode(&[Text::One("a")], "")?.remove(0);
        let before = tokens.places.iter().take_while(|place| place.special).count();
        Ok(Self {
            query_length: settings.query_length,
            document_length: settings.document_length,
            expansion: expansion.transpose()?,
            markers: settings.markers.iter().filter_map(marker).collect(),
            before,
            skipped,
            skip_in_queries: tasks.iter().any(|task| task == Task::Query.name()),
            skip_in_documents: tasks.iter().any(|task| task == Task::Document.name()),
            kept,
        })
    }

    /// The number of tokens at which a text is cut, if it is not the model's own; `given` is what the caller asks for.
    ///
    /// # Errors
    /// If all queries have one length, and another is asked for.
    pub fn max_length(&self, task: Option<Task>, given: Option<usize>) -> Result<Option<usize>> {
        match (task, self.expansion_of(task)) {
            (_, Some((Expansion { strategy: Strategy::Fixed, length, .. }, _))) => match given {
                Some(other) if other != *length => {
                    let expected = format!("{length}: this model expands or cuts each query to as many");
                    Err(Error::config("max_length", other, expected))
                }
                _ => Ok(Some(*length)),
            },
            (_, Some((expansion, _))) => Ok(given.or(self.query_length).map(|most| most.max(expansion.length))),
            (Some(Task::Query), None) => Ok(given.or(self.query_length)),
            (Some(Task::Document), None) => Ok(given.or(self.document_length)),
            (_, None) => Ok(given),
        }
    }

    /// The tokenizer for texts after `prompt`, and the rest of the prompt: a marker at its start is one token.
    ///
    /// # Errors
    /// If the token leaves no room for a text.
    pub fn tokenizer<'a>(&self, tokenizer: Tokenizer, prompt: &'a str) -> Result<(Tokenizer, &'a str)> {
        for (marker, id) in &self.markers {
            if let Some(rest) = prompt.strip_prefix(marker.as_str()) {
                return Ok((tokenizer.with_inserted(self.before, *id)?, rest));
            }
        }
        Ok((tokenizer, prompt))
    }

    /// The tokens that short texts of a task are filled up with, and their id.
    pub fn expansion_of(&self, task: Option<Task>) -> Option<&(Expansion, u32)> {
        self.expansion.as_ref().filter(|_| task == Some(Task::Query))
    }

    /// Fills a query up with tokens of the expansion.
    pub fn expand((expansion, id): &(Expansion, u32), tokens: &mut Tokens) {
        let length = tokens.len().max(expansion.length);
        tokens.ids.resize(length, *id);
        tokens.types.resize(length, 0);
    }

    /// The places of the tokens that get a vector.
    pub fn counted(&self, task: Option<Task>, ids: &[u32]) -> Vec<u32> {
        let is_query = task == Some(Task::Query);
        let skips = if is_query { self.skip_in_queries } else { self.skip_in_documents };
        let counts = |id: &u32| {
            let is_skipped = skips && self.skipped.binary_search(id).is_ok();
            let is_kept = is_query || self.kept.is_empty() || self.kept.binary_search(id).is_ok();
            is_kept && !is_skipped
        };
        (0..).zip(ids).filter(|(_, id)| counts(id)).map(|(place, _)| place).collect()
    }
}
