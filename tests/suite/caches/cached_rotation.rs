//! Rotary scaling that depends on the length of the sequence, with a cache: what one run gives, or an error.

use candle_attention::checkpoint::ModelAttention;
use candle_attention::position::{Rotary, RotaryScaling};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{LAYER, Random, assert_close, attend_ragged, family, family_config, max_diff, random_layer, says};

const CPU: Device = Device::Cpu;

fn options() -> AttentionOptions<'static> {
    AttentionOptions::default()
}

/// A layer of `tests/golden/families.py`, whose original length is 6, with the input and output of the long run.
fn golden(name: &str) -> (ModelAttention, [Tensor; 2]) {
    let checkpoint = family(name);
    let json = family_config(&checkpoint);
    let model = checkpoint.attention_with("model.layers.0.self_attn", &json, DType::F32, &CPU).unwrap();
    let golden = ["input", "output"].map(|part| checkpoint.tensor(&format!("golden.long.{part}"), &CPU).unwrap());
    (model, golden)
}

fn step(
    layer: &MultiHeadAttention,
    xs: &Tensor,
    (start, len): (usize, usize),
    cache: &mut KvCache,
) -> candle_attention::Result<Tensor> {
    let xs = xs.narrow(1, start, len).unwrap();
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    layer.attend_with(&inputs.with_cache(cache), &options()).map(|attended| attended.output)
}

/// A call across the boundary fails, changes nothing, and after a reset the result is that of transformers.
#[test]
fn the_boundary_is_an_error_that_says_to_begin_anew() {
    for (name, scheme) in [("phi3_longrope", "longrope"), ("llama_dynamic", "dynamic")] {
        let (model, [xs, want]) = golden(name);
        let tokens = xs.dim(1).unwrap();
        for first in [1, 4, 6] {
            let mut cache = KvCache::growing();
            step(&model.layer, &xs, (0, first), &mut cache).unwrap();
            let failed = step(&model.layer, &xs, (first, 7 - first), &mut cache);
            let Err(Error::CachedRotation { sequence: 0, cached, length: 7, .. }) = failed else {
                panic!("{failed:?}")
            };
            assert_eq!((cached, cache.lengths()), (first, vec![first; 2]));
            says(failed, &["a length of 7", scheme, "reset the cache and run all tokens in one call"]);
            // Up to the boundary it goes on.
            if first < 6 {
                step(&model.layer, &xs, (first, 6 - first), &mut cache).unwrap();
            }
            cache.reset();
            let got = step(&model.layer, &xs, (0, tokens), &mut cache).unwrap();
            assert_close(name, &got, &want, LAYER);
        }
    }
}

/// Beyond its boundary LongRoPE does not change any more: chunks are what one run gives.
#[test]
fn longrope_continues_beyond_the_boundary() {
    let (model, [xs, want]) = golden("phi3_longrope");
    let mut cache = KvCache::fixed(9);
    for (start, len) in [(0, 7), (7, 1), (8, 1)] {
        let got = step(&model.layer, &xs, (start, len), &mut cache).unwrap();
        assert_close("long", &got, &want.narrow(1, start, len).unwrap(), LAYER);
    }
    // A shorter sequence would be rotated by the short factors again.
    cache.truncate(5).unwrap();
    let failed = step(&model.layer, &xs, (5, 1), &mut cache);
    assert!(matches!(failed, Err(Error::CachedRotation { rotated_for: 9, length: 6, .. })), "{failed:?}");
    // A call without tokens of this sequence leaves its keys as they are.
    let none = AttentionInputs::self_attention(&xs, AttentionMask::full());
    model.layer.attend_with(&none.with_cache_lengths(&mut cache, &[0, 0]), &options()).unwrap();
    let failed = step(&model.layer, &xs, (5, 1), &mut cache);
    assert!(matches!(failed, Err(Error::CachedRotation { rotated_for: 9, length: 6, .. })), "{failed:?}");
    step(&model.layer, &xs, (5, 2), &mut cache).unwrap();
    // A cache without tokens begins anew.
    cache.truncate(0).unwrap();
    step(&model.layer, &xs, (0, 2), &mut cache).unwrap();
}

