//! Semantic search over the passages of files and folders.

mod hits;
mod passages;
mod show;
mod sources;

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use candle_attention::ensure;
use candle_attention_text::SentenceEncoder;
use clap::{Parser, ValueHint};
use hits::{Hit, Searched};
use show::Show;
use sources::Walk;

use super::shared::model::{Batches, MAX_LENGTH, Model, embeddings, examples, note_cut};
use super::shared::program::{Command, NoHit};
use super::shared::read::Lines;
use super::shared::{Result, positive, print};

/// Find the passages of files that are closest in meaning to a query.
///
/// Passages are embedded as documents and queries as queries, with the model's prompts and routes for them.
///
/// Passages longer than the model takes are cut into windows that overlap; the best window of a passage counts and is
/// shown. Passages with the same text are one hit, "(and 2 more)".
///
/// Files are searched as they stand, HTML and XML with their tags: convert them to text first where that matters.
///
/// Each run embeds all that it searches, and keeps nothing. For several questions use several -e, or -f, or a prompt by
/// `-f -`: then that is done once.
///
/// Without --model, an embedded model of 3 MB is used, which is for trying out. A better one is in the last example;
/// CANDLE_ATTENTION_MODEL makes it the default.
///
/// The exit code is 0 with a hit, 1 without, 2 after an error.
#[derive(Parser)]
#[command(
    name = "search",
    override_usage = "candle-attention search [OPTIONS] <QUERY> [PATH]...\n       \
                      candle-attention search [OPTIONS] -e <QUERY>... [PATH]...\n       \
                      candle-attention search [OPTIONS] -f <FILE> [PATH]...",
    after_help = examples("Examples:
  candle-attention search \"When is the rent due?\" notes.txt
  candle-attention search -k 2 --min-score 0.2 -e \"a cat on a sofa\" -e rent notes.txt texts.txt
  candle-attention search -l -g '*.txt' \"something about money\" .
  candle-attention search --model sentence-transformers/all-MiniLM-L6-v2 rent notes.txt")
)]
pub struct Search {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    batches: Batches,
    /// What to look for. The name of an existing file is an error, unless it follows -e. With -e or -f, this is a PATH
    /// too
    #[arg(value_hint = ValueHint::Other)]
    query: Option<OsString>,
    /// Files, and folders whose text files are searched; `-` is standard input [default: standard input if it is a file
    /// or a pipe, else the current folder]
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// A query; may be given several times [default: the first argument]
    #[arg(short = 'e', long = "query", value_name = "QUERY", allow_hyphen_values = true, value_hint = ValueHint::Other)]
    queries: Vec<String>,
    /// Read the queries from a file, one per line; `-` is standard input, with a prompt on a terminal
    #[arg(short = 'f', long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    query_file: Option<PathBuf>,
    /// The number of hits; with -l, of files
    #[arg(short = 'k', long, allow_negative_numbers = true, default_value_t = 10, value_parser = positive::<u32>)]
    top_k: u32,
    /// Only hits with at least this cosine similarity, from -1 to 1 [default: all]
    #[arg(long, allow_negative_numbers = true, value_parser = score)]
    min_score: Option<f32>,
    #[command(flatten)]
    walk: Walk,
    /// Print only the names of the files with the best hits
    #[arg(short = 'l', long, conflicts_with = "json")]
    files_with_matches: bool,
    /// Print one {"query": …, "rank": …, "score": …, "file": …, "lines": [first, last], "text": …} per hit
    #[arg(long)]
    json: bool,
    /// The name of the model's prompt to put before each query [default: `query`, if the model has it]
    #[arg(long)]
    query_prompt_name: Option<String>,
}

fn score(text: &str) -> std::result::Result<f32, &'static str> {
    text.parse().ok().filter(|score| (-1.0..=1.0).contains(score)).ok_or("expected a number from -1 to 1")
}

impl Command for Search {
    fn run(mut self) -> Result<()> {
        let paths = self.arguments()?;
        let query_file = self.query_file.as_deref().map(Lines::open).transpose()?;
        let folder = self.model.folder()?;
        if folder.is_none() {
            print::note(format_args!("the embedded model is for trying out; --help says how to get a better one"));
        }
        let corpus = self.walk.read(&paths)?;
        if corpus.passages.is_empty() {
            print::note(format_args!("there is no text to search"));
            return Err(NoHit.into());
        }
        let encoder = self.model.load(folder.as_deref(), self.model.compute.compute_type())?;
        let options = encoder.document_options(self.batches.options(self.model.prompt_name.as_deref()));
        let searched = Searched::new(&corpus, &encoder, &options)?;
        let named = paths.len() > 1 || paths[0].is_dir();
        self.answer(&encoder, &searched, named, query_file)
    }
}

