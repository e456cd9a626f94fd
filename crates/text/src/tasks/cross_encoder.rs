//! `CrossEncoder`: scores of pairs of texts, and ranking.

use std::path::Path;

use candle_attention::checkpoint::AnySource;
use candle_attention::{Error, Result};
use serde_json::{Map, Value};

use crate::constructors::constructors;
use crate::folder::{ModelFolder, modules, transformer_of};
use crate::model::config::TextModelConfig;
use crate::prompts::Prompts;
use crate::tasks::text_classifier::TextClassifier;
use crate::tasks::token_scorer::TokenScorer;
use crate::text::chat_template::ChatTemplate;
use crate::text::options::EncodeOptions;
#[cfg(feature = "visualize")]
use crate::{text::attention_maps::MapOptions, visualize::AttentionMaps};

/// Scores pairs of texts, as the `CrossEncoder` of sentence-transformers: the model reads both texts together. The
/// score is the sigmoid of the logit, unless the model's files name another activation. The logit is that of a
/// classification head, or of the answer of a causal language model (Qwen3-Reranker), whose chat template is applied. A
/// prompt goes before the query, or into the template as the message of the role `system`.
///
/// A head with several labels has [`logits`](CrossEncoder::logits) and no scores.
///
/// ```no_run
/// use candle_attention_text::{CrossEncoder, EncodeOptions};
/// use candle_core::{DType, Device};
/// let encoder = CrossEncoder::from_folder("ms-marco-MiniLM-L6-v2", DType::F32, &Device::Cpu)?;
/// let documents = ["Paris has two million inhabitants.", "Bread is baked.", "London is large."];
/// for ranked in encoder.rank("How many people live in Paris?", &documents, &EncodeOptions::default())? {
///     println!("{:.3} {}", ranked.score, documents[ranked.index]); // the best first
/// }
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CrossEncoder {
    scorer: Scorer,
    sigmoid: bool,
    prompts: Prompts,
}

/// Where scores come from.
#[derive(Debug, Clone)]
enum Scorer {
    /// A classification head.
    Head(Box<TextClassifier>),
    /// The next token of a causal language model.
    Token(Box<TokenScorer>),
}

/// A document and its score.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Ranked {
    /// The index of the document in the list passed to [`CrossEncoder::rank`].
    pub index: usize,
    /// The relevance of the document to the query; the larger, the better.
    pub score: f32,
}

impl CrossEncoder {
    constructors! {
        /// The model of a folder: `config.json`, `tokenizer.json`, `model.safetensors` (or shards).
        ///
        /// # Errors
        /// The errors of [`TextClassifier::from_folder`]; an activation other than a sigmoid or none.
        from_folder, from_files, from_hub, load, open;
    }

    fn with_source(folder: ModelFolder, source: &AnySource) -> Result<Self> {
        let modules = modules(folder)?;
        let transformer = transformer_of(folder.path, modules.as_deref());
        let config = folder.transformer_config(&transformer)?;
        let (stated, prompts) = (sigmoid(folder, &transformer, &config)?, Prompts::load(folder)?);
        if TokenScorer::fits(modules.as_deref(), &config) {
            let scorer = TokenScorer::load(folder, modules.as_deref(), &transformer, &config, source)?;
            return Ok(Self { scorer: Scorer::Token(Box::new(scorer)), sigmoid: stated.unwrap_or(true), prompts });
        }
        if ChatTemplate::load(folder, &transformer, modules.is_some())?.is_some() {
            let reason = "its texts go through a chat template, which this version does for `LogitScore` models alone";
            return Err(Error::file(transformer, reason));
        }
        let classifier = TextClassifier::with_source(folder, source)?;
        let sigmoid = stated.unwrap_or(classifier.labels().len() == 1);
        Ok(Self { scorer: Scorer::Head(Box::new(classifier)), sigmoid, prompts })
    }

    /// The number of logits of a pair: 1, or the number of labels of a model that classifies pairs.
    pub fn num_labels(&self) -> usize {
        match &self.scorer {
            Scorer::Head(classifier) => classifier.labels().len(),
            Scorer::Token(_) => 1,
        }
    }

    /// Whether a score is the sigmoid of a logit, as the model's files say; else, with one label, it is.
    pub fn has_sigmoid(&self) -> bool {
        self.sigmoid
    }

