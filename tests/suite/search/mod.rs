//! Search: against brute force in f64, what a cache may and may not do, a process killed while it works.

mod index;
mod program;

/// The largest change of a score by rounding to f16.
const ROUNDED: f64 = 1e-3;

/// Distinct lines, of letters and of words in the vocabulary of the tiny model.
fn lines(count: usize) -> Vec<String> {
    let words = ["cat", "hello", "world", "dog", "the", "a", "sat", "mat", "on", "is"];
    let word = |n: usize| words[n % words.len()];
    (0..count).map(|i| format!("{} {} {} {i:x} {}", word(i), word(i / 7), word(i / 31), word(i * i / 3))).collect()
}
