//! From texts to embeddings: of whole texts, of queries and documents, of their tokens.

use candle_attention::error::cut_to;
use candle_attention::{Error, Result};
use candle_core::Tensor;

use crate::heads::pooling::l2_normalize;
use crate::model::hidden_states::first_not_finite;
use crate::prompts::Task;
use crate::sentence::SentenceEncoder;
use crate::sentence::input::Input;
use crate::sentence::transformer::Transformer;
use crate::text::options::EncodeOptions;
use crate::text::tokenizer::Text;

impl SentenceEncoder {
    /// One embedding per text, `(texts, embedding_size)` in f32 (f64 for an f64 model), in the order of `texts`.
    ///
    /// [`EncodeOptions::truncate_dim`] keeps the first features only, and [`EncodeOptions::normalize_embeddings`] then
    /// divides by the length, as sentence-transformers does.
    ///
    /// Beside the result, memory is needed for the tokens of 8,192 texts and for one batch, however many texts there are.
    ///
    /// # Errors
    /// A batch size of 0; a maximum length beyond the positions of the model; a prompt, an adapter or a task that the model
    /// does not have; a text of more than 16 MiB or without tokens; a token that the model does not have;
    /// [`Error::NotFinite`] for the first text whose embedding is not finite; [`Error::Tokenizer`] if `tokenizer.json` is
    /// malformed in a way that only a text shows.
    pub fn encode(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        options.check()?;
        let (encoder, options) = &self.route_of(options)?;
        if texts.is_empty() {
            return encoder.no_embeddings(options);
        }
        let embeddings = match options.adapters {
            Some(adapters) => encoder.embed_by_adapter(texts, adapters, options)?,
            None => encoder.embed(texts, options)?,
        };
        match first_not_finite(&embeddings)? {
            Some(i) => Err(encoder.not_finite("embedding", options.first_text + i, texts[i])),
            None => Ok(embeddings),
        }
    }

    /// [`encode`](Self::encode) for texts that search: with the options of [`query_options`](Self::query_options).
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_query(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        self.encode(texts, &self.query_options(*options))
    }

    /// [`encode`](Self::encode) for texts that are searched: with the options of
    /// [`document_options`](Self::document_options).
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_document(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        self.encode(texts, &self.document_options(*options))
    }

    /// The options for texts that search: the task `query`, and the model's prompt `query` unless the options name another.
    /// A model without it has an empty one, which also replaces its default prompt, as in sentence-transformers.
    pub fn query_options<'a>(&self, options: EncodeOptions<'a>) -> EncodeOptions<'a> {
        self.options_for(options, Task::Query)
    }

    /// The options for texts that are searched: the task `document`, and the model's prompt `document` unless the options
    /// name another. A model without it has an empty one, which also replaces its default prompt, as in
    /// sentence-transformers.
    pub fn document_options<'a>(&self, options: EncodeOptions<'a>) -> EncodeOptions<'a> {
        self.options_for(options, Task::Document)
    }

    /// The vectors of the tokens of each text before pooling, `(tokens, width)` in f32 (f64 for an f64 model): special
    /// tokens and those of the prompt included, without padding. They are neither truncated nor normalized.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_tokens(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<Tensor>> {
        options.check()?;
        let (encoder, options) = &self.route_of(options)?;
        let transformer = encoder.transformer()?;
        let (model, prompt) = (encoder.model_for(transformer, options)?, encoder.prompt(options)?);
        let options = &EncodeOptions { adapter: None, task: None, ..*options };
        let sequences: Vec<Text> = texts.iter().map(|text| Text::One(text)).collect();
        let rows = transformer.batcher.run(&model, &sequences, prompt, options, |batch, hidden| {
            let one = |i: usize| Ok(hidden.text(i)?.to_dtype(encoder.input.dtype())?);
            (0..batch.len()).map(one).collect()
        })?;
        for (i, tokens) in rows.iter().enumerate() {
            if first_not_finite(tokens)?.is_some() {
                return Err(encoder.not_finite("vector of a token", i, texts[i]));
            }
        }
        Ok(rows)
    }

    /// The ids of the tokens of each text, one for each vector of [`encode_tokens`](Self::encode_tokens).
    ///
    /// # Errors
    /// A maximum length beyond the positions of the model; a prompt that the model does not have; a model whose first module
    /// is no transformer; [`Error::Tokenizer`] if `tokenizer.json` is malformed in a way that only a text shows.
    pub fn token_ids(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<Vec<u32>>> {
        let (encoder, options) = &self.route_of(options)?;
        let transformer = encoder.transformer()?;
        let texts: Vec<Text> = texts.iter().map(|text| Text::One(text)).collect();
        let tokenizer = transformer.batcher.tokenizer_for(options.max_length, &transformer.model)?;
        let tokens = tokenizer.encode(&texts, encoder.prompt(options)?)?;
        Ok(tokens.into_iter().map(|tokens| tokens.ids).collect())
    }

    /// How similar embeddings `a` `(n, d)` and `b` `(m, d)` are, each with each: `(n, m)`, by
    /// [`similarity_fn`](Self::similarity_fn).
    ///
    /// # Errors
    /// If the shapes do not fit each other.
    pub fn similarity(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.similarity_fn().similarity(a, b)
    }

    /// How similar embeddings `a` and `b`, both `(n, d)`, are row by row: `(n)`, by [`similarity_fn`](Self::similarity_fn).
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn similarity_pairwise(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        self.similarity_fn().similarity_pairwise(a, b)
    }

    /// [`encode`](Self::encode) of this route with one model, without looking whether the embeddings are finite.
    pub(super) fn embed(&self, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
        let prompt = self.prompt(options)?;
        match &self.input {
            Input::Transformer(transformer) => self.embed_batches(transformer, texts, prompt, options),
            Input::Static(table) => match options.adapter {
                Some(adapter) => Err(Error::value("adapter", adapter, "none: a static embedding has no adapters")),
                None => self.finish(table.embed(texts, prompt, options)?, options),
            },
        }
    }

    /// The embeddings of texts that run through a transformer in batches.
    fn embed_batches(
        &self,
        transformer: &Transformer,
        texts: &[&str],
        prompt: &str,
        options: &EncodeOptions,
    ) -> Result<Tensor> {
        let model = &*self.model_for(transformer, options)?;
        let options = &EncodeOptions { adapter: None, task: None, ..*options };
        let sequences: Vec<Text> = texts.iter().map(|text| Text::One(text)).collect();
        let uncounted = transformer.uncounted(prompt)?;
        let rows = transformer.batcher.run_tokens(model, &sequences, prompt, options, |batch| {
            let embeddings = self.finish(transformer.pool_batch(model, batch, uncounted)?, options)?;
            (0..batch.len()).map(|i| Ok(embeddings.narrow(0, i, 1)?)).collect()
        })?;
        Ok(Tensor::cat(&rows, 0)?)
    }

    /// The embeddings of no texts, `(0, size)`.
    pub(super) fn no_embeddings(&self, options: &EncodeOptions) -> Result<Tensor> {
        Ok(Tensor::zeros((0, self.size_for(options)), self.input.dtype(), self.input.device())?)
    }

    /// What comes after pooling: the modules of the model; then the first features of each row are kept, and divided by
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

    fn not_finite(&self, what: &str, i: usize, text: &str) -> Error {
        let dtype = match &self.input {
            Input::Transformer(transformer) => transformer.batcher.dtype,
            Input::Static(table) => table.dtype(),
        };
        Error::not_finite(format_args!("the {what} of text {i}, `{}`", cut_to(text, 80)), dtype)
    }
}
