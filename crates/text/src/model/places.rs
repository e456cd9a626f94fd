//! Where the parts of a whole model are in a checkpoint, and whether all of them were read.

use std::collections::BTreeSet;

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::{Error, Result};

use crate::families::model::Model;
use crate::model::config::TextModelConfig;

/// Prefixes that trainers put in front of all names of a model: the attribute of their own module that holds it, and
/// sentence-transformers' `0.auto_model`, in weights that were saved from the state of its own module.
const TRAINERS: [&str; 5] = ["", "model", "auto_model", "0.auto_model", "0.model"];

/// The last components of names of tensors that are no weights: numbers that the model's code makes again.
const BUFFERS: [&str; 3] = ["position_ids", "token_type_ids", "inv_freq"];

/// The places of a model in a checkpoint.
pub(crate) struct Places<'a> {
    /// Where its task heads are named from.
    pub root: AnySource<'a>,
    /// The model without its head: at the root, or under the prefix that it has in a checkpoint with a head, such as
    /// `bert`.
    pub body: AnySource<'a>,
}

impl<'a> Places<'a> {
    /// Finds the model in `source`: at its root or under a prefix of its family, which may be below one of a trainer.
    pub fn find(config: &TextModelConfig, source: &AnySource<'a>) -> Self {
        let row = config.row();
        let place = |trainer: &str, prefix: &str| {
            let root = source.child(trainer);
            Self { body: root.child(prefix), root }
        };
        let prefixes = || [""].into_iter().chain(row.prefixes.iter().copied());
        let places = || TRAINERS.into_iter().flat_map(|trainer| prefixes().map(move |prefix| place(trainer, prefix)));
        // A checkpoint without a table of words may have it under the name of a head.
        let has_blocks = |place: &Self| place.body.names_below(row.layers).is_some_and(|names| !names.is_empty());
        let found = places().find(|place| place.body.contains(&row.words_in(&place.body)));
        found.or_else(|| places().find(has_blocks)).unwrap_or_else(|| place("", ""))
    }

    /// The source and the name of the table of word embeddings. Where only a head that shares it is stored, these are
    /// the source and the name of its weight, which is `tied`, named from the root.
    pub fn word_embeddings(&self, config: &TextModelConfig, tied: Option<&str>) -> Result<(AnySource<'a>, String)> {
        let row = config.row();
        let words = row.words_in(&self.body);
        let is_stored = |name: &&str| self.root.contains(name);
        if self.body.contains(&words) {
            return Ok((self.body.clone(), words));
        }
        if let Some(tied) = tied.filter(is_stored) {
            return Ok((self.root.clone(), tied.to_string()));
        }
        let decoder = row.masked_lm.map(|head| format!("{}.weight", head.decoder)).unwrap_or_default();
        let others = [decoder.as_str(), "lm_head.weight", "decoder.embed_tokens.weight"];
        let stored: Vec<String> =
            others.into_iter().filter(is_stored).map(|name| format!("`{}`", self.root.full_name(name))).collect();
        if stored.is_empty() {
            return Ok((self.body.clone(), words));
        }
        let why = format!(
            "the checkpoint has {}, the same table only for a model with that part whose `tie_word_embeddings` is true",
            stored.join(" and ")
        );
        Err(Error::MissingTensor { name: self.body.full_name(&words), why })
    }

    /// Checks that the stored tensors of each part of the model were read, except for those that the family ignores:
    /// what is stored and not read is without effect, and would give other numbers than the model has. A part is the
    /// body, or all that has the first component of a head's name. Heads that are not run are no part of the model.
    ///
    /// # Errors
    /// [`Error::Tensor`] with the first tensor that was not read.
    pub fn check_read(&self, config: &TextModelConfig) -> Result<()> {
        let [root, body] = [&self.root, &self.body].map(|source| source.full_name(""));
        let body = below(&root, &body).unwrap_or_default();
        // Adapters for tasks are read when a task is asked for.
        let has_tasks = config.tasks()?.is_some();
        let is_ignored = |name: &str| {
            let is_of_task = has_tasks && name.contains(".parametrizations.");
            let local = below(body, name).unwrap_or(name);
            is_of_task || config.row().ignores(local) || is_beyond_last_layer(config, local)
        };
        check_all_read((&self.root, body), &format!("a model of `{}`", config.model_type), is_ignored)
    }
}

