//! Classifies texts or pairs of texts, or finds entities in texts, by a model with a classification head.

use std::path::{Path, PathBuf};

use candle_attention::ComputeType;
use candle_attention_text::{
    Aggregation, Entity, EntityOptions, Label, TaskHead, Text, TextClassifier, TokenClassifier,
};
use candle_core::Device;
use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::shared::head_model::{HeadModel, print_each};
use super::shared::model::examples;
use super::shared::program::Command;
use super::shared::{Result, positive, print, read};

/// Classify texts or pairs of texts, or find entities in texts.
///
/// Prints the most probable labels of each text, by a model with a head for sequence classification, such as one for
/// sentiment, or with --pair one that reads two texts together. A model with a head for token classification, such as
/// one for names of persons and places, prints the entities of each text. The checkpoint decides which of the two it
/// is.
#[derive(Parser)]
#[command(
    name = "classify",
    after_help = examples("Examples:
  candle-attention classify --model distilbert/distilbert-base-uncased-finetuned-sst-2-english \\
      \"A warm, funny film.\" \"A waste of time.\"
  candle-attention classify --model distilbert/distilbert-base-uncased-finetuned-sst-2-english \\
      --file texts.txt --top-k 1 --json
  candle-attention classify --model dslim/bert-base-NER --aggregation first --json \"Anna lives in Paris.\"")
)]
pub struct Classify {
    #[command(flatten)]
    model: HeadModel,
    /// The texts to classify
    texts: Vec<String>,
    /// Read the texts from a file, one per line; `-` is standard input; blank lines are skipped [default: texts are
    /// arguments]
    #[arg(long, conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// A second text, which the model reads after each of the texts [default: none]
    #[arg(long, value_name = "TEXT")]
    pair: Option<String>,
    /// The number of labels to print per text, the most probable first [default: 5 in a table, all with --json]
    #[arg(short = 'k', long, allow_negative_numbers = true, value_parser = positive::<u32>)]
    top_k: Option<u32>,
    /// How tokens become entities, as in transformers: none (each token by itself), simple (neighbors of one label), or
    /// words with the label of their first token, of the mean of their tokens, or of their most probable token
    /// [default: simple]
    #[arg(long, value_name = "STRATEGY", value_parser = strategies())]
    aggregation: Option<Aggregation>,
    /// Read a text that is longer than the model takes in windows that share this many tokens, and print the entities
    /// of all of it, as transformers [default: the text is cut]
    #[arg(long, value_name = "TOKENS")]
    stride: Option<usize>,
    /// Print one {"text": …, "labels": [{"label": …, "score": …}]} per line, in input order; of entities {"text": …,
    /// "entities": [{"entity_group": …, "score": …, "word": …, "start": …, "end": …}]}, where start and end count
    /// characters, and with --aggregation none `entity` and `index` instead of `entity_group` [default: a table]
    #[arg(long)]
    json: bool,
}

/// The names of the strategies, as transformers has them.
fn strategies() -> impl TypedValueParser<Value = Aggregation> {
    PossibleValuesParser::new(["none", "simple", "first", "average", "max"]).map(|name| match name.as_str() {
        "none" => Aggregation::None,
        "first" => Aggregation::First,
        "average" => Aggregation::Average,
        "max" => Aggregation::Max,
        _ => Aggregation::Simple,
    })
}

/// A model with one of the two heads.
enum Classifier {
    Texts(TextClassifier),
    Tokens(TokenClassifier),
}

impl Classifier {
    fn open(folder: &Path, compute_type: ComputeType, device: &Device) -> candle_attention::Result<Self> {
        Ok(match TaskHead::from_folder(folder)? {
            TaskHead::TokenClassification => Self::Tokens(TokenClassifier::from_folder(folder, compute_type, device)?),
            _ => Self::Texts(TextClassifier::from_folder(folder, compute_type, device)?),
        })
    }
}

