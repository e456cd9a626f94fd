//! From texts to embeddings: of whole texts, of queries and documents, of their tokens, of texts from an iterator.

use candle_attention::error::cut_to;
use candle_attention::{Error, Result};
use candle_core::Tensor;

use crate::model::hidden_states::first_not_finite;
use crate::model::pooling::l2_normalize;
use crate::sentence::SentenceEncoder;
use crate::sentence::transformer::{Input, Transformer};
use crate::text::options::{EncodeOptions, Task, WINDOW, check_finite};
use crate::text::tokenizer::Text;

/// The number of bytes of text at which no more texts are taken: 64 MiB. Texts of all lengths then need about as much
/// memory.
const WINDOW_BYTES: usize = 1 << 26;

impl SentenceEncoder {
    /// One embedding per text, `(texts, embedding_size)` in f32 (f64 for an f64 model), in the order of `texts`.
    ///
    /// [`EncodeOptions::truncate_dim`] keeps the first features only, and [`EncodeOptions::normalize_embeddings`] then
    /// divides by the length, as sentence-transformers does.
    ///
    /// Beside the result, memory is needed for the tokens of 8,192 texts and for one batch, however many texts there
    /// are.
    ///
    /// # Errors
    /// A batch size of 0; a maximum length beyond the positions of the model; a prompt, an adapter or a task that the
    /// model does not have; a text of more than 16 MiB or without tokens; a token that the model does not have;
    /// [`Error::NotFinite`] for the first text whose embedding is not finite; [`Error::Tokenizer`] if `tokenizer.json`
    /// is malformed in a way that only a text shows.
    pub fn encode(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        options.check()?;
        let (encoder, options) = &self.route_of(options)?;
        if texts.is_empty() {
            return encoder.no_embeddings(options);
        }
        let embeddings = match (&encoder.input, options.any_adapter()) {
            (Input::Transformer(transformer), _) => encoder.embed(transformer, texts, options)?,
            (Input::Static(table), None) => {
                encoder.finish(table.embed(texts, encoder.prompt(options)?, options)?, options)?
            }
            (Input::Static(_), Some(adapter)) => {
                return Err(Error::value("adapter", adapter, "none: a static embedding has no adapters"));
            }
        };
        match first_not_finite(&embeddings)? {
            Some(i) => {
                let what = format_args!("the embedding of text {}, `{}`", options.first_text + i, cut_to(texts[i], 80));
                let model_dtype = encoder.transformer().map(|transformer| transformer.batcher.dtype);
                Err(Error::not_finite(what, model_dtype.unwrap_or(encoder.input.dtype())))
            }
            None => Ok(embeddings),
        }
    }

    /// [`encode`](Self::encode) for search queries: with the options of [`query_options`](Self::query_options).
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_query(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        self.encode(texts, &self.query_options(*options))
    }

    /// [`encode`](Self::encode) for documents to be searched: with the options of
    /// [`document_options`](Self::document_options).
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_document(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        self.encode(texts, &self.document_options(*options))
    }

