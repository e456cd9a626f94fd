//! Encoding with adapters: one for all texts of a call, or one for each text.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use candle_attention::lora::LoraAdapter;
use candle_attention::{Error, Result};
use candle_core::Tensor;

use crate::model::bert::BertModel;
use crate::prompts::Task;
use crate::sentence::SentenceEncoder;
use crate::sentence::input::Input;
use crate::sentence::transformer::Transformer;
use crate::text::options::EncodeOptions;

impl SentenceEncoder {
    /// Merges an adapter with a copy of the model's weights, for calls with
    /// [`with_adapter`](EncodeOptions::with_adapter) of this name. Calls without it run the base model, whose weights stay
    /// as they are, bit for bit. An adapter that has the name already is replaced.
    ///
    /// A call with an adapter costs what one without costs. The memory of an adapter is that of the projections that it
    /// changes: all others are shared with the base model (one of queries, keys or values means all three). Of BERT, an
    /// adapter for queries and values takes a quarter of the layers' weights.
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
    /// Those of [`LoraAdapter::apply`]. An encoder whose weights were given by [`load`](Self::load), or that has an adapter
    /// in its own folder, does not know its base model's: give `load` the [`AdaptedSource`](candle_attention::lora::AdaptedSource) instead.
    pub fn add_adapter(&mut self, name: &str, adapter: &LoraAdapter) -> Result<()> {
        let Input::Transformer(transformer) = &mut self.input else {
            return self.transformer().map(drop);
        };
        let Some(base) = &transformer.adapters.base else {
            let expected = "one that was loaded from its own folder: give `load` the adapted weights";
            return Err(Error::value("the encoder for an adapter", "one without weights to adapt", expected));
        };
        let adapted = BertModel::load(transformer.model.config(), adapter.apply(base.clone())?)?;
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

    /// The names of the tasks that the checkpoint holds adapters for, as Jina embeddings v3 does, in its order. A call with
    /// [`with_task`](EncodeOptions::with_task) runs the adapter of a task and puts its instruction before each text, as
    /// `encode(task=…)` of the published model. A task takes the memory of a model of its own from its first call on.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        let models = self.transformer().into_iter().flat_map(|transformer| &transformer.adapters.tasks);
        models.flat_map(|models| models.tasks.names())
    }

    /// The options for texts that are for `task` in a search: its route and prompt; or, of a checkpoint with adapters for
    /// tasks, that of the retrieval task, as in Jina embeddings v3.
    pub(super) fn options_for<'a>(&self, mut options: EncodeOptions<'a>, task: Task) -> EncodeOptions<'a> {
        let retrieval = match task {
            Task::Query => "retrieval.query",
            Task::Document => "retrieval.passage",
        };
        if self.tasks().any(|name| name == retrieval) {
            return options.with_task(retrieval);
        }
        if options.prompt.is_none() {
            options.prompt_name = options.prompt_name.or(Some(task.name()));
        }
        options.with_task(task.name())
    }

    /// The model that runs a call on this route.
    pub(super) fn model_for<'a>(
        &self,
        transformer: &'a Transformer,
        options: &EncodeOptions,
    ) -> Result<Cow<'a, BertModel>> {
        let adapters = &transformer.adapters;
        let task = self.adapter_task(options);
        match (options.adapter, task) {
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
                _ => Err(Error::value(
                    "task",
                    task,
                    "query or document: the checkpoint holds no adapters for other tasks",
                )),
            },
        }
    }

    /// The task of a call, if an adapter of the checkpoint is for it: not what every model may be asked for.
    fn adapter_task<'a>(&self, options: &EncodeOptions<'a>) -> Option<&'a str> {
        let has_tasks = self.tasks().next().is_some();
        let is_usual =
            |task: &str| !has_tasks && [Task::Query, Task::Document].iter().any(|usual| usual.name() == task);
        options.task.filter(|task| !is_usual(task))
    }

    /// What is put before each text of a call: the prompt of the options, or that which they name, or else the instruction
    /// of their task, or the model's default prompt.
    pub(crate) fn prompt<'a>(&'a self, options: &EncodeOptions<'a>) -> Result<&'a str> {
        let adapters = self.transformer().ok().and_then(|transformer| transformer.adapters.tasks.as_ref());
        match (options.prompt.or(options.prompt_name), options.task, adapters) {
            (None, Some(task), Some(models)) => models.tasks.instruction(task),
            _ => self.settings.prompts.of(options, None),
        }
    }

    /// The embeddings of texts of which each has its own adapter, or none: `(texts, size)`.
    pub(super) fn embed_by_adapter(
        &self,
        texts: &[&str],
        adapters: &[Option<&str>],
        options: &EncodeOptions,
    ) -> Result<Tensor> {
        if adapters.len() != texts.len() {
            return Err(Error::value(
                "the number of adapters",
                adapters.len(),
                format!("{}, that of texts", texts.len()),
            ));
        }
        if let Some(given) = options.adapter.or(options.task) {
            return Err(Error::value("the adapter or task of all texts", given, "none: each text has its own adapter"));
        }
        let mut groups = BTreeMap::<Option<&str>, Vec<usize>>::new();
        for (i, adapter) in adapters.iter().enumerate() {
            groups.entry(*adapter).or_default().push(i);
        }
        let calls: Vec<_> =
            groups.keys().map(|adapter| EncodeOptions { adapters: None, adapter: *adapter, ..*options }).collect();
        let transformer = self.transformer()?;
        calls.iter().try_for_each(|call| self.model_for(transformer, call).map(drop))?;
        let (done, mut parts, mut rows) = (Cell::new(0), Vec::new(), vec![0u32; texts.len()]);
        for (call, group) in calls.into_iter().zip(groups.values()) {
            let members: Vec<&str> = group.iter().map(|&i| texts[i]).collect();
            let on_truncated = |i: usize| options.on_truncated.into_iter().for_each(|call| call(group[i]));
            let on_progress =
                |n: usize, _| options.on_progress.into_iter().for_each(|call| call(done.get() + n, texts.len()));
            parts.push(self.embed(&members, &call.with_on_truncated(&on_truncated).with_on_progress(&on_progress))?);
            for (row, &i) in (done.get()..).zip(group) {
                rows[i] = row as u32;
            }
            done.set(done.get() + group.len());
        }
        match parts.is_empty() {
            true => self.embed(texts, &EncodeOptions { adapters: None, ..*options }),
            false => Ok(Tensor::cat(&parts, 0)?.index_select(&Tensor::new(rows, self.input.device())?, 0)?),
        }
    }
}
