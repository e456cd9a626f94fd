//! 64 threads share one encoder, one layer and the vectors of a search: every result has the bits of the first one, and
//! memory does not grow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention,
};
use candle_attention_text::search::Vectors;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};

use crate::common::{Random, random_layer};

const THREADS: usize = 64;
const CPU: Device = Device::Cpu;

/// What all threads share. The layer and the vectors are there in f32; the encoder is the embedded model.
struct Shared<'a> {
    texts: &'a [&'a str],
    encoder: SentenceEncoder,
    vectors: Vectors,
    layer: MultiHeadAttention,
    /// `(1, tokens, 48)`, of several lengths.
    inputs: Vec<Tensor>,
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

impl Shared<'_> {
    /// The bits of the embedding of one text, encoded in a batch whose size depends on `round`.
    fn embedding(&self, text: usize, round: usize) -> Vec<u32> {
        let texts = self.texts.len();
        let batch: Vec<&str> = (0..=round % 4).map(|i| self.texts[(text + i) % texts]).collect();
        bits(&self.encoder.encode(&batch, &EncodeOptions::default()).unwrap().get(0).unwrap())
    }

    fn nearest(&self, text: usize) -> Vec<u32> {
        let query = self.encoder.encode(&[self.texts[text]], &EncodeOptions::default()).unwrap();
        let found = self.vectors.search(&query.get(0).unwrap().to_vec1::<f32>().unwrap(), 5).unwrap();
        found.into_iter().flat_map(|ranked| [ranked.index as u32, ranked.score.to_bits()]).collect()
    }

    /// The layer's output over a whole sequence, and in chunks with a cache, which must not differ.
    fn attention(&self, input: usize, round: usize) -> Vec<u32> {
        let (xs, mask) = (&self.inputs[input], AttentionMask::causal());
        let tokens = xs.dim(1).unwrap();
        let whole = bits(&self.layer.attend(xs, xs, xs, &mask).unwrap());
        let mut cache = KvCache::growing();
        let chunk = 1 + round % tokens;
        let mut chunks = Vec::new();
        for start in (0..tokens).step_by(chunk) {
            let xs = xs.narrow(1, start, chunk.min(tokens - start)).unwrap();
            let inputs = AttentionInputs::self_attention(&xs, &mask);
            let output =
                self.layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default()).unwrap().output;
            chunks.extend(bits(&output));
        }
        assert_eq!(chunks, whole, "chunks of {chunk} of {tokens} tokens");
        whole
    }
}

/// Resident memory of this process in bytes; `None` where the system does not say.
fn resident() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(pages.split(' ').nth(1)?.parse::<usize>().ok()? << 12)
}

/// Runs until `enough`, which gets the rounds of a thread, and returns the rounds of all threads together.
fn run(enough: impl Fn(usize) -> bool + Sync) -> usize {
    let lines: Vec<String> =
        (0..40).map(|i| format!("Text {i} is {}.", "long and longer ".repeat(i * i % 23) + "done")).collect();
    let texts: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut random = Random::new(5);
    let encoder = SentenceEncoder::embedded(DType::F32, &CPU).unwrap();
    let mut vectors = Vectors::new(encoder.embedding_size()).unwrap();
    vectors.embed(&texts, &encoder, &EncodeOptions::default()).unwrap();
    let layer = random_layer(&AttentionConfig::new(48, 6).with_num_key_value_heads(2), 0.2, &mut random);
    let inputs = [1, 7, 40, 129].map(|tokens| random.tensor(&[1, tokens, 48], DType::F32)).to_vec();
    let shared = Shared { texts: &texts, encoder, vectors, layer, inputs };

    let embeddings: Vec<_> = (0..texts.len()).map(|text| shared.embedding(text, 0)).collect();
    let hits: Vec<_> = (0..texts.len()).map(|text| shared.nearest(text)).collect();
    let outputs: Vec<_> = (0..shared.inputs.len()).map(|input| shared.attention(input, 0)).collect();
    let rounds = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, rounds, enough) = (&shared, &rounds, &enough);
            let (embeddings, hits, outputs) = (&embeddings, &hits, &outputs);
            scope.spawn(move || {
                for round in 0.. {
                    if enough(round) {
                        break;
                    }
                    let text = (thread * 7 + round) % embeddings.len();
                    let input = (thread + round) % outputs.len();
                    assert_eq!(shared.embedding(text, round), embeddings[text], "embedding of text {text}");
                    assert_eq!(shared.nearest(text), hits[text], "hits of text {text}");
                    assert_eq!(shared.attention(input, round + thread), outputs[input], "output of input {input}");
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    rounds.into_inner()
}

#[test]
fn threads_that_share_everything_get_equal_bits() {
    assert_eq!(run(|round| round == 1), THREADS);
}

/// Seconds in `CANDLE_ATTENTION_SOAK_SECONDS`, 600 without it.
#[test]
#[ignore = "takes ten minutes"]
fn threads_that_share_everything_for_ten_minutes() {
    const GROWTH: usize = 32 << 20;
    let seconds = std::env::var("CANDLE_ATTENTION_SOAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(600));
    let start = Instant::now();
    // The first tenth fills caches and the memory of the allocator.
    let (warm, end) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let rounds = run(|_| {
        let now = resident().unwrap_or(0);
        if start.elapsed() > length / 10 {
            let _ = warm.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
        end.store(now, Ordering::Relaxed);
        start.elapsed() > length
    });
    let [warm, end] = [warm, end].map(AtomicUsize::into_inner);
    println!("{rounds} rounds of {THREADS} threads; resident {warm} bytes after a tenth of the time, {end} at the end");
    assert!(end <= warm + GROWTH, "memory grew from {warm} to {end} bytes in {rounds} rounds");
}
