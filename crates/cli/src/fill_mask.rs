//! Predicts the masked words of texts by a model with a masked-language head.

use std::path::PathBuf;

use candle_attention_text::{FillMask as Model, MaskPrediction};
use clap::Parser;

use super::shared::head_model::{HeadModel, WIDTH, print_each};
use super::shared::model::examples;
use super::shared::program::Command;
use super::shared::{Result, positive, print, read};

/// Predict what stands at each [MASK] of texts.
///
/// [MASK] is the mask of every model here: it is replaced by the model's own token, such as <mask>, which can be
/// written too. The model has a head for masked language modeling, such as google-bert/bert-base-uncased.
#[derive(Parser)]
#[command(
    name = "fill-mask",
    after_help = examples("Examples:
  candle-attention fill-mask --model google-bert/bert-base-uncased \"The cat [MASK] on the mat.\"
  candle-attention fill-mask --model google-bert/bert-base-uncased --top-k 3 --json \"A [MASK] sleeps on the [MASK].\"")
)]
pub struct FillMask {
    #[command(flatten)]
    model: HeadModel,
    /// The texts, each with at least one [MASK]
    texts: Vec<String>,
    /// Read the texts from a file, one per line; `-` is standard input; blank lines are skipped [default: texts are
    /// arguments]
    #[arg(long, conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// The number of tokens to print per mask, the most probable first
    #[arg(short = 'k', long, allow_negative_numbers = true, default_value_t = 5, value_parser = positive::<u32>)]
    top_k: u32,
    /// Print one {"text": …, "masks": [[{"token": …, "id": …, "score": …}]]} per line, in input order [default: a
    /// table]
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    text: &'a str,
    masks: &'a [Vec<MaskPrediction>],
}

/// The mask in texts for every model.
const MASK: &str = "[MASK]";
/// The columns of a token that are shown.
const TOKEN: usize = 40;

impl Command for FillMask {
    fn run(self) -> Result<()> {
        let texts = read::texts_given(&self.texts, self.file.as_slice(), "text")?;
        let opened =
            self.model.open(|folder, compute_type, device| Model::from_folder(folder, compute_type, device))?;
        let mask = opened.model.mask_token();
        let masked: Vec<String> = texts.iter().map(|text| text.replace(MASK, mask)).collect();
        if let Some(i) = masked.iter().position(|text| !text.contains(mask)) {
            let text = print::one_line(&texts[i], WIDTH);
            return Err(format!("`{text}` has no mask: write {MASK} where a word is to be found").into());
        }
        let (inputs, top_k) = (read::borrowed(&masked), self.top_k as usize);
        let filled = opened.run(texts.len(), |model, options| model.fill_masks(&inputs, top_k, options))?;
        let lines = |masks: &Vec<Vec<MaskPrediction>>| {
            let title = |number| (masks.len() > 1).then(|| format!("mask {number}"));
            let line = |MaskPrediction { token, score, .. }: &MaskPrediction| {
                format!("{score:>7.4}  {}", print::one_line(token.trim(), TOKEN))
            };
            (1..)
                .zip(masks)
                .flat_map(|(number, tokens)| title(number).into_iter().chain(tokens.iter().map(line)))
                .collect()
        };
        print_each((&texts, &filled), self.json, |text, masks| Line { text, masks }, lines)
    }
}
