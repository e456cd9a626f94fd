//! The cases of the test matrix: the values of each axis, which may be combined, and which combinations run.

use candle_core::DType;

use crate::covering;
use crate::inputs::Layout;
use crate::masks::Kind;

pub const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// Query heads and key-value heads.
const HEADS: [(usize, usize); 5] = [(4, 4), (4, 2), (5, 1), (1, 1), (6, 3)];
/// Head dimension of queries and keys, and of values.
const HEAD_DIMS: [(usize, usize); 14] = [
    (64, 64),
    (32, 32),
    (40, 40),
    (48, 48),
    (72, 72),
    (80, 80),
    (96, 96),
    (128, 128),
    (256, 256),
    (20, 20),
    (64, 32),
    (32, 80),
    (7, 5),
    (128, 1),
];
/// Queries and keys.
const LENGTHS: [(usize, usize); 16] = [
    (7, 7),
    (1, 1),
    (64, 64),
    (65, 65),
    (333, 333),
    (1, 7),
    (1, 64),
    (1, 333),
    (7, 65),
    (64, 65),
    (65, 333),
    (7, 1),
    (65, 64),
    (64, 7),
    (333, 65),
    (31, 96),
];
const BATCHES: [usize; 3] = [2, 1, 3];
const SCORES: [Score; 5] = [Score::Default, Score::Scaled, Score::Softcap, Score::Sinks, Score::SoftcapAndSinks];
const APPENDED: [usize; 3] = [0, 1, 2];

/// How a score is computed before the mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Score {
    Default,
    Scaled,
    Softcap,
    Sinks,
    SoftcapAndSinks,
}

impl Score {
    pub fn scale(self) -> Option<f64> {
        (self != Self::Default).then_some(0.17)
    }
    pub fn softcap(self) -> Option<f64> {
        matches!(self, Self::Softcap | Self::SoftcapAndSinks).then_some(1.3)
    }
    pub fn has_sinks(self) -> bool {
        matches!(self, Self::Sinks | Self::SoftcapAndSinks)
    }
}

/// One call. `number` seeds everything random in it.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub number: usize,
    pub dtype: DType,
    pub mask: Kind,
    /// Whether the tensors of the mask are on the device of q, k and v, or on the CPU.
    pub mask_on_device: bool,
    pub layout: Layout,
    pub score: Score,
    pub sizes: Sizes,
}

#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub b: usize,
    pub s_q: usize,
    pub s_kv: usize,
    pub appended: usize,
    pub h: usize,
    pub h_kv: usize,
    pub d: usize,
    pub d_v: usize,
}

/// The number of values of each axis, in the order in which [`case`] reads them.
fn axes() -> [usize; 9] {
    [
        Kind::ALL.len(),
        LENGTHS.len(),
        HEAD_DIMS.len(),
        HEADS.len(),
        Layout::ALL.len(),
        SCORES.len(),
        DTYPES.len() * BATCHES.len(),
        APPENDED.len(),
        2,
    ]
}

fn case(number: usize, values: &[usize]) -> Case {
    let (h, h_kv) = HEADS[values[3]];
    let (s_q, s_kv) = LENGTHS[values[1]];
    let (d, d_v) = HEAD_DIMS[values[2]];
    let b = BATCHES[values[6] / DTYPES.len()];
    Case {
        number,
        dtype: DTYPES[values[6] % DTYPES.len()],
        mask: Kind::ALL[values[0]],
        mask_on_device: values[8] == 0,
        layout: Layout::ALL[values[4]],
        score: SCORES[values[5]],
        sizes: Sizes { b, s_q, s_kv, appended: APPENDED[values[7]], h, h_kv, d, d_v },
    }
}

/// Padding needs as many queries as keys.
fn fits(a: (usize, usize), b: (usize, usize)) -> bool {
    match (a, b) {
        ((0, kind), (1, lengths)) => {
            !Kind::ALL[kind].needs_self_attention() || LENGTHS[lengths].0 == LENGTHS[lengths].1
        }
        _ => true,
    }
}

/// The cases to run, reduced by the environment variables that `main.rs` documents.
pub fn all() -> Vec<Case> {
    let number = |name: &str| {
        let value = std::env::var(name).ok()?;
        Some(value.parse::<usize>().unwrap_or_else(|_| panic!("{name} is {value}, not a number")))
    };
    let every = number("CANDLE_ATTENTION_THIN").unwrap_or(1).max(1);
    let (first, only) = (number("CANDLE_ATTENTION_FIRST").unwrap_or(0), number("CANDLE_ATTENTION_CASE"));
    let cases = covering::cases(&axes(), &fits);
    let cases = cases.iter().enumerate().map(|(i, values)| case(i, values));
    cases.filter(|case| only.map_or(case.number % every == first, |only| case.number == only)).collect()
}

#[test]
fn the_cases_contain_every_pair() {
    let mut missing = covering::pairs(&axes(), &fits);
    let all = missing.len();
    let cases = covering::cases(&axes(), &fits);
    for case in &cases {
        for pair in covering::pairs_of(case) {
            assert!(fits(pair.0, pair.1), "{case:?} combines values that do not fit");
            missing.remove(&pair);
        }
    }
    println!("{} cases contain {all} pairs", cases.len());
    assert!(missing.is_empty(), "{missing:?}");
    // The two longest axes alone need that many cases; many more would be wasteful.
    assert!(cases.len() < Kind::ALL.len() * LENGTHS.len() * 5 / 4, "{} cases", cases.len());
}
