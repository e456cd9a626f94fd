//! The adapter or the task of a model.

use std::path::PathBuf;

use candle_attention::lora::LoraAdapter;
use candle_attention_text::{EncodeOptions, SentenceEncoder};

use super::super::shared::Result;

/// The name that the adapter of the command line has in the encoder.
const NAME: &str = "adapter";

#[derive(clap::Args)]
pub struct Adaptation {
    /// A LoRA adapter for the model: a folder as PEFT saves it, with adapter_config.json and adapter_model.safetensors
    /// [default: none]
    #[arg(long, value_name = "FOLDER", conflicts_with = "task")]
    adapter: Option<PathBuf>,
    /// A task that the model holds an adapter for, such as retrieval.query of Jina embeddings v3; its instruction is
    /// put before each text unless --prompt or --prompt-name gives another [default: none]
    #[arg(long, value_name = "NAME", conflicts_with = "kind")]
    task: Option<String>,
}

impl Adaptation {
    /// The option that is given, if one is.
    pub fn given(&self) -> Option<&'static str> {
        let of_adapter = self.adapter.as_ref().map(|_| "--adapter");
        of_adapter.or(self.task.as_ref().map(|_| "--task"))
    }

    /// Adds the adapter to the encoder, and it or the task to the options of its calls.
    pub fn apply<'a>(&'a self, encoder: &mut SentenceEncoder, options: EncodeOptions<'a>) -> Result<EncodeOptions<'a>> {
        if let Some(folder) = &self.adapter {
            encoder.add_adapter(NAME, &LoraAdapter::open(folder)?)?;
            return Ok(options.with_adapter(NAME));
        }
        Ok(match &self.task {
            Some(task) => options.with_task(task.as_str().into()),
            None => options,
        })
    }
}
