//! Encoding with adapters: one for all texts of a call, or one for each text.

use std::borrow::Cow;
use std::collections::BTreeSet;

use candle_attention::lora::LoraAdapter;
use candle_attention::{Error, Result};

use crate::model::text_model::TextModel;
use crate::sentence::SentenceEncoder;
use crate::sentence::transformer::{Input, Transformer};
use crate::text::options::{EncodeOptions, Task};

impl SentenceEncoder {
    /// Merges an adapter with a copy of the model's weights, for calls with
    /// [`with_adapter`](EncodeOptions::with_adapter) of this name. Calls without it run the base model, whose weights
    /// stay as they are, bit for bit. An adapter that has the name already is replaced.
    ///
    /// Of an encoder in few bits, the adapter stays beside its weights ([`LoraAdapter::beside`]), which both then
    /// share. Of any other, a call with an adapter costs what one without costs. The memory of an adapter is that of
    /// the projections that it changes: all others are shared with the base model (one of queries, keys or values means
    /// all three). Of BERT, an adapter for queries and values takes a quarter of the layers' weights.
    ///
    /// ```no_run
    /// use candle_attention_text::{EncodeOptions, SentenceEncoder};
    /// use candle_attention::lora::LoraAdapter;
    /// use candle_core::{DType, Device};
    /// let mut encoder = SentenceEncoder::from_folder("all-MiniLM-L6-v2", DType::F32, &Device::Cpu)?;
    /// encoder.add_adapter("law", &LoraAdapter::open("adapters/law")?)?;
    /// let options = EncodeOptions::default();
    /// let texts = ["The tenant shall pay.", "A cat sleeps."];
    /// encoder.encode(&texts, &options.with_adapter("law"))?;
    /// encoder.encode(&texts, &options.with_adapters(&[Some("law"), None]))?;
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`LoraAdapter::apply`]. An encoder whose weights were given by [`load`](Self::load), or that has
    /// an adapter in its own folder, has not kept its base weights: give `load` the
    /// [`AdaptedSource`](candle_attention::lora::AdaptedSource) instead.
    pub fn add_adapter(&mut self, name: &str, adapter: &LoraAdapter) -> Result<()> {
        let Input::Transformer(transformer) = &mut self.input else {
            return self.transformer().map(drop);
        };
        let Some(base) = &transformer.adapters.base else {
            let expected = "one that was loaded from its own folder: give `load` the adapted weights";
            return Err(Error::value("the encoder for an adapter", "one without weights to adapt", expected));
        };
        let adapted = TextModel::load(transformer.model.config(), adapter.beside_few_bits(base.clone())?)?;
        let adapted = adapted.with_shared_weights(&transformer.model)?;
        transformer.adapters.models.insert(name.to_string(), adapted);
        Ok(())
    }

    /// Removes an adapter, and returns whether it was there.
    pub fn remove_adapter(&mut self, name: &str) -> bool {
        match &mut self.input {
            Input::Transformer(transformer) => transformer.adapters.models.remove(name).is_some(),
            Input::Static(_) => false,
        }
    }

    /// The names of the adapters, sorted.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.transformer().into_iter().flat_map(|transformer| transformer.adapters.models.keys().map(String::as_str))
    }

    /// The names of the tasks that the checkpoint holds adapters for, as Jina embeddings v3 does, in its order. A call
    /// with [`with_task`](EncodeOptions::with_task) runs the adapter of a task and puts its instruction before each
    /// text, as `encode(task=…)` of the published model. A task takes the memory of a model of its own from its first
    /// call on.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        let models = self.transformer().into_iter().flat_map(|transformer| &transformer.adapters.tasks);
        models.flat_map(|models| models.tasks.names())
    }

    /// The options for queries or documents of a search: `task`, and the prompt of its name; or, for a checkpoint with
    /// adapters for tasks, its retrieval task, as in Jina embeddings v3.
    pub(super) fn options_for<'a>(&self, mut options: EncodeOptions<'a>, task: Task<'a>) -> EncodeOptions<'a> {
        let retrieval = if task == Task::Query { "retrieval.query" } else { "retrieval.passage" };
        if self.tasks().any(|name| name == retrieval) {
            return options.with_task(Task::Named(retrieval));
        }
        if options.prompt.is_none() {
            options.prompt_name = options.prompt_name.or(Some(task.name()));
        }
        options.with_task(task)
    }

    /// The models of a call of `texts` texts on this route, and the index of the model that runs each text; no indices
    /// if one model runs all.
    pub(super) fn models_for<'a>(
        &self,
        transformer: &'a Transformer,
        texts: usize,
        options: &EncodeOptions,
    ) -> Result<(Vec<Cow<'a, TextModel>>, Vec<usize>)> {
        let Some(adapters) = options.adapters else {
            return Ok((vec![self.model_for(transformer, options.adapter, options.task)?], Vec::new()));
        };
        if adapters.len() != texts {
            let expected = format!("{texts}, that of texts");
            return Err(Error::value("the number of adapters", adapters.len(), expected));
        }
        if let Some(given) = options.adapter.or(options.task.map(Task::name)) {
            return Err(Error::value("the adapter or task of all texts", given, "none: each text has its own adapter"));
        }
        let names: BTreeSet<Option<&str>> = adapters.iter().copied().collect();
        let models = names.iter().map(|name| self.model_for(transformer, *name, None)).collect::<Result<_>>()?;
        let names = Vec::from_iter(names);
        Ok((models, adapters.iter().map(|adapter| names.partition_point(|name| name < adapter)).collect()))
    }

    /// The model with an adapter or for a task.
    fn model_for<'a>(
        &self,
        transformer: &'a Transformer,
        adapter: Option<&str>,
        task: Option<Task>,
    ) -> Result<Cow<'a, TextModel>> {
        let adapters = &transformer.adapters;
        match (adapter, self.adapter_task(task)) {
            (None, None) => Ok(Cow::Borrowed(&transformer.model)),
            (Some(adapter), Some(_)) => Err(Error::value("adapter", adapter, "none beside a task")),
            (Some(name), None) => adapters.models.get(name).map(Cow::Borrowed).ok_or_else(|| {
                let known: Vec<&str> = adapters.models.keys().map(String::as_str).collect();
                let known =
                    if known.is_empty() { "none: the encoder has no adapters".to_string() } else { known.join(" or ") };
                Error::value("adapter", name, known)
            }),
            (None, Some(task)) => match (&adapters.tasks, &adapters.base) {
                (Some(models), Some(base)) => models.model(task, base, &transformer.model).map(Cow::Owned),
                _ => {
                    let expected = "query or document: the checkpoint holds no adapters for other tasks";
                    Err(Error::value("task", task, expected))
                }
            },
        }
    }

    /// The name of a task that needs an adapter of the checkpoint: of a checkpoint without adapters, `query` and
    /// `document` need none.
    fn adapter_task<'a>(&self, task: Option<Task<'a>>) -> Option<&'a str> {
        let has_tasks = self.tasks().next().is_some();
        task.map(Task::name).filter(|name| has_tasks || matches!(Task::from(*name), Task::Named(_)))
    }

    /// The text before each text of a call: the prompt of the options, or the one that they name, or else the
    /// instruction of their task, or the model's default prompt.
    pub(crate) fn prompt<'a>(&'a self, options: &EncodeOptions<'a>) -> Result<&'a str> {
        let adapters = self.transformer().ok().and_then(|transformer| transformer.adapters.tasks.as_ref());
        match (options.prompt.or(options.prompt_name), options.task, adapters) {
            (None, Some(task), Some(models)) => models.tasks.instruction(task.name()),
            _ => self.settings.prompts.choose(options, None),
        }
    }
}
