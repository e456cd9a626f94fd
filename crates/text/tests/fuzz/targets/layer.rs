//! Layers with any configuration, and programs over their caches with arguments that make no sense among those that do.
//!
//! What a cache gives is what one run over all tokens gives. A call that fails leaves the cache as it was.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use candle_attention::position::{Alibi, Rotary, RotaryScaling, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, Factor, HeadNorm, KeyValueSource,
    KvCache, MultiHeadAttention, NormKind, NormOver, Position, Scoring, Step, Steps,
};
use candle_core::{DType, Tensor};

use crate::common::{Random, numbers, random_layer};
use crate::json::FLOATS;
use crate::masks::{Sizes, mask};
use crate::{message_of, rarely};

const HIDDEN: usize = 12;

/// Layers of every position scheme that a cache can hold, with as many key-value heads as heads and with fewer.
static LAYERS: LazyLock<Vec<MultiHeadAttention>> = LazyLock::new(|| {
    let rotary = || Rotary::default().with_theta(50.0);
    let scaling = RotaryScaling::LongRope {
        short_factor: vec![1.0, 1.5],
        long_factor: vec![3.0, 2.0],
        original_max_position_embeddings: 6,
        attention_factor: 1.2,
    };
    let positions: [Position; 5] = [
        Position::None,
        rotary().into(),
        rotary().with_scaling(scaling).into(),
        Alibi::default().into(),
        T5RelativeBias::new(8, 12, false).into(),
    ];
    let mut random = Random::new(3);
    let heads = |position: Position| [1, 3].map(|h_kv| (position.clone(), h_kv));
    let layer = |(position, h_kv)| {
        let config = AttentionConfig::new(HIDDEN, 3).with_num_key_value_heads(h_kv).with_position(position);
        random_layer(&config, 0.4, &mut random)
    };
    positions.into_iter().flat_map(heads).map(layer).collect()
});

pub fn run(u: &mut Unstructured) -> Result<()> {
    let mut random = Random::new(u.arbitrary()?);
    match u.int_in_range(0..=7)? {
        0 => configuration(u, &mut random),
        1 => ragged(u, &mut random),
        2 => masked(u, &mut random),
        _ => program(u, &mut random),
    }
}

/// A size that is mostly small.
fn size(u: &mut Unstructured) -> Result<usize> {
    match rarely(u, 12)? {
        true => Ok(*u.choose(&[0, 1 << 24, (1 << 24) + 1, 1 << 32, 1 << 61, usize::MAX])?),
        false => u.int_in_range(1..=12),
    }
}

/// A step between projection and scores.
fn step(u: &mut Unstructured) -> Result<Step> {
    Ok(match u.int_in_range(0..=4)? {
        0 => Step::Rotate,
        1 => {
            let over = *u.choose(&[NormOver::Head, NormOver::AllHeads])?;
            Step::Norm(HeadNorm::new(NormKind::Rms, over, *u.choose(FLOATS)?).with_weighted(u.arbitrary()?))
        }
        2 => Step::Factor(Factor::Constant(*u.choose(FLOATS)?)),
        3 => Step::Factor(Factor::Softplus { scale: *u.choose(FLOATS)? }),
        _ => Step::Factor(Factor::LogPosition { beta: *u.choose(FLOATS)?, length: size(u)?, offset: size(u)? }),
    })
}

