//! Semantic search over the lines of files and folders.

mod cache;
mod hits;
mod show;
mod sources;

use std::io::{BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};

use cache::Cache;
use candle_attention_text::search::Index;
use candle_attention_text::{EncodeOptions, SentenceEncoder, Task, fingerprint};
use candle_core::{DType, Device};
use clap::Parser;
use hits::{Searched, Wanted, hits};
use show::Show;
use sources::{Corpus, Source};

use super::shared::model::{Batches, Model, note_truncated};
use super::shared::program::Command;
use super::shared::{Result, about};

/// Find the lines of files that are closest in meaning to a query.
///
/// Lines are embedded as documents and queries as queries: with the model's prompts and routes for them, if it has any.
///
/// Lines longer than the model takes are cut into windows that overlap; the best window of a line is shown. Lines that
/// say nearly the same are one hit.
///
/// The embeddings are saved beside each file, in FILE.search-MODEL.safetensors, where MODEL is a number of its own for
/// each model. The next run embeds only new and changed lines; an interrupted run continues from its last save.
#[derive(Parser)]
#[command(
    name = "search",
    after_help = "Examples:
  candle-attention search --file notes.txt \"When is the rent due?\"
  candle-attention search --file notes.txt --file texts.txt -C 2 --min-score 0.2 \"a cat on a sofa\""
)]
pub struct Search {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    batches: Batches,
    /// The queries; without any, they are read from standard input, one per line
    queries: Vec<String>,
    /// A file to search, or a folder whose text files are; may be given several times [default, or with `-`: standard
    /// input]
    #[arg(long)]
    file: Vec<PathBuf>,
    /// The number of lines to find
    #[arg(short = 'k', long, allow_negative_numbers = true, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    top_k: u32,
    /// Show only lines with at least this cosine similarity, from -1 to 1 [default: all]
    #[arg(long, allow_negative_numbers = true, value_parser = score)]
    min_score: Option<f32>,
    /// Also show this many lines before and after each hit
    #[arg(short = 'C', long, value_name = "LINES", default_value_t = 0)]
    context: usize,
    /// Show lines that say nearly the same (four of five words) as hits of their own
    #[arg(long)]
    no_fold: bool,
    /// Print one {"query": …, "rank": …, "score": …, "file": …, "lines": […], "text": …} per hit
    #[arg(long)]
    json: bool,
    /// The name of the model's prompt to put before each query [default: `query`, if the model has it]
    #[arg(long)]
    query_prompt_name: Option<String>,
    /// The .safetensors file that keeps the embeddings, also for standard input [default: one beside each file]
    #[arg(long, value_name = "FILE")]
    cache: Option<PathBuf>,
    /// Neither read nor write saved embeddings
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
    /// Seconds between two saves of unfinished work
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    save_every: u64,
}

fn score(text: &str) -> std::result::Result<f32, String> {
    let score = text.parse().map_err(|_| "expected a number from -1 to 1".to_string())?;
    if (-1.0..=1.0).contains(&score) { Ok(score) } else { Err("expected a number from -1 to 1".to_string()) }
}

impl Command for Search {
    fn run(self) -> Result<()> {
        let paths = self.paths()?;
        let cache = match &self.cache {
            _ if self.no_cache => Cache::None,
            None => Cache::Beside,
            Some(path) => Cache::File(path),
        };
        cache.check()?;
        let sources = paths.iter().map(|path| Source::read(path)).collect::<Result<Vec<Source>>>()?;
        let folder = self.model.folder()?;
        let encoder = self.model.load(folder.as_deref(), self.model.compute_type())?;
        let options = encoder.document_options(self.batches.options(self.model.prompt_name.as_deref()));
        let corpora = sources.iter().map(|source| Corpus::new(source, &encoder, &options));
        let corpora = corpora.collect::<Result<Vec<Corpus>>>()?;
        let model = match cache {
            Cache::None => String::new(),
            _ => self.model_key(folder.as_deref(), &options)?,
        };
        let mut searched = Vec::new();
        for (source, corpus) in sources.iter().zip(&corpora) {
            let mut index = Index::new(&corpus.windows, encoder.embedding_size(), model.as_str())?;
            cache.fill(&mut index, source, &model, &encoder, &options, self.save_every)?;
            searched.push(Searched { source, corpus, index });
        }
        self.answer(&encoder, &searched)
    }
}

impl Search {
    /// What is searched.
    fn paths(&self) -> Result<Vec<PathBuf>> {
        let stdin = self.file.is_empty() || self.file.iter().any(|path| path.as_os_str() == "-");
        if stdin && self.queries.is_empty() {
            return Err(
                "no query: give one as an argument; standard input holds the lines unless there is a --file".into()
            );
        }
        if stdin && std::io::stdin().is_terminal() {
            return Err("no lines: give a file with --file, or pipe them into standard input".into());
        }
        if let [first, .., last] = &self.file[..]
            && self.cache.is_some()
        {
            let reason = format!("{} and {} cannot share one --cache", first.display(), last.display());
            return Err(reason.into());
        }
        if self.queries.iter().any(|query| query.trim().is_empty()) {
            return Err("a query is blank: expected some words".into());
        }
        for (i, path) in self.file.iter().enumerate() {
            if self.file[..i].contains(path) {
                return Err(about(path, &"is given twice").into());
            }
        }
        Ok(if self.file.is_empty() { vec![PathBuf::from("-")] } else { self.file.clone() })
    }

    /// Everything that the vectors depend on beside the texts.
    fn model_key(&self, folder: Option<&Path>, options: &EncodeOptions) -> Result<String> {
        let content = folder.map_or_else(|| Ok(SentenceEncoder::embedded_fingerprint()), fingerprint)?;
        let prompt = options.prompt_name.or(options.task.map(Task::name));
        Ok(format!("{content} {} {prompt:?} {:?}", self.model.compute_type(), options.max_length))
    }

    /// Prints the hits of each query.
    fn answer(&self, encoder: &SentenceEncoder, searched: &[Searched]) -> Result<()> {
        let interactive = self.queries.is_empty() && std::io::stdin().is_terminal();
        let show = Show {
            json: self.json,
            context: self.context,
            // A single query, or queries typed on a terminal, need not be repeated above their hits.
            titled: self.queries.len() != 1 && !interactive,
            named: searched.len() > 1 || searched.iter().any(|searched| searched.source.is_folder),
        };
        let wanted = Wanted { top_k: self.top_k as usize, min_score: self.min_score, fold: !self.no_fold };
        let answer = |query: &str| {
            let vector = self.vector(encoder, query)?;
            show.print(query, &hits(searched, &vector, wanted)?)
        };
        if !self.queries.is_empty() {
            return self.queries.iter().try_for_each(|query| answer(query));
        }
        let prompt = |text: &str| {
            if interactive {
                let _ = write!(std::io::stderr(), "{text}");
            }
        };
        prompt("query> ");
        for query in std::io::stdin().lock().lines() {
            let query = query.map_err(|e| format!("standard input: {e}"))?;
            if !query.trim().is_empty() {
                answer(query.trim())?;
            }
            prompt("query> ");
        }
        prompt("\n");
        Ok(())
    }

    fn vector(&self, encoder: &SentenceEncoder, query: &str) -> Result<Vec<f32>> {
        let options = encoder.query_options(self.batches.options(self.query_prompt_name.as_deref()));
        let on_truncated = |_: usize| note_truncated(1, 1, options.max_length.or(Some(encoder.max_seq_length())));
        let vector = encoder.encode(&[query], &options.with_on_truncated(&on_truncated))?;
        Ok(vector.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.get(0)?.to_vec1()?)
    }
}
