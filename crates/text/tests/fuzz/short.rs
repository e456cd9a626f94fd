//! The short run of every target: the corpus, and mutations of it, the same in every run.
//!
//! `CANDLE_ATTENTION_FUZZ_RUNS` is the number of mutations for each target. A panic is preceded by the input, to be
//! given to `fuzz/run`.

use crate::repository;
use crate::targets;

/// Mutations of each target without the variable: what a few seconds allow.
const RUNS: usize = 300;

/// A mutator with a fixed seed (xorshift64*, Vigna 2016).
struct Mutator(u64);

impl Mutator {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % end.max(1)
    }

    /// A few bytes of `input` changed, inserted, removed, or taken from another input.
    fn mutate(&mut self, input: &[u8], other: &[u8]) -> Vec<u8> {
        const LONGEST: usize = 1024;
        let mut bytes = input.to_vec();
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len() + 1);
            match self.below(5) {
                0 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                2 => {
                    let end = (at + self.below(8)).min(bytes.len());
                    bytes.drain(at..end);
                }
                3 => {
                    let from = self.below(other.len() + 1);
                    let taken = &other[from..(from + self.below(32)).min(other.len())];
                    bytes.splice(at..at, taken.iter().copied());
                }
                _ => {
                    let new: Vec<u8> = (0..self.below(16)).map(|_| self.below(256) as u8).collect();
                    bytes.splice(at..at, new);
                }
            }
        }
        bytes.truncate(LONGEST);
        bytes
    }
}

/// The corpus of a target: one input per line, in hexadecimal digits.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let text = std::fs::read_to_string(repository(&format!("fuzz/corpus/{name}.hex"))).expect("a corpus");
    let byte = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).expect("two digits");
    text.lines().map(|line| line.as_bytes().chunks(2).map(byte).collect()).collect()
}

/// Prints the input if the target panics.
struct Input<'a>(&'a str, &'a [u8]);

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("fuzz/run {} {hex}", self.0);
        }
    }
}

fn run(name: &str) {
    let (_, target) = targets::ALL.iter().find(|(other, _)| *other == name).expect("a target");
    let runs = std::env::var("CANDLE_ATTENTION_FUZZ_RUNS").map_or(RUNS, |runs| runs.parse().expect("a number"));
    let corpus = corpus(name);
    assert!(!corpus.is_empty());
    let mut mutator = Mutator(0x9E37_79B9_7F4A_7C15);
    let mutated = (0..runs).map(|i| {
        let other = mutator.below(corpus.len());
        mutator.mutate(&corpus[i % corpus.len()], &corpus[other])
    });
    for bytes in corpus.iter().cloned().chain(mutated) {
        let input = Input(name, &bytes);
        target(input.1);
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn every_target_is_tested() {
            assert_eq!(targets::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

tests! { open detect inspect encoder tokenizer state page kernels layer }
