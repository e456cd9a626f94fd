//! Semantic search over the lines of a file: prints the nearest lines, or with `--json` one JSON object per hit.

use std::cell::Cell;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::shared::model::{Batches, Model};
use super::shared::print::one_line;
use super::shared::program::Command;
use super::shared::{Result, bar, read};
use candle_attention::Error;
use candle_attention::encoder::{Ranked, SentenceEncoder, fingerprint};
use candle_attention::search::{Index, Lines};
use candle_core::DType;
use clap::Parser;

/// Finds the lines of a file that are closest in meaning to a query.
///
/// The embeddings are saved beside the file, in FILE.search.safetensors. The next run embeds only new and changed lines; an
/// interrupted run continues where it stopped.
///
/// Example: search --file notes.txt "When is the rent due?"
#[derive(Parser)]
#[command(name = "search", verbatim_doc_comment)]
pub struct Search {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    batches: Batches,
    /// The queries; without any, they are read from standard input, one per line
    queries: Vec<String>,
    /// The file to search [default, or with `-`: standard input]
    #[arg(long)]
    file: Option<PathBuf>,
    /// The number of lines to find
    #[arg(short = 'k', long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    top_k: u32,
    /// Print one {"query": …, "rank": …, "score": …, "lines": […], "text": …} per hit
    #[arg(long)]
    json: bool,
    /// The name of the model's prompt to put before each query
    #[arg(long)]
    query_prompt_name: Option<String>,
    /// The .safetensors file that keeps the embeddings, also for standard input
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// Neither read nor write saved embeddings
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
    /// Seconds between two saves of unfinished work
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    save_every: u64,
}

impl Command for Search {
    fn run(self) -> Result<()> {
        search(&self)
    }
}

fn search(arguments: &Search) -> Result<()> {
    let file = arguments.file.as_deref().filter(|path| path.as_os_str() != "-");
    if file.is_none() && arguments.queries.is_empty() {
        return Err("no query: give one as an argument; standard input holds the lines unless there is a --file".into());
    }
    if file.is_none() && std::io::stdin().is_terminal() {
        return Err("no lines: give a file with --file, or pipe them into standard input".into());
    }
    let cache = cache(arguments, file)?;
    let text = read::text(file.unwrap_or(Path::new("-")))?;
    let lines = Lines::new(&text);
    if lines.texts.is_empty() {
        return Err(format!("{}: no line to search", file.unwrap_or(Path::new("-")).display()).into());
    }
    let folder = arguments.model.folder()?;
    let encoder = arguments.model.load(folder.as_deref())?;
    let model = match cache {
        Some(_) => {
            let content = folder.map_or_else(|| Ok(SentenceEncoder::embedded_fingerprint()), fingerprint)?;
            format!("{content} {:?} {:?}", arguments.model.dtype, arguments.model.prompt_name)
        }
        None => String::new(),
    };
    let mut index = Index::new(&lines.texts, encoder.embedding_size(), model)?;
    fill(&mut index, &encoder, arguments, cache.as_deref())?;

    let interactive = arguments.queries.is_empty() && std::io::stdin().is_terminal();
    // A single query, or queries typed on a terminal, need not be repeated above their hits.
    let titled = arguments.queries.len() != 1 && !interactive;
    let answer = |query: &str| print(arguments, &lines, query, &nearest(arguments, &encoder, &index, query)?, titled);
    if !arguments.queries.is_empty() {
        return arguments.queries.iter().try_for_each(|query| answer(query));
    }
    let prompt = || {
        if interactive {
            eprint!("query> ")
        }
    };
    prompt();
    for query in std::io::stdin().lock().lines() {
        let query = query.map_err(|e| format!("standard input: {e}"))?;
        if !query.trim().is_empty() {
            answer(query.trim())?;
        }
        prompt();
    }
    if interactive {
        eprintln!();
    }
    Ok(())
}

/// The file that keeps the embeddings; `None` if they are not saved.
fn cache(arguments: &Search, file: Option<&Path>) -> Result<Option<PathBuf>> {
    let Some(named) = &arguments.cache else {
        let beside = |file: &Path| {
            let mut name = file.as_os_str().to_owned();
            name.push(".search.safetensors");
            name.into()
        };
        return Ok(file.filter(|_| !arguments.no_cache).map(beside));
    };
    // An existing file is replaced: the extension guards against a file that was named by mistake.
    if named.extension().is_none_or(|extension| extension != "safetensors") {
        return Err(format!("--cache {}: expected a name that ends in .safetensors", named.display()).into());
    }
    Index::check_writable(named)?;
    Ok(Some(named.clone()))
}

/// Loads the saved embeddings, computes the missing ones, and saves them from time to time and at the end.
fn fill(index: &mut Index, encoder: &SentenceEncoder, arguments: &Search, cache: Option<&Path>) -> Result<()> {
    if let Some(cache) = cache {
        match index.load_cached(cache) {
            Ok(_) => {}
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            Err(error) => eprintln!("note: {error}; embedding anew"),
        }
    }
    let bar = bar::bar(index.missing().len(), "embedding", "texts")?;
    let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
    let (saved, may_save) = (Cell::new(Instant::now()), Cell::new(true));
    let save = |index: &Index| {
        let Some(cache) = cache.filter(|_| may_save.get()) else { return };
        if let Err(error) = index.save(cache) {
            // The search itself does not need the file.
            bar.suspend(|| eprintln!("note: embeddings are not saved: {error}"));
            may_save.set(false);
        }
        saved.set(Instant::now());
    };
    let save_periodically = |index: &Index| {
        if saved.get().elapsed() >= Duration::from_secs(arguments.save_every) {
            save(index);
        }
        Ok(())
    };
    let count = index.embed(
        encoder,
        &arguments.batches.options(arguments.model.prompt_name.as_deref()).with_on_progress(&on_progress),
        save_periodically,
    )?;
    bar.finish_and_clear();
    if count > 0 {
        save(index);
    }
    Ok(())
}

fn nearest(arguments: &Search, encoder: &SentenceEncoder, index: &Index, query: &str) -> Result<Vec<Ranked>> {
    let mut options = arguments.batches.options(arguments.model.prompt_name.as_deref());
    options.prompt_name = arguments.query_prompt_name.as_deref();
    let query = encoder.encode(&[query], &options)?.to_dtype(DType::F32)?.get(0)?.to_vec1()?;
    Ok(index.search(&query, arguments.top_k as usize)?)
}

#[derive(serde::Serialize)]
struct Hit<'a> {
    query: &'a str,
    rank: usize,
    score: f32,
    lines: &'a [usize],
    text: &'a str,
}

/// The characters of a line that are shown.
const WIDTH: usize = 200;

fn print(arguments: &Search, lines: &Lines, query: &str, found: &[Ranked], titled: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if !arguments.json && titled {
        writeln!(out, "{}", one_line(query, WIDTH))?;
    }
    for (rank, hit) in (1..).zip(found) {
        let (score, text, lines) = (hit.score, lines.texts[hit.index], lines.numbers[hit.index].as_slice());
        if arguments.json {
            writeln!(out, "{}", serde_json::to_string(&Hit { query, rank, score, lines, text })?)?;
            continue;
        }
        let others = if lines.len() > 1 { format!(" (and {} more)", lines.len() - 1) } else { String::new() };
        writeln!(out, "{score:>6.3} {:>6}  {}{others}", lines[0], one_line(text, WIDTH))?;
    }
    Ok(out.flush()?)
}
