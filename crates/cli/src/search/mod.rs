//! Semantic search over the passages of files and folders.

mod cache;
mod hits;
mod passages;
mod show;
mod sources;

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use candle_attention_text::search::Index;
use candle_attention_text::{SentenceEncoder, Task, fingerprint};
use clap::{Parser, ValueHint};
use hits::Searched;
use show::Show;
use sources::{Walk, Windows};

use super::shared::model::{Batches, MAX_LENGTH, Model, embeddings, examples, note_cut};
use super::shared::program::{Command, NoHit};
use super::shared::read::Lines;
use super::shared::{Result, positive, print};

/// Find the passages of files that are closest in meaning to a query.
///
/// Passages are embedded as documents and queries as queries, with the model's prompts and routes for them.
///
/// Passages longer than the model takes are cut into windows that overlap; the best window of a passage counts and, on
/// a terminal, is bold. Passages whose best windows have four of five words in common are one hit, "(and 2 similar)".
///
/// The embeddings are saved in the folder candle-attention/search of your cache folder, which is $XDG_CACHE_HOME or
/// ~/.cache, on macOS ~/Library/Caches, on Windows %LOCALAPPDATA%: a file for each model, for all that you search with
/// it. The next run embeds only passages that are in none so far, and after Ctrl-C the same command goes on. You may
/// delete this folder at any time.
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
  candle-attention search -C 2 --min-score 0.2 -e \"a cat on a sofa\" -e rent notes.txt texts.txt
  candle-attention search -l -t txt \"something about money\" .
  candle-attention search --model sentence-transformers/all-MiniLM-L6-v2 rent notes.txt")
)]
pub struct Search {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    batches: Batches,
    /// What to look for. The name of an existing file is an error, unless it follows `--` or -e. With -e or -f, this is
    /// a PATH too
    #[arg(value_hint = ValueHint::Other)]
    query: Option<OsString>,
    /// Files, and folders whose text files are searched; `-` is standard input [default: standard input if it is a file
    /// or a pipe, else the current folder]
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    paths: Vec<OsString>,
    /// What follows `--`, where a query may be the name of a file
    #[arg(last = true, hide = true)]
    after_dashes: Vec<OsString>,
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
    /// Accepted as by grep, without effect: folders are searched with all in them, and hits have line numbers
    #[arg(short = 'r', visible_short_aliases = ['n', 'i'], action = clap::ArgAction::Count)]
    recursive: u8,
    #[command(flatten)]
    walk: Walk,
    /// Also show this many lines before and after each hit
    #[arg(short = 'C', long, value_name = "LINES", default_value_t = 0)]
    context: u32,
    /// Show at most so many columns of a passage, of a longer one its best window; 0 is no limit
    #[arg(short = 'M', long, value_name = "COLUMNS", default_value_t = 1000)]
    max_columns: usize,
    /// Print only the names of the files with the best hits
    #[arg(short = 'l', long, conflicts_with_all = ["json", "context"])]
    files_with_matches: bool,
    /// Show passages that say nearly the same as hits of their own
    #[arg(long)]
    no_fold: bool,
    /// Print one {"query": …, "rank": …, "score": …, "file": …, "lines": [first, last], "text": …} per hit
    #[arg(long)]
    json: bool,
    /// Color the hits; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, default_value_t = clap::ColorChoice::Auto)]
    color: clap::ColorChoice,
    /// The name of the model's prompt to put before each query [default: `query`, if the model has it]
    #[arg(long)]
    query_prompt_name: Option<String>,
    /// Neither read nor write saved embeddings
    #[arg(long)]
    no_cache: bool,
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
        let texts = corpus.texts();
        if texts.is_empty() {
            print::note(format_args!("there is no text to search"));
            return Err(NoHit.into());
        }
        let encoder = self.model.load(folder.as_deref(), self.model.compute.compute_type())?;
        let options = encoder.document_options(self.batches.options(self.model.prompt_name.as_deref()));
        let windows = Windows::new(&texts, &encoder, &options)?;
        // Everything that the vectors depend on beside the texts.
        let prompt = options.prompt_name.or(options.task.map(Task::name));
        let content = folder.as_ref().map_or_else(|| Ok(SentenceEncoder::embedded_fingerprint()), fingerprint)?;
        let model = format!("{content} {} {prompt:?} {:?}", self.model.compute.compute_type(), options.max_length);
        let mut index = Index::new(&windows.texts, encoder.embedding_size(), model.as_str())?;
        let cache = cache::file(&model).filter(|_| !self.no_cache);
        cache::fill(&mut index, cache.as_deref(), &encoder, &options)?;
        let named = paths.len() > 1 || paths[0].is_dir();
        self.answer(&encoder, &Searched { corpus: &corpus, texts: &texts, windows: &windows, index }, named, query_file)
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
                let name = path.display();
                return Err(format!("{name} exists, and the query comes first; if it is the query: -e {name}").into());
            }
            let query = first.or_else(|| (!self.after_dashes.is_empty()).then(|| self.after_dashes.remove(0)));
            let query = query.ok_or("no query: expected QUERY [PATH]…, -e QUERY, or -f - for a prompt")?;
            self.queries.push(query.into_string().map_err(|_| "the query is not UTF-8")?);
        }
        if self.queries.iter().any(|query| query.trim().is_empty()) {
            return Err("a query is blank: expected some words".into());
        }
        let mut paths: Vec<PathBuf> = given.chain(std::mem::take(&mut self.after_dashes)).map(PathBuf::from).collect();
        let has_queries = self.query_file.as_deref() == Some(Path::new("-"));
        if paths.is_empty() {
            paths.push(PathBuf::from(if !has_queries && stdin_has_text() { "-" } else { "." }));
        }
        if has_queries && paths.contains(&PathBuf::from("-")) {
            Err("-: standard input cannot hold both the queries and what is searched".into())
        } else {
            Ok(paths)
        }
    }

    /// Prints the hits of each query.
    fn answer(&self, encoder: &SentenceEncoder, searched: &Searched, named: bool, file: Option<Lines>) -> Result<()> {
        let interactive = self.query_file.as_deref() == Some(Path::new("-")) && std::io::stdin().is_terminal();
        let show = Show {
            options: self,
            corpus: searched.corpus,
            // A single query, or queries typed on a terminal, need not be repeated above their hits.
            titled: !interactive && (self.queries.len() > 1 || self.query_file.is_some()),
            named,
            colored: show::is_colored(self.color),
        };
        let (mut found, mut files) = (false, HashSet::new());
        let mut answer = |query: &str| -> Result<()> {
            let mut hits = searched.hits(&self.vector(encoder, query)?, self)?;
            found |= !hits.is_empty();
            if hits.is_empty() {
                print::note(format_args!("nothing is near enough to `{}`", print::one_line(query, 200)));
            }
            // A file is named once for all queries.
            hits.retain(|hit| !self.files_with_matches || files.insert(hit.passage.document));
            show.print(query, &hits)
        };
        self.queries.iter().try_for_each(|query| answer(query))?;
        if let Some(queries) = file {
            let prompt = if interactive { "query> " } else { "" };
            let _ = write!(std::io::stderr(), "{prompt}");
            for query in queries {
                answer(&query?)?;
                let _ = write!(std::io::stderr(), "{prompt}");
            }
            let _ = write!(std::io::stderr(), "{}", if interactive { "\n" } else { "" });
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
