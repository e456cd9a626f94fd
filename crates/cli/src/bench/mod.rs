//! Measures how fast this machine encodes texts, in a form to share.

mod machine;
mod measure;
mod report;

use candle_attention::{ComputeType, Quantization};
use candle_attention_kernels::{Blas, Isa};
use candle_attention_text::{EncodeOptions, SentenceEncoder, SimilarityFunction::Cosine};
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use measure::{Speed, texts};
use report::{InDtype, Report};

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
        Ok(std::io::Write::flush(&mut out)?)
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
