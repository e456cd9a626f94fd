//! Measures how fast this machine encodes texts, in a form to share.

mod machine;
mod measure;

use std::io::Write;

use candle_attention::{ComputeType, Quantization};
use candle_attention_kernels::{Blas, Isa};
use candle_attention_text::{EncodeOptions, SentenceEncoder, SimilarityFunction::Cosine};
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use measure::{Speed, texts};
use serde::Serialize;

use super::shared::model::{Model, embeddings, examples};
use super::shared::program::Command;
use super::shared::read::borrowed;
use super::shared::{Result, bar, print};

/// Measure how many texts and tokens per second this machine encodes.
///
/// Encodes 1, 8 and 64 texts of a fixed set, of 7 to 110 words, in f32, f16 and bf16, on the CPU in int8 too: each at
/// least five times, of which the median counts. It compares the embeddings with those of the CPU in f32, and prints
/// one line to share. On two cores all-MiniLM-L6-v2 takes less than half a minute, in f32 alone less than 10 seconds;
/// large models take minutes.
#[derive(Parser)]
#[command(
    name = "bench",
    mut_arg("dtype", |arg| arg.help("Measure only one of f32, f64, f16, bf16, int8, q8_0 and q4_0 \
        [default: f32, f16, bf16, and on the CPU int8]")),
    after_help = examples("Examples:
  candle-attention bench --dtype bf16
  candle-attention bench --model sentence-transformers/all-MiniLM-L6-v2 --dtype f32 --json")
)]
pub struct Bench {
    #[command(flatten)]
    model: Model,
    /// Print one JSON object in one line [default: a table, and a line to share]
    #[arg(long)]
    json: bool,
}

/// The numbers of texts in a call.
const COUNTS: [usize; 3] = [1, 8, 64];

