//! Sentence embeddings: a table of similarities, one JSON object per line, or a file for NumPy or safetensors.

mod embedder;
mod lines;
mod outputs;
#[cfg(feature = "program")]
mod retrieval;
mod table;
mod write;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use candle_attention_text::EncoderKind;
use clap::Parser;
use embedder::Embedder;
use lines::Arrivals;
use outputs::{Adaptation, Outputs};

use super::shared::model::{Batches, Model, examples};
use super::shared::output::{Kind, Output};
use super::shared::program::Command;
use super::shared::read::{self, Lines};
use super::shared::{Result, fail, print};

/// Compute sentence embeddings, and compare texts by them.
///
/// Prints a table of cosine similarities; for more than ten texts, each text with the one nearest to it; for one text,
/// the ends of its embedding. Texts longer than the model takes are cut, and their number is printed on standard error.
#[derive(Parser)]
#[command(
    name = "encode",
    after_help = examples("Examples:
  candle-attention encode \"A cat sleeps.\" \"A kitten naps.\" \"Stocks fell.\"
  candle-attention encode --model sentence-transformers/all-MiniLM-L6-v2 --file texts.txt \\
      --output embeddings.npy
  candle-attention encode --json < texts.txt
  candle-attention encode --json --as query --precision ubinary \"a pet at rest\"")
)]
pub struct Encode {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    adaptation: Adaptation,
    #[command(flatten)]
    batches: Batches,
    #[command(flatten)]
    outputs: Outputs,
    /// The texts to encode; without any, or with `-` alone, the lines of standard input
    texts: Vec<String>,
    /// Read the texts from a file, one per line; `-` is standard input; blank lines are skipped; may be given several
    /// times
    #[arg(long, conflicts_with = "texts")]
    file: Vec<PathBuf>,
    /// Print one {"text": …, "embedding": […]} per line ({"text": …, "indices": […], "values": […]} of a sparse model,
    /// {"text": …, "embeddings": [[…], …]} of one with a vector per token), in input order, as soon as it is computed:
    /// what has arrived of a pipe at once, of a file 8,192 texts at a time
    #[arg(long, conflicts_with_all = ["output", "against", "pairs"])]
    json: bool,
    /// Write the embeddings (texts, dimensions) to this .npy or .safetensors file (tensor `embeddings`); `-` is
    /// standard output, in NumPy's format, as are devices and pipes without such a name
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "pairs"])]
    output: Option<PathBuf>,
    /// Replace any file at --output [default: a file of another kind is an error]
    #[arg(long, requires = "output")]
    force: bool,
    /// Print for each text the nearest line of this file, and their similarity
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    against: Option<PathBuf>,
    /// Print the similarity of each pair of this file: two texts per line with a tab between them
    #[arg(long, value_name = "FILE", conflicts_with_all = ["texts", "file"])]
    pairs: Option<PathBuf>,
}

impl Command for Encode {
    fn run(self) -> Result<()> {
        self.outputs.check(self.json || self.output.is_some())?;
        let output = self.output.as_deref().map(|path| output(path, self.force)).transpose()?;
        if let Some(output) = &output {
            write::check(output, self.outputs.precision)?;
        }
        if let Some(path) = &self.pairs {
            return table::pairs(&self.embedder()?, &pairs(path)?);
        }
        let files = read::files_given(&self.texts, &self.file, "text")?;
        if self.json && !files.is_empty() {
            let files = files.iter().map(|path| Lines::open(path)).collect::<Result<_>>()?;
            return self.stream(Arrivals { given: Vec::new().into_iter(), files });
        }
        if files.is_empty() {
            note_files(&self.texts);
        }
        let texts = read::texts_given(&self.texts, &self.file, "text")?;
        let against = self.against.as_deref().map(|path| read::texts(path, "text")).transpose()?;
        if self.json {
            return self.stream(Arrivals { given: texts.into_iter(), files: VecDeque::new() });
        }
        let embedder = self.embedder()?;
        let texts = read::borrowed(&texts);
        if let Some(others) = against {
            return table::nearest_of(&embedder, &texts, &read::borrowed(&others));
        }
        let embeddings = embedder.embed(&texts)?;
        let (count, size) = embeddings.dims2()?;
        let (each, size) = (if count == 1 { "" } else { " each" }, self.outputs.size(size));
        let made = format!("{}, {size}{each} by {}", print::count(count, "text"), self.model.name());
        match output {
            Some(output) => write::embeddings(&output, &embedder.quantize(&embeddings)?, &made),
            None if count == 1 => table::numbers(&embeddings, &made),
            None => table::similarities(&texts, &embeddings, &made),
        }
    }
}