/// Whether a tensor is of a layer after the last one of the configuration: some models are the first layers of others.
fn is_beyond_last_layer(config: &TextModelConfig, name: &str) -> bool {
    let row = config.row();
    let number = below(row.layers, name).and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
    row.shared_layers.is_none() && number.is_some_and(|number| number >= config.num_hidden_layers)
}

/// Loads a module from a source, all of whose tensors `load` has to read: those of the module's file.
///
/// # Errors
/// Those of `load`; [`Error::Tensor`] with the first tensor that was not read.
pub(crate) fn load_all<T>(source: &AnySource, load: impl FnOnce(&AnySource) -> Result<T>) -> Result<T> {
    let watched = source.watched();
    let loaded = load(&watched)?;
    // A GGUF file holds several modules, which are parts of it.
    check_all_read((&watched, ""), "the module", |_| false)?;
    Ok(loaded)
}

/// Checks that `reader` has read all stored tensors of the parts of a source that it has read of, but for those that
/// are ignored. `body` is the prefix of the model inside of the source.
fn check_all_read((source, body): (&AnySource, &str), reader: &str, is_ignored: impl Fn(&str) -> bool) -> Result<()> {
    let Some(names) = source.names() else { return Ok(()) };
    let read = source.read_names();
    let parts: BTreeSet<&str> = read.iter().map(|name| part(name, body)).collect();
    let is_left =
        |name: &&String| !read.contains(name.as_str()) && parts.contains(part(name, body)) && !is_ignored(name);
    let Some(name) = names.iter().find(is_left) else { return Ok(()) };
    let expected = format!("only tensors that {reader} reads: it would be without effect");
    Err(Error::Tensor { name: source.full_name(name), found: "is stored".to_string(), expected })
}

/// The rest of a name below a prefix, which may be empty.
fn below<'n>(prefix: &str, name: &'n str) -> Option<&'n str> {
    match prefix {
        "" => Some(name),
        prefix => name.strip_prefix(prefix)?.strip_prefix('.'),
    }
}

/// The part of a model that a tensor belongs to: the prefix of the body, or the name up to the first component in which
/// it differs from that.
fn part<'n>(name: &'n str, body: &str) -> &'n str {
    if !body.is_empty() && below(body, name).is_some() {
        return &name[..body.len()];
    }
    let mut end = 0;
    for component in name.split('.') {
        end += component.len();
        if !body.strip_prefix(&name[..end]).is_some_and(|rest| rest.starts_with('.')) {
            break;
        }
        end += 1;
    }
    &name[..end.min(name.len())]
}

impl Model {
    /// The name of the table of word embeddings in the body of a checkpoint.
    fn words_in(&self, body: &AnySource) -> String {
        let own = self.own_word_embeddings.map(|own| format!("{own}.weight"));
        own.filter(|own| body.contains(own)).unwrap_or_else(|| format!("{}.weight", self.word_embeddings))
    }

    /// Whether a tensor of the model's checkpoints has no effect on what this crate runs. `name` is that in the body,
    /// or the whole name of one beside it.
    fn ignores(&self, name: &str) -> bool {
        // The bias of the language head has two names, of which one is read.
        let is_bias = self.masked_lm.is_some_and(|head| head.bias == name);
        let is_buffer = name.rsplit('.').next().is_some_and(|last| BUFFERS.contains(&last));
        let is_ignored = |ignored: &&str| name == *ignored || below(ignored, name).is_some();
        is_bias || is_buffer || self.ignored_tensors.iter().any(is_ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_of_a_model_are_its_body_and_the_heads_beside_it() {
        for (name, body, expected) in [
            ("bert.encoder.layer.0.weight", "bert", "bert"),
            ("cls.predictions.bias", "bert", "cls"),
            ("encoder.layer.0.weight", "", "encoder"),
            ("classifier", "bert", "classifier"),
            ("bertish.weight", "bert", "bertish"),
            ("model.vision.weight", "model.language_model", "model.vision"),
            ("model.language_model.norm.weight", "model.language_model", "model.language_model"),
            ("model", "model.language_model", "model"),
        ] {
            assert_eq!(part(name, body), expected, "{name}");
        }
    }
}
