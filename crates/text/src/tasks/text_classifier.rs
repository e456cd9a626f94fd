//! `TextClassifier`: classification of texts and pairs of texts.

use candle_attention::checkpoint::AnySource;
use candle_attention::{Error, Result};

use crate::constructors::constructors;
use crate::folder::{ModelFolder, only_transformer};
use crate::heads::kinds::SequenceClassifier;
use crate::model::config::TextModelConfig;
use crate::model::feed_forward::softmax_row;
use crate::model::hidden_states::rows;
use crate::text::batches::TextBatcher;
use crate::text::options::{EncodeOptions, check_finite, without_dimensions, without_embeddings};
use crate::text::tokenizer::Text;
#[cfg(feature = "visualize")]
use crate::text::{attention_maps::MapOptions, options::without_prompt};
#[cfg(feature = "visualize")]
use crate::visualize::AttentionMaps;

/// Classifies texts or pairs of texts, as the `text-classification` pipeline of transformers.
///
/// The scores are, with one label or `multi_label_classification`, a sigmoid each; `regression`, the logits; otherwise
/// a softmax.
///
/// ```no_run
/// use candle_attention_text::{EncodeOptions, TextClassifier};
/// use candle_core::{DType, Device};
/// let folder = "distilbert-base-uncased-finetuned-sst-2-english";
/// let classifier = TextClassifier::from_folder(folder, DType::F32, &Device::Cpu)?;
/// for labels in classifier.classify(&["A warm, funny film."], &EncodeOptions::default())? {
///     println!("{} {:.3}", labels[0].label, labels[0].score); // the most probable first
/// }
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TextClassifier {
    head: SequenceClassifier,
    batcher: TextBatcher,
    function: Function,
}

/// A label of a text, and its score.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Label {
    /// The name of the label, from `id2label`.
    pub label: String,
    /// The probability of the label, from 0 to 1; for regression, the logit.
    pub score: f32,
}

#[derive(Debug, Clone, Copy)]
enum Function {
    Sigmoid,
    Softmax,
    Identity,
}

impl Function {
    /// The scores of the labels of a text.
    fn scores(self, mut logits: Vec<f32>) -> Vec<f32> {
        match self {
            Self::Sigmoid => logits.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            Self::Softmax => softmax_row(&mut logits),
            Self::Identity => {}
        }
        logits
    }

    fn from_config(config: &TextModelConfig, labels: usize) -> Result<Self> {
        match config.key_text("problem_type")? {
            Some("regression") => Ok(Self::Identity),
            Some("multi_label_classification") => Ok(Self::Sigmoid),
            Some("single_label_classification") | None => Ok(if labels == 1 { Self::Sigmoid } else { Self::Softmax }),
            Some(other) => {
                let allowed = "regression, single_label_classification or multi_label_classification";
                Err(Error::config("problem_type", other, allowed))
            }
        }
    }
}

impl TextClassifier {
    constructors! {
        /// The model of a folder: `config.json`, `tokenizer.json`, `model.safetensors` (or shards).
        ///
        /// # Errors
        /// A file that is missing or malformed; those of [`SequenceClassifier::load`].
        from_folder, from_files, from_hub, load, open;
    }

    pub(crate) fn with_source(folder: ModelFolder, source: &AnySource) -> Result<Self> {
        let (transformer, config) = only_transformer(folder, "sequence classifier")?;
        let head = SequenceClassifier::load_from(&config, source)?;
        let batcher = TextBatcher::load(folder, &transformer, head.model())?;
        Ok(Self { function: Function::from_config(&config, head.labels().len())?, head, batcher })
    }

    /// The model and its head.
    pub fn head(&self) -> &SequenceClassifier {
        &self.head
    }

    /// The maximum number of tokens of a text or a pair, special tokens included.
    pub fn max_seq_length(&self) -> usize {
        self.batcher.max_seq_length
    }

    /// The names of the labels, in the order of [`logits`](Self::logits).
    pub fn labels(&self) -> &[String] {
        self.head.labels()
    }

    /// The labels of each text, the most probable first.
    ///
    /// # Errors
    /// As [`logits`](Self::logits).
    pub fn classify<'a, T: Into<Text<'a>> + Copy>(
        &self,
        texts: &[T],
        options: &EncodeOptions,
    ) -> Result<Vec<Vec<Label>>> {
        let labelled = |logits: Vec<f32>| {
            let labels = self.labels().iter().cloned().zip(self.function.scores(logits));
            let mut labels: Vec<Label> = labels.map(|(label, score)| Label { label, score }).collect();
            labels.sort_by(|a, b| b.score.total_cmp(&a.score));
            labels
        };
        Ok(self.logits(texts, options)?.into_iter().map(labelled).collect())
    }

    /// The logits of each text, one per label.
    ///
    /// # Errors
    /// A batch size of 0; a prompt; a token that the model does not have; [`Error::NotFinite`] for the first text whose
    /// scores are not finite.
    pub fn logits<'a, T: Into<Text<'a>> + Copy>(&self, texts: &[T], options: &EncodeOptions) -> Result<Vec<Vec<f32>>> {
        without_embeddings(options)?;
        self.prompted_logits(texts, "", options)
    }

    /// [`logits`](Self::logits) with a prompt before each text, or the first text of each pair.
    pub(crate) fn prompted_logits<'a, T: Into<Text<'a>> + Copy>(
        &self,
        texts: &[T],
        prompt: &str,
        options: &EncodeOptions,
    ) -> Result<Vec<Vec<f32>>> {
        without_dimensions(options)?;
        let logits = self.batcher.batches(&self.head.model, texts, prompt, options)?.in_text_order(|batch| {
            let ids: Vec<&[u32]> = batch.tokens.iter().map(|tokens| tokens.ids.as_slice()).collect();
            let hidden = self.batcher.hidden(&self.head.model, &batch.tokens)?;
            rows(&self.head.logits_of_texts(&hidden, &ids)?)
        })?;
        check_finite("the scores", texts, self.batcher.dtype, |i| Ok(logits[i].iter().all(|x| x.is_finite())))?;
        Ok(logits)
    }

    /// The attention weights for a text or a pair of texts: see
    /// [`SentenceEncoder::attention`](crate::SentenceEncoder::attention).
    ///
    /// # Errors
    /// A layer or head that does not exist; a prompt; a token that the model does not have.
    #[cfg(feature = "visualize")]
    pub fn attention<'a>(&self, text: impl Into<Text<'a>>, options: &MapOptions) -> Result<AttentionMaps> {
        without_prompt(options.prompt_name, options.prompt)?;
        self.batcher.attention(&self.head.model, text.into(), options)
    }
}
