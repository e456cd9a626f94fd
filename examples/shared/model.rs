//! A sentence encoder by its name, for the examples that take texts.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use candle_attention::encoder::{EncodeOptions, HubOptions, SentenceEncoder, download};
use candle_core::{DType, Device};

use super::Result;

#[derive(clap::Args)]
pub struct Model {
    /// A folder of sentence-transformers or of BERT, RoBERTa, XLM-RoBERTa, CamemBERT, ELECTRA, DistilBERT, MPNet, ALBERT,
    /// ModernBERT, NomicBERT, Jina-BERT v2, Jina embeddings v3 or GTE; or a hub id; by default the small model that is
    /// part of this program
    #[arg(long)]
    model: Option<String>,
    /// Branch, tag or commit of a hub model
    #[arg(long, requires = "model")]
    revision: Option<String>,
    /// f32, f64, f16 or bf16
    #[arg(long, default_value = "f32", value_parser = super::dtype)]
    pub dtype: DType,
    /// cpu, cuda[:N] or metal[:N]
    #[arg(long, default_value = "cpu", value_parser = super::device)]
    device: Device,
    /// The name of one of the model's prompts, put before each text
    #[arg(long)]
    pub prompt_name: Option<String>,
}

/// For the examples that take many texts.
#[derive(clap::Args)]
pub struct Batches {
    /// Texts that run together
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
}

impl Model {
    /// What the model is called.
    pub fn name(&self) -> &str {
        self.model.as_deref().unwrap_or("the embedded model")
    }

    /// The folder of the model, brought from the hub if need be; none for the embedded one.
    pub fn folder(&self) -> Result<Option<PathBuf>> {
        let Some(model) = &self.model else { return Ok(None) };
        if Path::new(model).is_dir() {
            return Ok(Some(model.into()));
        }
        let mut options = HubOptions::default().with_progress(std::io::stderr().is_terminal());
        options.revision = self.revision.clone();
        Ok(Some(download(model, &options)?))
    }

    pub fn load(&self, folder: Option<&Path>) -> Result<SentenceEncoder> {
        Ok(match folder {
            Some(folder) => SentenceEncoder::from_folder(folder, self.dtype, &self.device)?,
            None => SentenceEncoder::embedded(self.dtype, &self.device)?,
        })
    }

    pub fn options(&self, batches: &Batches) -> EncodeOptions<'_> {
        let mut options = EncodeOptions::default().with_batch_size(batches.batch_size);
        options.prompt_name = self.prompt_name.as_deref();
        options
    }
}
