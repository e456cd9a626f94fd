//! How fast an encoder is.

use std::time::{Duration, Instant};

use candle_attention_text::{EncodeOptions, SentenceEncoder};
use serde::Serialize;

use super::super::shared::Result;
use super::super::shared::model::embeddings;

/// The least number of runs, and the least time of all runs together.
const RUNS: usize = 5;
const TIME: Duration = Duration::from_millis(500);

/// The speed with so many texts in a call, from the strings to the embeddings.
#[derive(Serialize)]
pub struct Speed {
    pub texts: usize,
    pub tokens: usize,
    pub runs: usize,
    /// Of a run, the median.
    pub milliseconds: f64,
    pub texts_per_second: f64,
    pub tokens_per_second: f64,
}

impl Speed {
    pub fn measure(encoder: &SentenceEncoder, texts: &[&str], options: &EncodeOptions) -> Result<Self> {
        let tokens = encoder.token_ids(texts, options)?.iter().map(Vec::len).sum();
        // Packs weights, wakes threads, compiles the kernels of a GPU.
        embeddings(encoder, texts, options)?;
        let (start, mut runs) = (Instant::now(), Vec::new());
        while runs.len() < RUNS || start.elapsed() < TIME {
            let start = Instant::now();
            embeddings(encoder, texts, options)?;
            runs.push(start.elapsed().as_secs_f64());
        }
        runs.sort_by(f64::total_cmp);
        let seconds = runs[runs.len() / 2];
        Ok(Self {
            texts: texts.len(),
            tokens,
            runs: runs.len(),
            milliseconds: seconds * 1e3,
            texts_per_second: texts.len() as f64 / seconds,
            tokens_per_second: tokens as f64 / seconds,
        })
    }
}
