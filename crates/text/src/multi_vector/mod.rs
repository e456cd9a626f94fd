//! `MultiVectorEncoder`: a vector per token, for late interaction.

pub(crate) mod max_sim;
mod settings;
mod tokens;

use candle_attention::Result;
use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::tensor::compute_dtype;
use candle_core::Tensor;

use crate::constructors::constructors;
use crate::folder::{ModelFolder, modules};
use crate::model::hidden_states::{HiddenStates, first_not_finite};
use crate::model::pooling::l2_normalize;
use crate::model::text_model::TextModel;
use crate::multi_vector::max_sim::max_sim;
use crate::multi_vector::settings::{Layer, Settings};
use crate::multi_vector::tokens::TokenRules;
use crate::prompts::Prompts;
use crate::sentence::dense::Dense;
use crate::sentence::modules::check_keys;
use crate::text::batches::TextBatcher;
use crate::text::options::{EncodeOptions, Task, check_finite};
use crate::text::tokenizer::Tokens;

/// A vector for each token of a text, as the `MultiVectorEncoder` of sentence-transformers computes them: ColBERT
/// ([Khattab 2020](https://arxiv.org/abs/2004.12832)) and its successors. A query and a document are compared by
/// [`max_sim`](crate::max_sim).
///
/// ```no_run
/// use candle_attention_text::{EncodeOptions, MultiVectorEncoder};
/// use candle_core::{DType, Device};
/// let encoder = MultiVectorEncoder::from_folder("answerai-colbert-small-v1", DType::F32, &Device::Cpu)?;
/// let queries = encoder.encode_query(&["Who sleeps?"], &EncodeOptions::default())?;
/// let documents = encoder.encode_document(&["A cat sleeps.", "Stocks fell."], &EncodeOptions::default())?;
/// println!("{:?}", encoder.similarity(&queries, &documents)?);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct MultiVectorEncoder {
    model: TextModel,
    batcher: TextBatcher,
    rules: TokenRules,
    /// The modules for the vectors of tokens; `None` is normalization.
    steps: Vec<Option<Dense>>,
    prompts: Prompts,
    is_mean: bool,
    size: usize,
}

impl MultiVectorEncoder {
    constructors! {
        /// The model of a folder as sentence-transformers 6, PyLate or ColBERT's own code saves it.
        ///
        /// # Errors
        /// A file that is missing or malformed; a model that gives no vectors of tokens; a module that this version
        /// cannot run, such as a pooling of tokens.
        from_folder, from_files, from_hub, open;
    }

    fn with_source(folder: ModelFolder, source: &AnySource) -> Result<Self> {
        let modules = modules(folder)?;
        let settings = Settings::load(folder, modules.as_deref())?;
        let config = folder.transformer_config(&settings.transformer)?;
        let inline = source.child("linear");
        let model = TextModel::load_from(&config, source)?;
        let (mut steps, mut size) = (Vec::new(), model.output_size());
        for layer in &settings.layers {
            let dense = match layer {
                Layer::Normalize => None,
                Layer::Dense(path) => {
                    check_keys(folder, path, "Dense", "token_embeddings", "token_embeddings")?;
                    Some(Dense::load(folder, path, size, model.device())?)
                }
                Layer::Inline => Some(Dense::inline(&inline, size)?),
            };
            size = dense.as_ref().map_or(size, Dense::out_features);
            steps.push(dense);
        }
        let batcher = TextBatcher::load(folder, &settings.transformer, &model)?;
        let rules = TokenRules::new(folder, &settings, &batcher.tokenizer, &config)?;
        Ok(Self { model, batcher, rules, steps, prompts: settings.prompts, is_mean: settings.is_mean, size })
    }

    /// The dimension of the vectors.
    pub fn embedding_size(&self) -> usize {
        self.size
    }

