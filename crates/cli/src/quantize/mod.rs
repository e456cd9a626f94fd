//! Writes a sentence encoder in int8, but for the projections that lose too much by it on the user's texts.

mod measure;
mod report;

use std::io::Write;
use std::path::PathBuf;

use candle_attention::io::create_folder;
use candle_attention_text::{SentenceEncoder, int8_groups, write_int8};
use candle_core::{DType, Device};
use clap::Parser;
use measure::Judge;
use report::{Report, Written};

use super::shared::checkpoint::{check_weights, locate, weight_bytes};
use super::shared::model::{Batches, FOLDER_OR_ID, examples, or_hub_id};
use super::shared::output::{check_new_folder, check_outside, folder_of};
use super::shared::program::Command;
use super::shared::{Result, print, read};

/// Measure on your texts what a sentence encoder loses in int8, and write it in int8.
///
/// Every second text measures the loss of each projection alone and chooses which are int8: all of them, or if that
/// loses more than --max-loss, all but the fewest that lose most, which are in bf16. Queries, keys and values of a
/// layer are one projection. The other texts measure the model that comes out. A loss is 1 minus the cosine
/// between a text's embeddings in int8 and in f32, on average.
///
/// Every command loads the written folder as it is, in int8 on the CPU. vLLM and transformers read its format too:
/// compressed-tensors.
#[derive(Parser)]
#[command(
    name = "quantize",
    after_help = examples("Examples:
  candle-attention quantize --model sentence-transformers/all-MiniLM-L6-v2 --file texts.txt --output int8
  candle-attention quantize --model sentence-transformers/all-MiniLM-L6-v2 --file texts.txt --max-loss 0.01 --json")
)]
pub struct Quantize {
    #[arg(
        required_unless_present = "model",
        value_name = FOLDER_OR_ID,
        help = or_hub_id("A model folder as sentence-transformers or transformers saves it", "")
    )]
    folder: Option<String>,
    /// The same as an option
    #[arg(long, value_name = FOLDER_OR_ID, conflicts_with = "folder")]
    model: Option<String>,
    /// The branch, tag or commit of a hub model [default: main]
    #[arg(long, hide = !cfg!(feature = "hub"))]
    revision: Option<String>,
    /// A file of texts like those that you encode, one per line; `-` is standard input; blank lines are skipped
    #[arg(long)]
    file: PathBuf,
    /// Write the model to this folder, which must not exist [default: no model is written]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// The most that the model may lose
    #[arg(long, default_value_t = 0.005)]
    max_loss: f64,
    /// Read at most this many texts
    #[arg(long, default_value_t = 400)]
    limit: usize,
    /// The name of the model's prompt to put before each text [default: the model's own default]
    #[arg(long)]
    prompt_name: Option<String>,
    #[command(flatten)]
    batches: Batches,
    /// Print one JSON object [default: a table]
    #[arg(long)]
    json: bool,
}

impl Command for Quantize {
    fn run(self) -> Result<()> {
        // Not a number is refused too.
        if !(0.0..=1.0).contains(&self.max_loss) {
            return Err(format!("--max-loss is {}, expected 0 to 1", self.max_loss).into());
        }
        self.output.as_deref().map_or(Ok(()), check_new_folder)?;
        let texts = read::first_texts(&self.file, self.limit)?;
        let model = self.folder.or(self.model).unwrap_or_default();
        let folder = locate(&model, self.revision.as_deref())?;
        self.output.as_deref().map_or(Ok(()), |output| check_outside(output, &folder, "quantized"))?;
        let whole = SentenceEncoder::from_folder(&folder, DType::F32, &Device::Cpu)?;
        check_weights(&folder)?;
        let groups = int8_groups(&folder)?;

        let [choosing, judging] = read::halves(&texts);
        let options = self.batches.options(self.prompt_name.as_deref());
        let judge = Judge::new(&folder, &whole, &choosing, options)?;
        let mut projections = measure::alone(&judge, groups)?;
        measure::keep(&judge, &mut projections, self.max_loss)?;
        let judge = Judge::new(&folder, &whole, &judging, options)?;
        let is_bf16 = |name: &str| projections.iter().any(|projection| projection.kept && projection.holds(name));
        let is_int8 = |name: &str| !is_bf16(name);
        let cosines = judge.cosines(is_int8, is_bf16)?;

        let mut report = Report {
            model: &model,
            max_loss: self.max_loss,
            projections: &projections,
            choosing_texts: choosing.len(),
            judging_texts: judging.len(),
            mean_cosine: measure::mean(&cosines),
            least_cosine: cosines.iter().copied().fold(1.0, f64::min),
            written: None,
        };
        if let Some(output) = &self.output {
            create_folder(folder_of(output))?;
            write_int8(&folder, output, is_int8)?;
            let (bytes_before, bytes_after) = (weight_bytes(&folder)?, weight_bytes(output)?);
            report.written = Some(Written { folder: output.display().to_string(), bytes_before, bytes_after });
        }
        let mut out = if self.output.is_some() { print::stdout_beside_files() } else { print::stdout() };
        if self.json {
            print::json(&mut out, &report)?
        } else {
            report.print(&mut out)?
        }
        Ok(out.flush()?)
    }
}