#[derive(serde::Serialize)]
struct Labels<'a> {
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pair: Option<&'a str>,
    labels: &'a [Label],
}

#[derive(serde::Serialize)]
struct Entities<'a> {
    text: &'a str,
    entities: Vec<Found<'a>>,
}

/// An entity with the keys of transformers.
#[derive(serde::Serialize)]
struct Found<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    entity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entity_group: Option<&'a str>,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    word: &'a str,
    start: usize,
    end: usize,
}

impl<'a> Found<'a> {
    fn new(Entity { entity, score, word, start, end, index, .. }: &'a Entity) -> Self {
        let name = Some(entity.as_str());
        let (entity, entity_group) = if index.is_some() { (name, None) } else { (None, name) };
        Self { entity, entity_group, score: *score, index: *index, word, start: *start, end: *end }
    }
}

/// The columns of a label or of an entity that are shown.
const LABEL: usize = 60;
/// The labels of a text in a table.
const TOP: u32 = 5;

impl Command for Classify {
    fn run(self) -> Result<()> {
        let texts = read::texts_given(&self.texts, self.file.as_slice(), "text")?;
        let mut opened = self.model.open(Classifier::open)?;
        self.check(&opened.model)?;
        if let Classifier::Tokens(_) = opened.model {
            opened.if_cut = "--max-length; --stride reads all of a text";
        }
        let mut how = EntityOptions::default().with_aggregation(self.aggregation.unwrap_or_default());
        how.stride = self.stride;
        match &opened.model {
            Classifier::Texts(model) => {
                let pair = |text| self.pair.as_deref().map_or(Text::One(text), |pair| Text::Pair(text, pair));
                let inputs: Vec<Text> = texts.iter().map(|text| pair(text)).collect();
                let labels = opened.run(texts.len(), |_, options| model.classify(&inputs, options))?;
                self.print_labels(&texts, &labels)
            }
            Classifier::Tokens(model) => {
                let inputs = read::borrowed(&texts);
                let entities = opened.run(texts.len(), |_, options| model.entities(&inputs, &how, options))?;
                self.print_entities(&texts, &entities)
            }
        }
    }
}

impl Classify {
    /// Refuses options that are not for the head of the model.
    fn check(&self, model: &Classifier) -> Result<()> {
        let (options, head): (&[(&str, bool)], _) = match model {
            Classifier::Texts(_) => (
                &[("--aggregation", self.aggregation.is_some()), ("--stride", self.stride.is_some())],
                "texts, not tokens",
            ),
            Classifier::Tokens(_) => {
                (&[("--pair", self.pair.is_some()), ("--top-k", self.top_k.is_some())], "tokens, not texts")
            }
        };
        match options.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(format!("{option} is not for this model: it classifies {head}").into()),
            None => Ok(()),
        }
    }

    fn print_labels(&self, texts: &[String], classified: &[Vec<Label>]) -> Result<()> {
        let (top, pair) = (self.top_k.unwrap_or(if self.json { u32::MAX } else { TOP }), self.pair.as_deref());
        let most = |labels: &[Label]| labels.len().min(top as usize);
        let line = |Label { label, score, .. }: &Label| format!("{score:>7.4}  {}", print::one_line(label, LABEL));
        print_each(
            (texts, classified),
            self.json,
            |text, labels| Labels { text, pair, labels: &labels[..most(labels)] },
            |labels| labels[..most(labels)].iter().map(line).collect(),
        )
    }

    fn print_entities(&self, texts: &[String], found: &[Vec<Entity>]) -> Result<()> {
        let line = |Entity { entity, score, word, start, end, .. }: &Entity| {
            let (entity, word) = (print::one_line(entity, LABEL), print::one_line(word.trim(), LABEL));
            format!("{score:>7.4}  {entity}  {word}  {start}..{end}")
        };
        print_each(
            (texts, found),
            self.json,
            |text, found| Entities { text, entities: found.iter().map(Found::new).collect() },
            |found| found.iter().map(line).collect(),
        )
    }
}
