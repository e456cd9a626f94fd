//! How fast an encoder is on texts that are as long as queries, sentences and short paragraphs are.

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
    /// The median time of a run.
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

/// The passage that the texts are cut from.
const PASSAGE: &str = "The ferry to the island leaves at seven, and in winter it is often late. Most people who take it work in the \
harbor or at the school, and they know each other by name. On the upper deck a man reads the paper; below, two children \
share an apple and count the gulls. The crossing takes forty minutes when the sea is calm. A storm in March broke the \
older of the two piers, so that passengers now wait in a tent beside the road, where somebody has put up a stove and a \
shelf with books. The company promised a new pier by the summer, then by the autumn, and has since stopped answering \
letters. Prices rose by a fifth last year, because fuel costs more and fewer tourists came. Some families have moved to \
the mainland, others have bought boats of their own, and the doctor comes only on Mondays and Thursdays. Still, nobody \
who was asked would call the island lonely. There is a choir, a small library, a bakery that opens before sunrise, and \
on clear nights the light of the city can be seen across the water like a second shore.";

/// The words of the texts, one after the other: 30 on average.
const WORDS: [usize; 8] = [12, 7, 18, 9, 26, 14, 44, 110];

/// How far in words each text begins after the one before it.
const STEP: usize = 37;

/// The first `count` texts; the same ones every time.
pub fn texts(count: usize) -> Vec<String> {
    let passage: Vec<&str> = PASSAGE.split(' ').collect();
    let text = |i: usize| {
        let words = passage.iter().cycle().skip(i * STEP % passage.len()).take(WORDS[i % WORDS.len()]);
        words.copied().collect::<Vec<_>>().join(" ")
    };
    (0..count).map(text).collect()
}
