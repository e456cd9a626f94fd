//! Random programs over caches: chunks of unequal length, truncation, selection of sequences and tokens, sequences that
//! join, given positions, against each sequence in one run.

use candle_attention::position::{Alibi, Rotary, RotaryScaling, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, KvCache, MultiHeadAttention, Position,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, random_layer};

const CPU: Device = Device::Cpu;
const HIDDEN: usize = 24;

/// What a sequence has seen: its tokens and where they stand.
#[derive(Clone)]
struct Sequence {
    tokens: Vec<Tensor>,
    positions: Vec<u32>,
}

/// A number below `end`.
fn below(random: &mut Random, end: usize) -> usize {
    (random.uniform() * end as f64) as usize
}

fn positions() -> [Position; 5] {
    let rotary = || Rotary::default().with_theta(50.0);
    let scaling = RotaryScaling::LongRope {
        short_factor: vec![1.0, 1.5, 2.0],
        long_factor: vec![3.0, 2.0, 6.0],
        original_max_position_embeddings: 9,
        attention_factor: 1.2,
    };
    [
        Position::None,
        rotary().into(),
        rotary().with_scaling(scaling).into(),
        Alibi::default().into(),
        T5RelativeBias::new(8, 12, false).into(),
    ]
}

/// The output of the last tokens of a sequence in one run, with an `int8` cache or without any.
fn in_one_run(layer: &MultiHeadAttention, of: &Sequence, new: usize, mask: &AttentionMask, int8: bool) -> Tensor {
    let xs = Tensor::cat(&of.tokens, 0).unwrap().unsqueeze(0).unwrap();
    let positions = Tensor::new(of.positions.as_slice(), &CPU).unwrap();
    let mut options = AttentionOptions::default();
    if matches!(layer.config().position, Position::Rotary(_)) {
        options = options.with_positions(&positions);
    }
    let (mut inputs, mut cache) = (AttentionInputs::self_attention(&xs, mask), KvCache::growing().with_int8());
    if int8 {
        inputs = inputs.with_cache(&mut cache);
    }
    let output = layer.attend_with(&inputs, &options).unwrap().output;
    output.narrow(1, of.tokens.len() - new, new).unwrap()
}