    /// The vectors of each text's tokens, `(tokens, embedding_size)` in f32 (f64 for an f64 model), in the order of
    /// `texts`: as of a document, with the model's default prompt. Special tokens count; those that the model skips do
    /// not.
    ///
    /// # Errors
    /// A batch size of 0; a maximum length beyond the positions of the model; a prompt that the model does not have; a
    /// token that the model does not have; [`Error::NotFinite`](candle_attention::Error::NotFinite) for the first text
    /// with a vector that is not finite.
    pub fn encode(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<Tensor>> {
        self.run(texts, options, None)
    }

    /// [`encode`](Self::encode) for texts that search: with the model's prompt and length for queries, and expanded by
    /// its mask tokens, which count too.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode); a maximum length, if all queries of the model have one length.
    pub fn encode_query(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<Tensor>> {
        self.run(texts, options, Some(Task::Query))
    }

    /// [`encode`](Self::encode) for texts that are searched: with the model's prompt and length for documents.
    ///
    /// # Errors
    /// The errors of [`encode`](Self::encode).
    pub fn encode_document(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<Tensor>> {
        self.run(texts, options, Some(Task::Document))
    }

    /// The score of each query with each document by [`max_sim`](crate::max_sim), divided by the number of the
    /// query's vectors if the model states `meanmaxsim`.
    ///
    /// # Errors
    /// The errors of [`max_sim`](crate::max_sim).
    pub fn similarity(&self, queries: &[Tensor], documents: &[Tensor]) -> Result<Vec<Vec<f32>>> {
        let query_scores = |query: &Tensor| {
            let mut scores = max_sim(query, documents)?;
            if self.is_mean {
                let count = query.dim(0)? as f32;
                scores.iter_mut().for_each(|score| *score /= count);
            }
            Ok(scores)
        };
        queries.iter().map(query_scores).collect()
    }

    fn run(&self, texts: &[&str], options: &EncodeOptions, task: Option<Task<'static>>) -> Result<Vec<Tensor>> {
        let (options, stated_task) = &options.split_task()?;
        let prompt = self.prompts.choose(options, task)?;
        let task = task.or(*stated_task);
        let tokenizer = self.batcher.tokenizer_for(self.rules.max_length(task, options.max_length)?, &self.model)?;
        let (tokenizer, prompt) = self.rules.tokenizer(tokenizer, prompt)?;
        let all = self.batcher.batches_by(tokenizer, &self.model, texts, prompt, options)?.in_text_order(|batch| {
            let hidden = self.hidden(&mut batch.tokens, task)?;
            let tokens = batch.tokens.iter().enumerate();
            tokens.map(|(i, tokens)| self.vectors(&hidden.text(i)?, &tokens.ids, task)).collect()
        })?;
        check_finite("a vector", texts, self.batcher.dtype, |i| Ok(first_not_finite(&all[i])?.is_none()))?;
        Ok(all)
    }

    /// Expands the queries of a batch, and returns the hidden states of all tokens.
    fn hidden(&self, batch: &mut [Tokens], task: Option<Task>) -> Result<HiddenStates> {
        let Some(expansion) = self.rules.expansion_of(task).filter(|(expansion, _)| expansion.is_encoded) else {
            return self.batcher.hidden(&self.model, batch);
        };
        let lengths: Vec<usize> = batch.iter().map(Tokens::len).collect();
        batch.iter_mut().for_each(|tokens| TokenRules::expand(expansion, tokens));
        if expansion.0.attend {
            return self.batcher.hidden(&self.model, batch);
        }
        // The tokens that were added attend to those of the query, and no token attends to them.
        self.batcher.hidden_under(&self.model, batch, &lengths)
    }

    /// hidden `(tokens, hidden_size)` → the vectors of the tokens that count `(counted, size)`.
    fn vectors(&self, hidden: &Tensor, ids: &[u32], task: Option<Task>) -> Result<Tensor> {
        let counted = Tensor::new(self.rules.counted(task, ids), hidden.device())?;
        let hidden = hidden.index_select(&counted, 0)?.to_dtype(compute_dtype(hidden.dtype()))?;
        self.steps.iter().try_fold(hidden, |xs, dense| match dense {
            Some(dense) => dense.forward(&xs),
            None => l2_normalize(&xs),
        })
    }
}
