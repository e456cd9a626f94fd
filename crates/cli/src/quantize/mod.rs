//! Writes a sentence encoder in int8, but for the projections that lose too much by it on the user's texts.

mod measure;

use std::io::Write;
use std::path::PathBuf;

use candle_attention::io::create_folder;
use candle_attention_text::{SentenceEncoder, int8_groups, write_int8};
use candle_core::{DType, Device};
use clap::Parser;
use measure::{Judge, Projection};
use serde::Serialize;

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

/// All figures. A loss is 1 minus a mean cosine.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    max_loss: f64,
    projections: &'a [Projection],
    /// The number of texts that chose the projections.
    choosing_texts: usize,
    /// The number of texts that the cosines are of.
    judging_texts: usize,
    mean_cosine: f64,
    least_cosine: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<Written>,
}

/// A folder that was written, and the bytes of weights before and after.
#[derive(Serialize)]
struct Written {
    folder: String,
    bytes_before: u64,
    bytes_after: u64,
}

impl Report<'_> {
    fn print(&self, out: &mut impl Write) -> Result<()> {
        let names: Vec<String> = self.projections.iter().map(|row| print::plain(module(&row.names))).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        writeln!(out, "{:<width$} {:>9}", "projection, alone in int8", "loss")?;
        for (name, row) in names.iter().zip(self.projections) {
            let kept = if row.kept { "  bf16" } else { "" };
            writeln!(out, "{name:<width$} {:>9.2e}{kept}", row.loss)?;
        }
        let (all, kept) = (self.projections.len(), self.projections.iter().filter(|row| row.kept).count());
        let others = print::count(self.judging_texts, "other text");
        writeln!(
            out,
            "\n{} of {all} projections in int8: cosine to f32 {:.5} on average, {:.5} at least, on {others}",
            all - kept,
            self.mean_cosine,
            self.least_cosine
        )?;
        if let Some(Written { folder, bytes_before, bytes_after }) = &self.written {
            let [before, after] = [*bytes_before, *bytes_after].map(|bytes| bytes as f64 / 1e6);
            writeln!(out, "{}: written, {after:.1} MB of weights, {before:.1} MB before", print::plain(folder))?;
        }
        Ok(())
    }
}

/// The modules of some weights as one name: what their names have in common, and in braces what they have not.
fn module(weights: &[String]) -> String {
    let modules: Vec<&str> = weights.iter().map(|name| name.strip_suffix(".weight").unwrap_or(name)).collect();
    let Some((first, [_, ..])) = modules.split_first() else { return modules.concat() };
    let common = |end: &usize| modules.iter().all(|module| module.starts_with(&first[..*end]));
    let start = first.match_indices('.').map(|(dot, _)| dot + 1).rfind(common).unwrap_or(0);
    let rest: Vec<&str> = modules.iter().map(|module| &module[start..]).collect();
    format!("{}{{{}}}", &first[..start], rest.join(","))
}

#[cfg(test)]
mod tests {
    use super::module;

    #[test]
    fn modules_of_one_product_have_one_name() {
        let named = |names: &[&str]| module(&names.iter().map(|name| format!("{name}.weight")).collect::<Vec<_>>());
        assert_eq!(named(&["a.self.query", "a.self.key", "a.self.value"]), "a.self.{query,key,value}");
        assert_eq!(named(&["layer.1.q", "layer.1.q_a.x"]), "layer.1.{q,q_a.x}");
        assert_eq!(named(&["qkv"]), "qkv");
        assert_eq!(named(&["q", "k"]), "{q,k}");
    }
}
