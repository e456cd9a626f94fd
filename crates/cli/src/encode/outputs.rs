//! The options of the command line for what is made of each text, and by which adapter.

use std::path::PathBuf;

use candle_attention::lora::LoraAdapter;
use candle_attention_text::{EncodeOptions, Precision, SentenceEncoder};
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::super::shared::{Result, print};

#[derive(clap::Args)]
pub struct Outputs {
    /// A prompt to put before each text, instead of one of the model's [default: the model's own default]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name")]
    pub prompt: Option<String>,
    /// What the texts are: this chooses the model's prompt of that name, and its route if it has several
    /// [default: neither; document for a model with a vector per token]
    #[arg(long = "as", value_name = "KIND")]
    pub kind: Option<Kind>,
    /// Keep the first N numbers of each embedding [default: what the model states, else all]
    #[arg(long, value_name = "N")]
    truncate_dim: Option<usize>,
    /// Divide each embedding by its length, after the model's own modules
    #[arg(long)]
    normalize: bool,
    /// The type of the numbers; needs --json or --output. int8 and uint8 divide the range of each feature over all
    /// texts into 256 steps, binary and ubinary keep one bit of each
    #[arg(long, value_name = "PRECISION", default_value_t = Precision::Float32, value_parser = precision())]
    pub precision: Precision,
    /// Take the ranges of int8 and uint8 from the lines of this file [default: from the texts themselves]
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Print one {"text": …, "embeddings": [[…], …]} per line, with a vector for each token; needs --json
    #[arg(long, requires = "json", conflicts_with_all = ["precision", "calibration", "truncate_dim", "normalize"])]
    pub token_embeddings: bool,
}

/// Parses the names that sentence-transformers has.
fn precision() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(["float32", "int8", "uint8", "binary", "ubinary"])
        .try_map(|name| name.parse::<Precision>())
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Kind {
    /// Texts that search
    Query,
    /// Texts that are searched
    Document,
}

impl Outputs {
    /// The options of the library.
    pub fn options<'a>(&'a self, encoder: &SentenceEncoder, mut options: EncodeOptions<'a>) -> EncodeOptions<'a> {
        options.prompt = self.prompt.as_deref();
        options.truncate_dim = self.truncate_dim;
        options.normalize_embeddings = self.normalize;
        match self.kind {
            Some(Kind::Query) => encoder.query_options(options),
            Some(Kind::Document) => encoder.document_options(options),
            None => options,
        }
    }

    /// An option that is given and is for models with one vector per text alone.
    pub fn one_vector_option(&self) -> Option<&'static str> {
        let given = [
            ("--truncate-dim", self.truncate_dim.is_some()),
            ("--normalize", self.normalize),
            ("--precision", self.precision != Precision::Float32),
            ("--calibration", self.calibration.is_some()),
            ("--token-embeddings", self.token_embeddings),
        ];
        given.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }

    /// Checks what the arguments alone show; `has_place` is whether numbers are printed or written.
    pub fn check(&self, has_place: bool) -> Result<()> {
        let precision = self.precision;
        if precision != Precision::Float32 && !has_place {
            return Err(format!("--precision {precision} needs --json or --output").into());
        }
        if self.calibration.is_some() && !precision.has_ranges() {
            return Err(format!("--calibration is for --precision int8 or uint8, not {precision}").into());
        }
        Ok(())
    }

    /// How large an embedding of so many features is when it is written.
    pub fn size(&self, features: usize) -> String {
        match self.precision {
            Precision::Binary | Precision::Ubinary => format!("{features} bits in {} bytes", features.div_ceil(8)),
            _ => print::count(features, "number"),
        }
    }

    /// Whether all texts have to be there before the first one can be printed.
    pub fn needs_all(&self) -> bool {
        self.precision.has_ranges() && self.calibration.is_none()
    }
}

/// The name that the adapter of the command line has in the encoder.
const NAME: &str = "adapter";

/// The adapter or the task of a model.
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
        let adapter = self.adapter.as_ref().map(|_| "--adapter");
        adapter.or(self.task.as_ref().map(|_| "--task"))
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