impl Encode {
    /// Prints JSON lines.
    fn stream(&self, texts: Arrivals) -> Result<()> {
        let folder = self.model.folder()?;
        let Some((folder, what)) = folder.as_deref().zip(other_vectors(folder.as_deref())?) else {
            return Embedder::load(&self.model, folder, &self.adaptation, &self.batches, &self.outputs)?.stream(texts);
        };
        if let Some(option) = self.adaptation.given().or(self.outputs.one_vector_option()) {
            return Err(format!("{option} is not for this model: it makes {what}").into());
        }
        #[cfg(feature = "program")]
        return retrieval::stream(&self.model, folder, &self.batches, &self.outputs, texts);
        #[cfg(not(feature = "program"))]
        return fail(
            folder,
            format!(
                "the model makes {what}, which the program encodes and this example does not: cargo run --release -p \
                 candle-attention-cli -- encode"
            ),
        );
    }

    /// The model, which makes one vector per text.
    fn embedder(&self) -> Result<Embedder<'_>> {
        let folder = self.model.folder()?;
        if let Some(what) = other_vectors(folder.as_deref())? {
            let name = self.model.name();
            return Err(format!("{name}: the model makes {what}, which are printed with --json only").into());
        }
        Embedder::load(&self.model, folder, &self.adaptation, &self.batches, &self.outputs)
    }
}

/// The vectors that a model makes of a text, if that is not one dense vector.
fn other_vectors(folder: Option<&Path>) -> Result<Option<&'static str>> {
    Ok(match folder.map(EncoderKind::from_folder).transpose()? {
        Some(EncoderKind::Sparse) => Some("sparse vectors"),
        Some(EncoderKind::MultiVector) => Some("a vector per token"),
        _ => None,
    })
}

/// Says so where all texts are names of files.
fn note_files(texts: &[String]) {
    if texts.iter().all(|text| Path::new(text).is_file()) {
        let name = &texts[0];
        print::note(format_args!("the name {name} is encoded, not the file; --file {name} encodes the file's lines"));
    }
}

/// The two texts of each line.
fn pairs(path: &Path) -> Result<Vec<(String, String)>> {
    let (mut lines, mut pairs) = (Lines::open(path)?, Vec::new());
    while let Some(line) = lines.next().transpose()? {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [first, second] => pairs.push((first.to_string(), second.to_string())),
            ref parts => {
                let (number, found) = (lines.number, print::count(parts.len() - 1, "tab"));
                return fail(path, format!("line {number} has {found}, expected two texts with one tab between them"));
            }
        }
    }
    if pairs.is_empty() { fail(path, "no pair of texts") } else { Ok(pairs) }
}

/// The file to write, whose format is that of its name; NumPy's for a stream without one.
fn output(path: &Path, force: bool) -> Result<Output> {
    let is_stream = path.as_os_str() == "-" || path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir());
    let kind = match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => Kind::Tensors("candle-attention embeddings 1"),
        Some("npy") => Kind::Npy,
        _ if is_stream => Kind::Npy,
        _ => return fail(path, "expected a name that ends in .npy or .safetensors"),
    };
    Output::new(path, kind, force)
}
