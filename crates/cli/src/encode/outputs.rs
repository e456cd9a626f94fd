//! What is made of each text: the options of the command line.

use std::path::PathBuf;

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