impl Command for Bench {
    fn run(self) -> Result<()> {
        let texts = texts(COUNTS[COUNTS.len() - 1]);
        let texts = borrowed(&texts);
        let mut options = EncodeOptions::default();
        options.prompt_name = self.model.prompt_name.as_deref();
        let folder = self.model.folder()?;
        let (mut results, mut made) = (Vec::new(), Vec::new());
        let dtypes = self.dtypes();
        let bar = bar::bar(dtypes.len() * COUNTS.len(), "measuring", "rows")?;
        for dtype in dtypes {
            let measure = |encoder: SentenceEncoder| {
                let speed = |&count: &usize| {
                    let speed = Speed::measure(&encoder, &texts[..count], &options);
                    bar.inc(1);
                    speed
                };
                let speeds = COUNTS.iter().map(speed).collect::<Result<Vec<_>>>()?;
                Ok((speeds, embeddings(&encoder, &texts, &options)?))
            };
            match self.model.load(folder.as_deref(), dtype).and_then(measure) {
                Ok((speeds, embeddings)) => {
                    results.push(InDtype { dtype: dtype.to_string(), least_cosine_to_f32: 0.0, speeds });
                    made.push(embeddings);
                }
                // If the first dtype fails, the device is at fault. Later ones may be unsupported.
                Err(error) if !results.is_empty() => print::note(format_args!("{dtype}: {error}")),
                Err(error) => return Err(error),
            }
        }
        bar.finish_and_clear();
        // Before the model is loaded again.
        let peak_memory_bytes = machine::peak_memory();
        let exact = match folder {
            Some(folder) => SentenceEncoder::from_folder(folder, DType::F32, &Device::Cpu),
            None => SentenceEncoder::embedded(DType::F32, &Device::Cpu),
        };
        let exact = embeddings(&exact?, &texts, &options)?;
        for (result, made) in results.iter_mut().zip(&made) {
            result.least_cosine_to_f32 = least_cosine(made, &exact)?;
        }
        let report = Report {
            candle_attention: env!("CARGO_PKG_VERSION"),
            model: self.model.title(),
            device: machine::device(&self.model.compute.device),
            processor: machine::processor(),
            instruction_set: Isa::detect()?.name(),
            library: Blas::linked().map(|library| library.name),
            threads: rayon::current_num_threads(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            peak_memory_bytes,
            results,
        };
        let mut out = print::stdout();
        if self.json {
            print::json(&mut out, &report)?
        } else {
            report.print(&mut out)?
        }
        Ok(out.flush()?)
    }
}

impl Bench {
    /// The dtype that is asked for, or all that are worth a comparison.
    fn dtypes(&self) -> Vec<ComputeType> {
        let all = [DType::F32, DType::F16, DType::BF16].map(ComputeType::from);
        match self.model.compute.dtype {
            Some(dtype) => vec![dtype],
            None if self.model.compute.device.is_cpu() => [&all[..], &[Quantization::Int8.into()]].concat(),
            None => all.to_vec(),
        }
    }
}

/// The least cosine between two embeddings of one text.
fn least_cosine(ours: &Tensor, exact: &Tensor) -> Result<f32> {
    let cosines = Cosine.similarity_pairwise(ours, exact)?.to_vec1::<f32>()?;
    Ok(cosines.into_iter().fold(1.0, f32::min))
}

/// All figures of a benchmark.
#[derive(Serialize)]
struct Report {
    candle_attention: &'static str,
    model: String,
    device: String,
    processor: Option<String>,
    instruction_set: &'static str,
    /// The library that multiplies on the CPU in f32, f16 and bf16, if it is not this crate.
    library: Option<&'static str>,
    threads: usize,
    /// The operating system and the architecture.
    system: String,
    /// The peak of the process, in all dtypes.
    peak_memory_bytes: Option<u64>,
    results: Vec<InDtype>,
}

#[derive(Serialize)]
struct InDtype {
    dtype: String,
    /// The least cosine of an embedding to the same in f32 on the CPU.
    least_cosine_to_f32: f32,
    speeds: Vec<Speed>,
}

impl Report {
    /// Prints a table, and a line to share: a row of the table in the documentation.
    fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "{} on {}, {}", print::plain(&self.model), self.device, self.machine())?;
        writeln!(out)?;
        writeln!(out, "dtype  texts  tokens        ms   texts/s  tokens/s    cosine to f32")?;
        for result in &self.results {
            for Speed { texts, tokens, milliseconds, texts_per_second, tokens_per_second, .. } in &result.speeds {
                write!(out, "{:<5}  {texts:>5}  {tokens:>6}  {milliseconds:>8.2}", result.dtype)?;
                write!(out, "  {texts_per_second:>8.0}  {tokens_per_second:>8.0}")?;
                writeln!(out, "  {:>15.6}", result.least_cosine_to_f32)?;
            }
        }
        if let Some(bytes) = self.peak_memory_bytes {
            writeln!(out, "\nAt most {:.0} MB of memory, in all dtypes.", bytes as f64 / 1e6)?;
        }
        writeln!(out, "\nTo share it, copy this line, with texts per second of 1, 8 and 64 texts:")?;
        writeln!(out, "{}", self.row())?;
        Ok(())
    }

    fn machine(&self) -> String {
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let threads = print::count(self.threads, "thread");
        let library = self.library.map_or(String::new(), |name| format!(" and {name}"));
        format!("{processor}, {}{library}, {threads}, {}", self.instruction_set, self.system)
    }

    /// A row of a table in Markdown.
    fn row(&self) -> String {
        let speeds = |result: &InDtype| {
            let speeds: Vec<String> =
                result.speeds.iter().map(|speed| format!("{:.0}", speed.texts_per_second)).collect();
            format!("{} {}", result.dtype, speeds.join(" / "))
        };
        let speeds: Vec<String> = self.results.iter().map(speeds).collect();
        let memory = self.peak_memory_bytes.map_or("–".to_string(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6));
        let cells = [&self.machine(), &self.device, &self.model, self.candle_attention, &speeds.join(", "), &memory];
        format!("| {} |", cells.map(|cell| print::plain(cell).replace('|', "/")).join(" | "))
    }
}