/// A configuration that is valid is one of a layer that runs.
fn configuration(u: &mut Unstructured, random: &mut Random) -> Result<()> {
    let hidden = size(u)?;
    let mut config = AttentionConfig::new(hidden, size(u)?);
    let set = |u: &mut Unstructured, field: &mut Option<usize>| -> Result<()> {
        if rarely(u, 4)? {
            *field = Some(size(u)?);
        }
        Ok(())
    };
    set(u, &mut config.num_key_value_heads)?;
    set(u, &mut config.head_dim)?;
    set(u, &mut config.value_head_dim)?;
    set(u, &mut config.output_size)?;
    if u.arbitrary()? {
        config.position = match u.int_in_range(0..=2)? {
            0 => {
                let theta = *u.choose(FLOATS)?;
                let scaling = match u.int_in_range(0..=3)? {
                    0 => RotaryScaling::Linear { factor: *u.choose(FLOATS)? },
                    1 => RotaryScaling::Llama3 {
                        factor: *u.choose(FLOATS)?,
                        low_freq_factor: *u.choose(FLOATS)?,
                        high_freq_factor: *u.choose(FLOATS)?,
                        original_max_position_embeddings: size(u)?,
                    },
                    _ => RotaryScaling::LongRope {
                        short_factor: vec![*u.choose(FLOATS)?; u.int_in_range(0..=3)?],
                        long_factor: vec![*u.choose(FLOATS)?; u.int_in_range(0..=3)?],
                        original_max_position_embeddings: size(u)?,
                        attention_factor: *u.choose(FLOATS)?,
                    },
                };
                Rotary::default().with_theta(theta).with_scaling(scaling).into()
            }
            1 => Alibi::default().into(),
            _ => T5RelativeBias::new(size(u)?, size(u)?, u.arbitrary()?).into(),
        };
    }
    if rarely(u, 4)? {
        let kind = *u.choose(&[NormKind::Rms, NormKind::RmsOffset, NormKind::Layer])?;
        let over = *u.choose(&[NormOver::Head, NormOver::AllHeads])?;
        config = config.with_qk_norm(HeadNorm::new(kind, over, *u.choose(FLOATS)?));
    }
    if rarely(u, 4)? {
        let steps = |u: &mut Unstructured| (0..u.int_in_range(0..=3)?).map(|_| step(u)).collect::<Result<Vec<Step>>>();
        config.steps = Steps::default().with_queries(steps(u)?).with_keys(steps(u)?).with_values(steps(u)?);
    }
    if rarely(u, 6)? {
        config.key_value_source =
            *u.choose(&[KeyValueSource::KeysAsValues, KeyValueSource::Shared { layer: Some(usize::MAX) }])?;
    }
    if rarely(u, 4)? {
        config.scale = Some(*u.choose(FLOATS)?);
        config.softcap = Some(*u.choose(FLOATS)?);
        config = config.with_clip_qkv(*u.choose(FLOATS)?);
        config.dropout = *u.choose(FLOATS)?;
    }
    config = config.with_add_bias_kv(rarely(u, 6)?).with_add_zero_attn(rarely(u, 6)?);
    if rarely(u, 6)? {
        config.scoring = Scoring::Additive;
    }
    if rarely(u, 3)? {
        config.mask = AttentionMask::window(Some(size(u)?), Some(size(u)?));
    }
    if let Err(error) = config.validate() {
        message_of(error);
        return Ok(());
    }
    let sizes = [
        config.hidden_size,
        config.num_attention_heads,
        config.resolved_head_dim(),
        config.resolved_value_head_dim(),
        config.resolved_output_size(),
    ];
    let table = match &config.position {
        Position::T5RelativeBias(bias) => bias.num_buckets,
        _ => 0,
    };
    // What is valid and large would only take time.
    if sizes.iter().any(|size| *size > 64) || table > 64 {
        return Ok(());
    }
    let layer = random_layer(&config, 0.4, random);
    let tokens = u.int_in_range(0..=5)?;
    let xs = random.tensor(&[2, tokens, config.resolved_query_size()], DType::F32);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    for with_weights in [false, true] {
        let options = AttentionOptions::default().with_return_attention_weights(with_weights);
        match layer.attend_with(&inputs, &options) {
            Ok(attended) => assert_eq!(attended.output.dims(), [2, tokens, config.resolved_output_size()]),
            Err(error) => drop(message_of(error)),
        }
    }
    Ok(())
}

/// A ragged batch is its sequences alone, bit for bit.
fn ragged(u: &mut Unstructured, random: &mut Random) -> Result<()> {
    let layer = u.choose(&LAYERS)?;
    let lengths = (0..u.int_in_range(0..=4)?).map(|_| u.int_in_range(0..=6)).collect::<Result<Vec<usize>>>()?;
    let tokens = lengths.iter().sum();
    let xs = random.tensor(&[tokens, HIDDEN], DType::F32);
    let mask = match u.int_in_range(0..=2)? {
        0 => AttentionMask::full(),
        1 => AttentionMask::causal(),
        _ => AttentionMask::window(Some(u.int_in_range(0..=3)?), Some(size(u)?)),
    };
    let mut stated = lengths.clone();
    if rarely(u, 6)? {
        let place = u.int_in_range(0..=stated.len())?;
        // Two of them add up to nothing, in a sum that wraps.
        match u.arbitrary()? {
            true => drop(stated.splice(place..place, [1 << 63; 2])),
            false => stated.insert(place, *u.choose(&[1, usize::MAX])?),
        }
        let error = layer.attend_with(&AttentionInputs::ragged(&xs, &stated, &mask), &AttentionOptions::default());
        error.map_err(message_of).expect_err("lengths that do not add up");
        return Ok(());
    }
    let attend = |xs: &Tensor, lengths: &[usize]| {
        let inputs = AttentionInputs::ragged(xs, lengths, &mask);
        layer.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
    };
    let output = attend(&xs, &lengths).expect("a ragged batch");
    assert_eq!(output.dims(), [tokens, HIDDEN]);
    let all = numbers(&output);
    let mut start = 0;
    for length in lengths {
        let own = xs.narrow(0, start, length).expect("a sequence");
        let alone = numbers(&attend(&own, &[length]).expect("a sequence"));
        assert_eq!(all[start * HIDDEN..][..length * HIDDEN], alone, "other bits in a batch");
        start += length;
    }
    Ok(())
}