    /// The maximum number of tokens of a pair, special tokens included; of a longer pair, the longer text is cut first.
    pub fn max_seq_length(&self) -> usize {
        match &self.scorer {
            Scorer::Head(classifier) => classifier.max_seq_length(),
            Scorer::Token(scorer) => scorer.batcher.max_seq_length,
        }
    }

    /// The names and texts of the prompts that the model's folder states, sorted by name.
    pub fn prompts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.prompts.all()
    }

    /// The name of the prompt of a call that names none, if the folder states one.
    pub fn default_prompt_name(&self) -> Option<&str> {
        self.prompts.default_name()
    }

    /// The logits of each pair before any activation, one per label.
    ///
    /// # Errors
    /// A batch size of 0; a prompt or a token that the model does not have.
    pub fn logits(&self, pairs: &[(&str, &str)], options: &EncodeOptions) -> Result<Vec<Vec<f32>>> {
        let prompt = self.prompts.reranker_prompt(options)?;
        match &self.scorer {
            Scorer::Head(classifier) => classifier.prompted_logits(pairs, prompt, options),
            Scorer::Token(scorer) => {
                Ok(scorer.scores(pairs, prompt, options)?.into_iter().map(|logit| vec![logit]).collect())
            }
        }
    }

    /// The score of each pair.
    ///
    /// # Errors
    /// A model with more than one label; those of [`logits`](Self::logits).
    pub fn scores(&self, pairs: &[(&str, &str)], options: &EncodeOptions) -> Result<Vec<f32>> {
        let labels = self.num_labels();
        if labels != 1 {
            let expected =
                "one; a model with more labels has `logits`, or is a classifier (`TextClassifier`, `classify`)";
            return Err(Error::value("the head of a cross-encoder", format!("{labels} labels"), expected));
        }
        let mut scores = self.logits(pairs, options)?.concat();
        if self.sigmoid {
            scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp()));
        }
        Ok(scores)
    }

    /// The documents by their score with `query`, the best first.
    ///
    /// # Errors
    /// As [`scores`](Self::scores).
    pub fn rank(&self, query: &str, documents: &[&str], options: &EncodeOptions) -> Result<Vec<Ranked>> {
        let pairs: Vec<(&str, &str)> = documents.iter().map(|document| (query, *document)).collect();
        let scores = self.scores(&pairs, options)?.into_iter().enumerate();
        let mut ranked: Vec<Ranked> = scores.map(|(index, score)| Ranked { index, score }).collect();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
        Ok(ranked)
    }

    /// The attention weights for a pair, by layer and head: see
    /// [`SentenceEncoder::attention`](crate::SentenceEncoder::attention).
    ///
    /// # Errors
    /// As [`TextClassifier::attention`].
    #[cfg(feature = "visualize")]
    pub fn attention(&self, query: &str, document: &str, options: &MapOptions) -> Result<AttentionMaps> {
        match &self.scorer {
            Scorer::Head(classifier) => classifier.attention((query, document), options),
            Scorer::Token(scorer) => scorer.attention(query, document, options),
        }
    }
}

/// Whether scores are sigmoids, if a file says so.
fn sigmoid(folder: ModelFolder, transformer: &Path, config: &TextModelConfig) -> Result<Option<bool>> {
    let files = [folder.path.join("config_sentence_transformers.json"), transformer.join("config.json")];
    let own: Map<String, Value> = folder.json_or_default(&files[0])?;
    // By version of the library, the latest first.
    let stated = [
        (&files[0], own.get("activation_fn")),
        (&files[1], config.key("sentence_transformers").and_then(|own| own.get("activation_fn"))),
        (&files[1], config.key("sbert_ce_default_activation_function")),
    ];
    let Some((file, value)) =
        stated.into_iter().find_map(|(file, value)| Some((file, value.filter(|v| !v.is_null())?)))
    else {
        return Ok(None);
    };
    let Some(name) = value.as_str() else {
        return Err(Error::file(file, format!("the activation function is {value}, expected its name")));
    };
    match name.strip_prefix("torch.").and_then(|name| name.rsplit('.').next()) {
        Some("Sigmoid") => Ok(Some(true)),
        Some("Identity") => Ok(Some(false)),
        _ => Err(Error::file(file, format!("the activation function `{name}` is not one this version knows"))),
    }
}
