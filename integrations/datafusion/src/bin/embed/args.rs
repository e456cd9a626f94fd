//! The command line of `embed`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use candle_attention::ComputeType;
use candle_attention_datafusion::program::{cluster_url, threads};
use candle_attention_datafusion::{EmbeddingPrecision, NamedSource, Role};
use clap::{Parser, ValueEnum};

/// Adds a column of text embeddings to Parquet files, here or on a Ballista cluster
///
/// Each input file becomes an output file of the same name, with all its columns and one more. Run the same command
/// again after an interrupt: files that are finished are kept.
#[derive(Parser, Debug)]
#[command(
    version,
    after_help = "\
Examples:
  embed --input 'texts/*.parquet' --column text --output embedded/
  embed --input texts.parquet --column text --output embedded/ --model ./all-MiniLM-L6-v2 --precision binary
  embed --input 'texts/*.parquet' --column text --output embedded/ --cluster df://127.0.0.1:50050"
)]
pub struct Args {
    /// Parquet files: a path or a pattern such as 'texts/*.parquet'; may be given more than once
    #[arg(long, required = true, value_name = "PATTERN")]
    pub input: Vec<String>,

    /// The column of texts
    #[arg(long)]
    pub column: String,

    /// The folder for the output files, made if it is not there
    #[arg(long, value_name = "FOLDER")]
    pub output: PathBuf,

    /// The model: a folder, a hub id, or `embedded`; on a cluster with the name that the nodes have for it
    #[arg(long, default_value = "embedded", value_name = "[NAME=]SOURCE")]
    pub model: NamedSource,

    /// What the texts are for: the model's prompts for queries and documents differ
    #[arg(long = "as", value_enum, default_value_t, value_name = "ROLE")]
    pub role: RoleName,

    /// float32, float16, int8, uint8, binary or ubinary
    #[arg(long, default_value_t)]
    pub precision: EmbeddingPrecision,

    /// What the model computes in: f32, f64, f16 or bf16; or with weights in few bits: int8, q8_0 or q4_0; auto is f32,
    /// with weights that are stored in few bits as they are; on a cluster as its nodes have it
    #[arg(long, default_value_t, value_name = "DTYPE")]
    pub dtype: ComputeType,

    /// Ranges of the features for int8 and uint8, as JSON: [[least, …], [largest, …]]
    #[arg(long, value_name = "FILE")]
    pub ranges: Option<PathBuf>,

    /// The name of the new column
    #[arg(long, default_value = "embedding", value_name = "NAME")]
    pub output_column: String,

    /// The scheduler of a Ballista cluster, whose nodes see the input files at the same paths
    #[arg(long, value_name = "df://HOST:PORT", value_parser = cluster_url)]
    pub cluster: Option<String>,

    /// How many files are worked on at a time [default: 2, on a cluster 8]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub jobs: Option<NonZeroUsize>,

    /// How many rows are encoded together; more keep more cores busy, and progress shows less often
    #[arg(long, default_value = "8192", value_name = "N")]
    pub batch_rows: NonZeroUsize,

    /// How often a file is tried again after an error of the cluster that is not one of a text or a model
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub retries: usize,

    /// The number of threads of the encoder [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<NonZeroUsize>,

    /// Makes files again that this program wrote from another input, with another model or other settings
    #[arg(long)]
    pub overwrite: bool,
}

/// The names of roles.
#[derive(ValueEnum, Debug, Clone, Copy, Default)]
pub enum RoleName {
    /// The model's default prompt
    #[default]
    Text,
    /// Texts that search
    Query,
    /// Texts that are searched
    Document,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Text => Self::Text,
            RoleName::Query => Self::Query,
            RoleName::Document => Self::Document,
        }
    }
}