/// Dynamic scaling changes with every token beyond the boundary.
#[test]
fn dynamic_scaling_runs_all_tokens_beyond_the_boundary() {
    let (model, [xs, want]) = golden("llama_dynamic");
    let mut cache = KvCache::growing();
    step(&model.layer, &xs, (0, 9), &mut cache).unwrap();
    assert!(matches!(step(&model.layer, &xs, (9, 1), &mut cache), Err(Error::CachedRotation { .. })));
    cache.reset();
    let got = step(&model.layer, &xs, (0, 10), &mut cache).unwrap();
    assert_close("dynamic", &got, &want, LAYER);
}

fn scaled(random: &mut Random, scaling: RotaryScaling) -> [MultiHeadAttention; 2] {
    let config = AttentionConfig::new(24, 4).with_position(Rotary::default().with_theta(50.0).with_scaling(scaling));
    let fixed = random_layer(&config, 0.4, random);
    let map = VarMap::new();
    let trained = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU)).unwrap();
    [fixed, trained]
}

/// The length is that of each sequence: other rows, padding and the backend do not change it.
#[test]
fn each_sequence_is_rotated_for_its_own_length() {
    let mut random = Random::new(84);
    let longrope = RotaryScaling::LongRope {
        short_factor: vec![1.0, 1.5, 2.0],
        long_factor: vec![3.0, 2.0, 6.0],
        original_max_position_embeddings: 6,
        attention_factor: 1.2,
    };
    let dynamic = RotaryScaling::Dynamic { factor: 3.0, original_max_position_embeddings: 6 };
    let lengths = [9, 5, 7];
    for scaling in [longrope, dynamic] {
        // Fixed weights run without padding, variables with it.
        for layer in scaled(&mut random, scaling) {
            let xs = random.tensor(&[3, 9, 24], DType::F32);
            let row = |t: &Tensor, i: usize| t.narrow(0, i, 1).unwrap().narrow(1, 0, lengths[i]).unwrap();
            let causal = AttentionMask::causal();
            let padded = causal.clone().and(AttentionMask::padding(&lengths));
            let together = layer.attend(&xs, &xs, &xs, &padded).unwrap();
            let mut cache = KvCache::growing();
            let inputs = AttentionInputs::self_attention(&xs, &causal);
            let cached =
                layer.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options()).unwrap().output;
            let flat = (0..3).map(|i| row(&xs, i).squeeze(0).unwrap()).collect::<Vec<_>>();
            let ragged = attend_ragged(&layer, &Tensor::cat(&flat, 0).unwrap(), &lengths, &causal).unwrap();
            let mut start = 0;
            for (i, length) in lengths.into_iter().enumerate() {
                let alone = row(&xs, i);
                let want = layer.attend(&alone, &alone, &alone, &causal).unwrap();
                let of_ragged = ragged.narrow(0, start, length).unwrap().unsqueeze(0).unwrap();
                start += length;
                for (what, got) in [("padded", row(&together, i)), ("cached", row(&cached, i)), ("ragged", of_ragged)] {
                    assert_close(&format!("{what} {i}"), &got, &want, 2e-6);
                }
            }
            // Row 1 crosses the boundary, row 0 gets no tokens and may stay where it is.
            let chunk = xs.narrow(1, 0, 2).unwrap();
            let inputs = AttentionInputs::self_attention(&chunk, &causal);
            let failed = layer.attend_with(&inputs.with_cache_lengths(&mut cache, &[0, 2, 0]), &options());
            assert!(
                matches!(failed, Err(Error::CachedRotation { sequence: 1, cached: 5, length: 7, .. })),
                "{failed:?}"
            );
            let stays =
                layer.attend_with(&inputs.with_cache_lengths(&mut cache, &[0, 1, 0]), &options()).unwrap().output;
            let six = Tensor::cat(&[row(&xs, 1), chunk.narrow(0, 1, 1).unwrap().narrow(1, 0, 1).unwrap()], 1).unwrap();
            let want = layer.attend(&six, &six, &six, &causal).unwrap().narrow(1, 5, 1).unwrap();
            assert_close("row 1", &stays.narrow(0, 1, 1).unwrap().narrow(1, 0, 1).unwrap(), &want, 2e-6);
            assert!(max_diff(&want, &want.zeros_like().unwrap()) > 1e-3);
        }
    }
}