/// Masks and options that may not fit the call.
fn masked(u: &mut Unstructured, random: &mut Random) -> Result<()> {
    let layer = u.choose(&LAYERS)?;
    let (b, s_q, s_kv) = (u.int_in_range(0..=3)?, u.int_in_range(0..=5)?, u.int_in_range(0..=5)?);
    let of = |u: &mut Unstructured, n: usize| -> Result<usize> {
        if rarely(u, 12)? { u.int_in_range(0..=5) } else { Ok(n) }
    };
    let sizes = Sizes { b: of(u, b)?, h: of(u, 3)?, s_q: of(u, s_q)?, s_kv: of(u, s_kv)? };
    let (mask, _) = mask(u, random, sizes)?;
    let queries = random.tensor(&[b, s_q, HIDDEN], DType::F32);
    let keys = random.tensor(&[of(u, b)?, s_kv, of(u, HIDDEN)?], DType::F32);
    let dims = u.choose(&[&[3][..], &[1], &[2, 3], &[0], &[]])?.to_vec();
    let heads = random.tensor(&dims, DType::F32);
    let positions = random.booleans(&[of(u, b)?, of(u, s_kv)?], 0.5);
    let mut options = AttentionOptions::default().with_return_attention_weights(u.arbitrary()?);
    if rarely(u, 4)? {
        options = options.with_head_mask(&heads);
    }
    if rarely(u, 4)? {
        options = options.with_positions(&positions);
    }
    if rarely(u, 6)? {
        options = options.with_grid([size(u)?, size(u)?]);
    }
    let inputs = AttentionInputs::cross_attention(&queries, &keys, &mask);
    match layer.attend_with(&inputs, &options) {
        Ok(attended) => {
            assert_eq!(attended.output.dims(), [b, s_q, HIDDEN]);
            assert!(numbers(&attended.output).iter().all(|number| number.is_finite()));
        }
        Err(error) => drop(message_of(error)),
    }
    let fits = (sizes.b, sizes.h, sizes.s_q, sizes.s_kv) == (b, 3, s_q, s_kv);
    let own = AttentionInputs::cross_attention(&queries, &queries, &mask);
    if fits && s_q == s_kv {
        layer.attend_with(&own, &AttentionOptions::default()).expect("a call that fits");
    }
    Ok(())
}

/// A sequence: its tokens so far.
type Sequence = Vec<Tensor>;

/// The output of the last tokens of a sequence in one run.
fn in_one_run(layer: &MultiHeadAttention, tokens: &[Tensor], new: usize, mask: &AttentionMask) -> Vec<f64> {
    let xs = Tensor::cat(tokens, 0).and_then(|xs| xs.unsqueeze(0)).expect("tokens");
    let inputs = AttentionInputs::self_attention(&xs, mask);
    let output = layer.attend_with(&inputs, &AttentionOptions::default()).expect("one run").output;
    numbers(&output.narrow(1, tokens.len() - new, new).expect("the last tokens"))
}

