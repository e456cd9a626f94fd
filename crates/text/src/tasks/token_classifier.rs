//! `TokenClassifier`: labels of the tokens of texts, grouped to entities.

use candle_attention::checkpoint::AnySource;
use candle_attention::{Error, Result, setters};
use candle_core::D;
use candle_nn::ops::softmax;

use crate::constructors::constructors;
use crate::folder::{ModelFolder, TokenizerConfig, only_transformer};
use crate::heads::kinds::TokenClassificationHead;
use crate::model::hidden_states::rows;
use crate::tasks::entities::{Aggregation, Entity, ScoredToken, entities, without_overlaps};
use crate::text::batches::TextBatcher;
use crate::text::options::{EncodeOptions, check_finite, without_embeddings};
use crate::text::tokenizer::Tokens;

/// Finds entities such as persons and places in texts, as the `token-classification` (`ner`) pipeline of transformers.
///
/// ```no_run
/// use candle_attention_text::{EncodeOptions, EntityOptions, TokenClassifier};
/// use candle_core::{DType, Device};
/// let classifier = TokenClassifier::from_folder("bert-base-NER", DType::F32, &Device::Cpu)?;
/// let texts = ["Zoë Müller lives in Paris."];
/// for entity in &classifier.entities(&texts, &EntityOptions::default(), &EncodeOptions::default())?[0] {
///     println!("{} {:.3} {} {}..{}", entity.entity, entity.score, entity.word, entity.start, entity.end);
/// }
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TokenClassifier {
    head: TokenClassificationHead,
    batcher: TextBatcher,
    /// The token for what the vocabulary lacks.
    unknown: Option<u32>,
}

/// How entities are made of tokens. The default: [`Aggregation::Simple`], without those labelled `O`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EntityOptions {
    /// How tokens are grouped.
    pub aggregation: Aggregation,
    /// The labels that are left out; where tokens are grouped, without `B-` or `I-`.
    pub ignore_labels: Vec<String>,
    /// The tokens that neighboring windows of a long text share: a text that is longer than the maximum length is read
    /// in windows, and where entities of them overlap the longest counts, of those the most probable. `None`: it is
    /// cut.
    pub stride: Option<usize>,
}

impl Default for EntityOptions {
    fn default() -> Self {
        Self { aggregation: Aggregation::default(), ignore_labels: vec!["O".to_string()], stride: None }
    }
}

impl EntityOptions {
    setters! {
        /// Sets how tokens are grouped.
        with_aggregation, aggregation: Aggregation = aggregation;
        /// Sets the labels that are left out.
        with_ignore_labels, ignore_labels: Vec<String> = ignore_labels;
        /// Sets the tokens that neighboring windows of a long text share.
        with_stride, stride: usize = Some(stride);
    }
}

impl TokenClassifier {
    constructors! {
        /// The model of a folder: `config.json`, `tokenizer.json`, `model.safetensors` (or shards).
        ///
        /// # Errors
        /// A file that is missing or malformed; those of [`TokenClassificationHead::load`].
        from_folder, from_files, from_hub, load, open;
    }

    fn with_source(folder: ModelFolder, source: &AnySource) -> Result<Self> {
        let (transformer, config) = only_transformer(folder, "token classifier")?;
        let head = TokenClassificationHead::load_from(&config, source)?;
        let batcher = TextBatcher::load(folder, &transformer, head.model())?;
        let unknown = batcher.tokenizer.unknown(TokenizerConfig::load(folder, &transformer)?.unk_token());
        Ok(Self { head, batcher, unknown })
    }

    /// The model and its head.
    pub fn head(&self) -> &TokenClassificationHead {
        &self.head
    }

    /// The names of the labels.
    pub fn labels(&self) -> &[String] {
        self.head.labels()
    }

    /// The entities of each text, in the order of the text. Without a [stride](EntityOptions::stride), tokens beyond
    /// the maximum length are in none.
    ///
    /// # Errors
    /// A batch size of 0; a prompt; a stride that leaves a window no tokens of its own, or without aggregation; a token
    /// that the model does not have; [`Error::NotFinite`] for the first text whose scores are not finite.
    pub fn entities(&self, texts: &[&str], how: &EntityOptions, options: &EncodeOptions) -> Result<Vec<Vec<Entity>>> {
        without_embeddings(options)?;
        let model = &self.head.model;
        let mut tokenizer = self.batcher.tokenizer_for(options.max_length, model)?.with_places();
        if let Some(stride) = how.stride {
            if how.aggregation == Aggregation::None {
                let expected = "none without aggregation: a token may be in two windows";
                return Err(Error::config("stride", stride, expected));
            }
            tokenizer = tokenizer.with_stride(stride)?;
        }
        let batches = self.batcher.batches_by(tokenizer, model, texts, "", options)?;
        let windows: Vec<(usize, Tokens, Vec<Vec<f32>>)> = batches.in_text_order(|batch| {
            let hidden = self.batcher.hidden(model, &batch.tokens)?;
            // One text after another: a text has the same scores in any batch.
            let scored = |(i, (text, tokens)): (usize, (&usize, Tokens))| {
                let logits = self.head.logits(&hidden.text(i)?.unsqueeze(0)?)?.squeeze(0)?; // (tokens, labels)
                Ok((*text, tokens, rows(&softmax(&logits, D::Minus1)?)?))
            };
            batch.texts.iter().zip(batch.tokens.drain(..)).enumerate().map(scored).collect()
        })?;
        let windows_of: Vec<_> = windows.chunk_by(|a, b| a.0 == b.0).collect();
        let is_finite = |i: usize| {
            let mut scores = windows_of[i].iter().flat_map(|(_, _, scores)| scores).flatten();
            Ok(scores.all(|score| score.is_finite()))
        };
        check_finite("the scores", texts, self.batcher.dtype, is_finite)?;
        let join = |words| self.batcher.tokenizer.join(words);
        let all = texts.iter().zip(windows_of);
        all.map(|(text, windows)| {
            let mut found = Vec::new();
            for (_, tokens, scores) in windows {
                found.extend(entities(&self.scored(text, tokens, scores), self.labels(), how.aggregation, &join)?);
            }
            found.retain(|entity| !how.ignore_labels.contains(&entity.entity));
            Ok(if windows.len() > 1 { without_overlaps(found) } else { found })
        })
        .collect()
    }

    /// The tokens of a text without the special ones.
    fn scored(&self, text: &str, tokens: &Tokens, scores: &[Vec<f32>]) -> Vec<ScoredToken> {
        // The byte of each character, and of the end.
        let bytes: Vec<usize> = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
        let part = |start: usize, end: usize| {
            let byte = |character: usize| bytes[character.min(bytes.len() - 1)];
            &text[byte(start)..byte(end.max(start))]
        };
        let mut scored = Vec::new();
        for (index, ((&id, place), scores)) in tokens.ids.iter().zip(&tokens.places).zip(scores).enumerate() {
            if place.special {
                continue;
            }
            let name = self.batcher.tokenizer.token(id).unwrap_or_default();
            let (start, end) = (place.start, place.end);
            let (word, is_subword) = if self.unknown == Some(id) {
                (part(start, end).to_string(), false)
            } else if self.batcher.tokenizer.marks_subwords() {
                // A token that is longer than its text has a prefix.
                let continues = name.chars().count() != part(start, end).chars().count();
                (name, continues)
            } else {
                (name, start > 0 && !part(start - 1, start + 1).contains(' '))
            };
            scored.push(ScoredToken { word, scores: scores.clone(), start, end, index, is_subword });
        }
        scored
    }
}