    /// The options for search queries: [`Task::Query`], and the model's prompt `query` unless the options name another.
    /// A model without it has an empty one, which also replaces its default prompt, as in sentence-transformers.
    pub fn query_options<'a>(&self, options: EncodeOptions<'a>) -> EncodeOptions<'a> {
        self.options_for(options, Task::Query)
    }

    /// The options for documents to be searched: [`Task::Document`], and the model's prompt `document` unless the
    /// options name another. A model without it has an empty one, which also replaces its default prompt, as in
    /// sentence-transformers.
    pub fn document_options<'a>(&self, options: EncodeOptions<'a>) -> EncodeOptions<'a> {
        self.options_for(options, Task::Document)
    }

    /// The vectors of the tokens of each text before pooling, `(tokens, width)` in f32 (f64 for an f64 model): special
    /// tokens and those of the prompt included, without padding. They are neither truncated nor normalized.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_tokens(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<Tensor>> {
        options.check()?;
        let (encoder, options) = &self.route_of(options)?;
        let transformer = encoder.transformer()?;
        let (models, groups) = encoder.models_for(transformer, texts.len(), options)?;
        let (batcher, prompt) = (&transformer.batcher, encoder.prompt(options)?);
        let batches = batcher.batches(&transformer.model, texts, prompt, options)?.grouped(&groups);
        let rows = batches.in_text_order(|batch| {
            let hidden = batcher.hidden(&models[batch.group], &batch.tokens)?;
            (0..batch.texts.len()).map(|i| Ok(hidden.text(i)?.to_dtype(encoder.input.dtype())?)).collect()
        })?;
        check_finite("the vector of a token", texts, batcher.dtype, |i| Ok(first_not_finite(&rows[i])?.is_none()))?;
        Ok(rows)
    }

    /// The ids of the tokens of each text, one for each vector of [`encode_tokens`](Self::encode_tokens).
    ///
    /// # Errors
    /// A maximum length beyond the positions of the model; a prompt that the model does not have; a model whose first
    /// module is no transformer; [`Error::Tokenizer`] if `tokenizer.json` is malformed in a way that only a text shows.
    pub fn token_ids(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<Vec<u32>>> {
        let (encoder, options) = &self.route_of(options)?;
        let transformer = encoder.transformer()?;
        let texts: Vec<Text> = texts.iter().map(|text| Text::One(text)).collect();
        let tokens = transformer.tokenizer_for(options)?.encode(&texts, encoder.prompt(options)?)?;
        Ok(tokens.into_iter().map(|tokens| tokens.ids).collect())
    }

    /// The embeddings `(embedding_size)` of texts from an iterator, in their order, as [`encode`](Self::encode)
    /// computes them.
    ///
    /// Texts are taken from the iterator when the embeddings before them have been given out: up to 8,192 at a time, or
    /// 64 MiB, which run in batches of similar length. So memory does not grow with the number of texts.
    /// [`EncodeOptions::on_progress`] gets the number of texts taken so far.
    ///
    /// ```
    /// use candle_attention_text::{EncodeOptions, SentenceEncoder};
    /// use candle_core::{DType, Device};
    /// let encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
    /// let texts = (0..3).map(|i| format!("Text number {i}."));
    /// for embedding in encoder.encode_iter(texts, EncodeOptions::default()) {
    ///     assert_eq!(embedding?.dims(), [128]);
    /// }
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode), with the index of the text among all. The iterator ends after an error.
    pub fn encode_iter<'a, I>(
        &'a self,
        texts: I,
        mut options: EncodeOptions<'a>,
    ) -> impl Iterator<Item = Result<Tensor>> + use<'a, I>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let (mut texts, mut failed) = (texts.into_iter(), false);
        let windows = std::iter::from_fn(move || {
            let (mut window, mut bytes) = (Vec::new(), 0);
            while !failed && window.len() < WINDOW && bytes < WINDOW_BYTES {
                let Some(text) = texts.next() else { break };
                bytes += text.as_ref().len();
                window.push(text);
            }
            if window.is_empty() {
                return None;
            }
            let window: Vec<&str> = window.iter().map(AsRef::as_ref).collect();
            let embeddings = self.encode(&window, &options);
            options.first_text += window.len();
            failed = embeddings.is_err();
            Some(match embeddings {
                Ok(embeddings) => (0..window.len()).map(|i| Ok(embeddings.get(i)?)).collect(),
                Err(error) => vec![Err(error)],
            })
        });
        windows.flatten()
    }

    /// How similar embeddings `a` `(n, d)` and `b` `(m, d)` are, each with each: `(n, m)`, by
    /// [`similarity_fn`](Self::similarity_fn).
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn similarity(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.similarity_fn().similarity(a, b)
    }

    /// How similar embeddings `a` and `b`, both `(n, d)`, are row by row: `(n)`, by
    /// [`similarity_fn`](Self::similarity_fn).
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn similarity_pairwise(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.similarity_fn().similarity_pairwise(a, b)
    }

    /// The encoder of the route of a call, as the `Router` of sentence-transformers resolves it, and the options
    /// without the task, if the router has used it.
    pub(super) fn route_of<'a>(&self, options: &EncodeOptions<'a>) -> Result<(&Self, EncodeOptions<'a>)> {
        let Some(own) = &self.route_name else { return Ok((self, *options)) };
        let named = |name: &str| if own == name { Some(self) } else { self.others.get(name) };
        let task = options.task.map(Task::name);
        // Fall back to a route named `text`.
        let encoder = match task.and_then(named).or_else(|| named("text")) {
            Some(encoder) => encoder,
            None if task.is_none() && !self.needs_task => self,
            None => return Err(Error::value("the task", task.unwrap_or("not set"), self.routes().join(" or "))),
        };
        let max_length = encoder.input.max_length_for(options);
        Ok((encoder, EncodeOptions { task: None, max_length, ..*options }))
    }

    /// The embeddings of texts that run through a transformer in batches, `(texts, size)`.
    fn embed(&self, transformer: &Transformer, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        let (models, groups) = self.models_for(transformer, texts.len(), options)?;
        let prompt = self.prompt(options)?;
        let excluded_prefix = transformer.excluded_prefix(prompt)?;
        let batches = transformer.batcher.batches(&transformer.model, texts, prompt, options)?.grouped(&groups);
        let rows = batches.in_text_order(|batch| {
            let pooled = transformer.encode_and_pool(&models[batch.group], &batch.tokens, excluded_prefix)?;
            Ok(self.finish(pooled, options)?.chunk(batch.texts.len(), 0)?)
        })?;
        Ok(Tensor::cat(&rows, 0)?)
    }

    /// The embeddings of no texts, `(0, size)`.
    pub(super) fn no_embeddings(&self, options: &EncodeOptions) -> Result<Tensor> {
        Ok(Tensor::zeros((0, self.size_for(options)), self.input.dtype(), self.input.device())?)
    }

    /// The steps after pooling: the modules of the model; then the first features of each row are kept, and divided by
    /// their length. `(b, width)` → `(b, size)`.
    pub(super) fn finish(&self, pooled: Tensor, options: &EncodeOptions) -> Result<Tensor> {
        let kept = self.modules.forward(pooled)?.narrow(1, 0, self.size_for(options))?;
        if options.normalize_embeddings { l2_normalize(&kept) } else { Ok(kept) }
    }

    /// The size of an embedding after truncation.
    pub(super) fn size_for(&self, options: &EncodeOptions) -> usize {
        let size = self.output_size();
        options.truncate_dim.or(self.settings.truncate_dim).map_or(size, |most| most.min(size))
    }
}