fn program(u: &mut Unstructured, random: &mut Random) -> Result<()> {
    let layer = u.choose(&LAYERS)?;
    let window = u.int_in_range(1..=5)?;
    let (mut cache, mask) = match u.int_in_range(0..=4)? {
        0 | 1 => (KvCache::growing(), AttentionMask::causal()),
        2 => (KvCache::fixed(u.int_in_range(0..=20)?), AttentionMask::causal()),
        3 => (KvCache::rotating(window), AttentionMask::window(Some(window - 1), Some(0))),
        _ => {
            let absurd = *u.choose(&[0, 1 << 31, 1 << 44, 1 << 61, usize::MAX - 1, usize::MAX])?;
            let cache = if u.arbitrary()? { KvCache::fixed(absurd) } else { KvCache::rotating(absurd) };
            (cache, AttentionMask::causal())
        }
    };
    let mut rows: Vec<Sequence> = vec![Vec::new(); u.int_in_range(1..=3)?];
    for _ in 0..u.int_in_range(1..=6)? {
        let before = cache.lengths();
        let (retained, capacity) = (cache.retained_len(), cache.capacity());
        match u.int_in_range(0..=7)? {
            0 => {
                let lengths: Vec<usize> = rows
                    .iter()
                    .map(|row| Ok(if rarely(u, 8)? { size(u)? } else { u.int_in_range(0..=row.len())? }))
                    .collect::<Result<_>>()?;
                match cache.truncate_sequences(&lengths) {
                    Ok(()) => rows.iter_mut().zip(&lengths).for_each(|(row, len)| row.truncate(*len)),
                    Err(error) => unchanged(&cache, &before, retained, error),
                }
            }
            1 => {
                let len = size(u)?;
                match cache.truncate(len) {
                    Ok(()) => rows.iter_mut().for_each(|row| row.truncate(len)),
                    Err(error) => unchanged(&cache, &before, retained, error),
                }
            }
            2 => {
                let chosen: Vec<usize> = (0..u.int_in_range(0..=4)?)
                    .map(|_| if rarely(u, 8)? { size(u) } else { u.int_in_range(0..=rows.len() - 1) })
                    .collect::<Result<_>>()?;
                match cache.select_sequences(&chosen) {
                    Ok(()) => rows = chosen.iter().map(|row| rows[*row].clone()).collect(),
                    Err(error) => unchanged(&cache, &before, retained, error),
                }
            }
            3 => {
                let new: Vec<usize> = (0..u.int_in_range(0..=3)?).map(|_| size(u)).collect::<Result<_>>()?;
                let columns = cache.mask_columns(&new);
                let dims = [u.int_in_range(0..=3)?, u.int_in_range(0..=8)?];
                let tokens = random.booleans(&dims, 0.5);
                match cache.select_columns(&tokens, &new) {
                    Ok(cut) => assert_eq!(cut.dims().last(), Some(&columns)),
                    Err(error) => unchanged(&cache, &before, retained, error),
                }
                assert!(cache.retained_range(size(u)?).is_none_or(|tokens| tokens.len() <= retained));
                if rarely(u, 8)? {
                    cache.reset();
                    rows.iter_mut().for_each(Vec::clear);
                }
            }
            _ => {
                let s = u.int_in_range(0..=4)?;
                let b = if rarely(u, 16)? { u.int_in_range(0..=3)? } else { rows.len() };
                let lengths: Vec<usize> = match u.arbitrary()? {
                    true => vec![s; rows.len()],
                    false => (0..rows.len())
                        .map(|_| if rarely(u, 16)? { size(u) } else { u.int_in_range(0..=s) })
                        .collect::<Result<_>>()?,
                };
                let chunk = random.tensor(&[b, s, HIDDEN], DType::F32);
                let inputs = AttentionInputs::self_attention(&chunk, &mask);
                let options = AttentionOptions::default();
                let mut other = cache.try_clone().expect("a copy");
                let attended = layer.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options);
                let output = match attended {
                    Ok(attended) => attended.output,
                    Err(error) => {
                        let fits = b == rows.len() && lengths.iter().all(|length| *length <= s);
                        let known = matches!(error, Error::CacheFull { .. } | Error::CachedRotation { .. });
                        let absurd = capacity.is_some_and(|capacity| capacity == 0 || capacity > 1 << 20);
                        assert!(!fits || known || absurd, "a call that fits: {error}");
                        unchanged(&cache, &before, retained, error);
                        continue;
                    }
                };
                let again = layer
                    .attend_with(&inputs.with_cache_lengths(&mut other, &lengths), &options)
                    .expect("the same call");
                for (i, row) in rows.iter_mut().enumerate().filter(|(i, _)| lengths[*i] > 0) {
                    for token in 0..lengths[i] {
                        let token = chunk.get(i).and_then(|row| row.narrow(0, token, 1)).expect("a token");
                        row.push(token);
                    }
                    let own = |output: &Tensor| {
                        let own = output.narrow(0, i, 1).and_then(|output| output.narrow(1, 0, lengths[i]));
                        numbers(&own.expect("the tokens of a sequence"))
                    };
                    let (got, again) = (own(&output), own(&again.output));
                    assert_eq!(got, again, "a copy of the cache gives something else");
                    // A rotating cache has its own window.
                    let mask = match capacity {
                        Some(window) if window > 1 << 20 => &AttentionMask::causal(),
                        _ => &mask,
                    };
                    let want = in_one_run(layer, row, lengths[i], mask);
                    let close = |(got, want): (&f64, &f64)| (got - want).abs() <= 3e-6 + 3e-6 * want.abs();
                    assert!(got.iter().zip(&want).all(close), "{got:?}, want {want:?}, {}", layer.config().position);
                }
            }
        }
        if !cache.is_empty() {
            assert_eq!(cache.lengths(), rows.iter().map(Vec::len).collect::<Vec<_>>());
        }
    }
    Ok(())
}

/// A call that failed changed nothing.
fn unchanged(cache: &KvCache, lengths: &[usize], retained: usize, error: Error) {
    message_of(error);
    assert_eq!((cache.lengths(), cache.retained_len()), (lengths.to_vec(), retained));
}
