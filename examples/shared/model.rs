//! The command-line options of the examples that run a sentence encoder.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use candle_attention::encoder::{EncodeOptions, SentenceEncoder, locate_model};
use candle_core::{DType, Device};

use super::Result;

#[derive(clap::Args)]
pub struct Model {
    /// A folder of sentence-transformers or of BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, MPNet, ALBERT,
    /// ModernBERT, NomicBERT, Jina-BERT v2, Jina embeddings v3 or GTE; or a hub id, in a build with `--features hub`; by
    /// default the small model that is embedded in this program
    #[arg(long)]
    model: Option<String>,
    /// The branch, tag or commit of a hub model
    #[arg(long, requires = "model")]
    revision: Option<String>,
    /// Compute in f32, f64, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = super::dtype)]
    pub dtype: DType,
    /// Run on cpu, cuda[:N] or metal[:N]
    #[arg(long, default_value = "cpu", value_parser = super::device)]
    device: Device,
    /// The name of the model's prompt to put before each text
    #[arg(long)]
    pub prompt_name: Option<String>,
}

/// The options of the examples that encode many texts.
#[derive(clap::Args)]
pub struct Batches {
    /// Texts per batch
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
}

impl Model {
    /// The name to print for the model.
    pub fn name(&self) -> &str {
        self.model.as_deref().unwrap_or("the embedded model")
    }

    /// The folder of the model, downloaded from the hub if necessary; `None` for the embedded one.
    pub fn folder(&self) -> Result<Option<PathBuf>> {
        let Some(model) = &self.model else { return Ok(None) };
        let show_progress = std::io::stderr().is_terminal();
        Ok(Some(locate_model(model, self.revision.as_deref(), show_progress)?))
    }

    /// Loads the model of [`folder`](Self::folder).
    pub fn load(&self, folder: Option<&Path>) -> Result<SentenceEncoder> {
        Ok(match folder {
            Some(folder) => SentenceEncoder::from_folder(folder, self.dtype, &self.device)?,
            None => SentenceEncoder::embedded(self.dtype, &self.device)?,
        })
    }

    /// Encoding options from the command line.
    pub fn options(&self, batches: &Batches) -> EncodeOptions<'_> {
        let mut options = EncodeOptions::default().with_batch_size(batches.batch_size);
        options.prompt_name = self.prompt_name.as_deref();
        options
    }
}