fn program(position: Position, seed: u64, int8: bool) {
    let mut random = Random::new(seed);
    let config = AttentionConfig::new(HIDDEN, 4).with_num_key_value_heads(2).with_position(position.clone());
    let layer = if !int8 && below(&mut random, 3) == 0 {
        MultiHeadAttention::new(&config, VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU)).unwrap()
    } else {
        random_layer(&config, 0.4, &mut random)
    };
    let window = 3 + below(&mut random, 4);
    let windowed = AttentionMask::window(Some(window - 1), Some(0));
    let kind = below(&mut random, 3);
    let empty = || {
        let cache = [KvCache::growing(), KvCache::fixed(48), KvCache::rotating(window)].into_iter().nth(kind).unwrap();
        if int8 { cache.with_int8() } else { cache }
    };
    let (mut cache, mask) = (empty(), if kind == 0 { AttentionMask::causal() } else { windowed });
    let rotary = matches!(position, Position::Rotary(_));
    let none = Sequence { tokens: Vec::new(), positions: Vec::new() };
    let mut rows = vec![none.clone(); 1 + below(&mut random, 3)];
    for step in 0..12 {
        let what = format!("{position}, program {seed}, step {step}");
        if step > 0 && below(&mut random, 4) == 0 {
            let lengths: Vec<usize> =
                rows.iter().map(|row| row.tokens.len().saturating_sub(below(&mut random, 4))).collect();
            let before = cache.lengths();
            if cache.truncate_sequences(&lengths).is_ok() {
                for (row, &length) in rows.iter_mut().zip(&lengths) {
                    row.tokens.truncate(length);
                    row.positions.truncate(length);
                }
            } else {
                assert!(matches!(cache.capacity(), Some(tokens) if tokens == window), "{what}");
                assert_eq!(cache.lengths(), before, "{what}");
            }
        }
        if step > 0 && below(&mut random, 4) == 0 {
            let chosen: Vec<usize> = (0..1 + below(&mut random, 4)).map(|_| below(&mut random, rows.len())).collect();
            cache.select_sequences(&chosen).unwrap();
            rows = chosen.iter().map(|&row| rows[row].clone()).collect();
        }
        if step > 0 && below(&mut random, 4) == 0 {
            let i = below(&mut random, rows.len());
            let row = &mut rows[i];
            let kept = cache.retained_range(i).unwrap().filter(|_| below(&mut random, 4) > 0).collect::<Vec<_>>();
            let dropped = cache.retained_range(i).unwrap().start;
            if cache.select_tokens(i, &kept).is_ok() {
                let kept = || (0..dropped).chain(kept.iter().copied());
                row.tokens = kept().map(|token| row.tokens[token].clone()).collect();
                row.positions = kept().map(|token| row.positions[token]).collect();
            } else {
                assert!(dropped > 0, "{what}");
            }
        }
        if below(&mut random, 5) == 0 && rows.len() < 4 {
            let s = 1 + below(&mut random, 6);
            let chunk = random.tensor(&[1, s, HIDDEN], DType::F32);
            let mut own = empty();
            let inputs = AttentionInputs::self_attention(&chunk, &mask);
            layer.attend_with(&inputs.with_cache(&mut own), &AttentionOptions::default()).unwrap();
            if step == 0 {
                rows.clear();
            }
            cache.append_sequences(&own).unwrap();
            let tokens = (0..s).map(|token| chunk.get(0).unwrap().narrow(0, token, 1).unwrap()).collect();
            rows.push(Sequence { tokens, positions: (0..s as u32).collect() });
        }
        let s = 1 + below(&mut random, 4);
        let lengths: Vec<usize> = rows.iter().map(|_| below(&mut random, s + 1)).collect();
        let lengths = if below(&mut random, 2) == 0 { vec![s; rows.len()] } else { lengths };
        let chunk = random.tensor(&[rows.len(), s, HIDDEN], DType::F32);
        let given = rotary && below(&mut random, 3) == 0;
        let mut at = Vec::new();
        let before = rows.clone();
        for (i, row) in rows.iter_mut().enumerate() {
            let mut next = row.positions.iter().max().map_or(0, |last| last + 1);
            for token in 0..s {
                let here = if given { below(&mut random, 14) as u32 } else { next };
                at.push(here);
                if token < lengths[i] {
                    row.tokens.push(chunk.get(i).unwrap().narrow(0, token, 1).unwrap());
                    row.positions.push(here);
                    next = next.max(here + 1);
                }
            }
        }
        let at = Tensor::from_vec(at, (rows.len(), s), &CPU).unwrap();
        let mut options = AttentionOptions::default();
        if given {
            options = options.with_positions(&at);
        }
        let inputs = AttentionInputs::self_attention(&chunk, &mask);
        let held = cache.lengths();
        let output = match layer.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options) {
            Ok(attended) => attended.output,
            // Only LongRoPE has a boundary here.
            Err(Error::CachedRotation { length, .. }) if position.to_string().contains("longrope") => {
                assert!(length > 0);
                assert_eq!(cache.lengths(), held, "{what}");
                rows = before;
                continue;
            }
            Err(error) => panic!("{what}: {error}"),
        };
        assert_eq!(cache.lengths(), rows.iter().map(|row| row.tokens.len()).collect::<Vec<_>>(), "{what}");
        for (i, row) in rows.iter().enumerate().filter(|(i, _)| lengths[*i] > 0) {
            let got = output.narrow(0, i, 1).unwrap().narrow(1, 0, lengths[i]).unwrap();
            assert_close(&format!("{what}, row {i}"), &got, &in_one_run(&layer, row, lengths[i], &mask, int8), 3e-6);
        }
    }
}

#[test]
fn random_programs_give_what_one_run_gives() {
    for (i, position) in positions().into_iter().enumerate() {
        (0..40).for_each(|seed| program(position.clone(), 1000 * i as u64 + seed, false));
    }
}

#[test]
fn random_programs_in_int8_give_what_one_run_in_int8_gives() {
    for (i, position) in positions().into_iter().enumerate() {
        (0..40).for_each(|seed| program(position.clone(), 1000 * i as u64 + seed, true));
    }
}