impl Search {
    /// Sorts queries and paths apart, and returns what is searched.
    fn arguments(&mut self) -> Result<Vec<PathBuf>> {
        let is_query = self.queries.is_empty() && self.query_file.is_none();
        let mut given = self.query.take().into_iter().chain(std::mem::take(&mut self.paths));
        if is_query {
            let first = given.next();
            if let Some(path) = first.as_ref().map(Path::new).filter(|path| path.exists()) {
                let name = print::plain(path.display());
                return Err(format!("{name} exists, and the query comes first; if it is the query: -e {name}").into());
            }
            let query = first.ok_or("no query: expected QUERY [PATH]…, -e QUERY, or -f - for a prompt")?;
            self.queries.push(query.into_string().map_err(|_| "the query is not UTF-8")?);
        }
        let is_blank = self.queries.iter().any(|query| query.trim().is_empty());
        ensure!(!is_blank, "a query is blank: expected some words".into());
        let mut paths: Vec<PathBuf> = given.map(PathBuf::from).collect();
        let has_queries = self.query_file.as_deref() == Some(Path::new("-"));
        if paths.is_empty() {
            paths.push(PathBuf::from(if !has_queries && stdin_has_text() { "-" } else { "." }));
        }
        let has_both = has_queries && paths.contains(&PathBuf::from("-"));
        ensure!(!has_both, "-: standard input cannot hold both the queries and what is searched".into());
        Ok(paths)
    }

    /// Prints the hits of each query.
    fn answer(&self, encoder: &SentenceEncoder, searched: &Searched, named: bool, file: Option<Lines>) -> Result<()> {
        let interactive = self.query_file.as_deref() == Some(Path::new("-")) && std::io::stdin().is_terminal();
        let show = Show {
            corpus: searched.corpus,
            // A single query, or queries typed on a terminal, need not be repeated above their hits.
            titled: !interactive && (self.queries.len() > 1 || self.query_file.is_some()),
            named,
        };
        let (least, top_k) = (self.min_score.unwrap_or(-1.0), self.top_k as usize);
        // A file is named once for all queries.
        let (mut found, mut files) = (false, HashSet::new());
        let mut answer = |query: &str| -> Result<()> {
            let mut hits = searched.hits(&self.vector(encoder, query)?, least)?.peekable();
            if hits.peek().is_none() {
                print::note(format_args!("nothing is near enough to `{}`", print::one_line(query, 200)));
                return Ok(());
            }
            found = true;
            if self.files_with_matches {
                let passages = hits.flat_map(|hit| hit.passages).filter(|passage| files.insert(passage.document));
                return show.print_files(passages.take(top_k));
            }
            let hits: Vec<Hit> = hits.take(top_k).collect();
            if self.json { show.print_json(query, &hits) } else { show.print(query, &hits) }
        };
        self.queries.iter().try_for_each(|query| answer(query))?;
        if let Some(queries) = file {
            let ask = |prompt: &str| _ = write!(std::io::stderr(), "{}", if interactive { prompt } else { "" });
            ask("query> ");
            for query in queries {
                answer(&query?)?;
                ask("query> ");
            }
            ask("\n");
        }
        if found { Ok(()) } else { Err(NoHit.into()) }
    }

    fn vector(&self, encoder: &SentenceEncoder, query: &str) -> Result<Vec<f32>> {
        let options = encoder.query_options(self.batches.options(self.query_prompt_name.as_deref()));
        let on_truncated = |_: usize| note_cut(1, 1, Some(encoder.max_seq_length_for(&options)), MAX_LENGTH);
        Ok(embeddings(encoder, &[query], &options.with_on_truncated(&on_truncated))?.get(0)?.to_vec1()?)
    }
}

/// Whether standard input is a file or a pipe; `/dev/null`, as for background jobs, is neither.
fn stdin_has_text() -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = std::fs::metadata("/dev/stdin").map(|metadata| metadata.file_type());
        kind.is_ok_and(|kind| kind.is_file() || kind.is_fifo() || kind.is_socket())
    }
    #[cfg(not(unix))]
    !std::io::stdin().is_terminal()
}
