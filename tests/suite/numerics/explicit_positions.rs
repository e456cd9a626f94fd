//! Positions that a call gives its tokens: packed rows, offsets, M-RoPE, with a cache and in ragged batches.

use candle_attention::position::{Alibi, Rotary, RotaryScaling};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, HeadNorm, KvCache, MultiHeadAttention,
    NormKind, NormOver, Position, ProjectionBias,
};
use candle_core::{DType, Device, Tensor};

use crate::common::{Golden, LAYER, Random, assert_close, family, family_config, max_diff, random_layer, says};

const CPU: Device = Device::Cpu;

/// A layer of `tests/golden/explicit_positions.py`, its input, positions, mask and output.
fn golden(case: &str) -> (MultiHeadAttention, [Tensor; 3], AttentionMask) {
    let golden = Golden::open("explicit_positions.safetensors");
    let rotary = Rotary::default().with_theta(100.0);
    let qkv = |biased| ProjectionBias::NONE.with_q(biased).with_k(biased).with_v(biased);
    let config = AttentionConfig::new(36, 3).with_num_key_value_heads(1);
    let config = match case {
        "qwen2_vl" => config.with_position(rotary.with_mrope_section([1, 2, 3])).with_bias(qkv(true)),
        "qwen3_vl" => config
            .with_position(rotary.with_mrope_section([3, 2, 1]).with_mrope_interleaved(true))
            .with_qk_norm(HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6))
            .with_bias(qkv(false)),
        _ => config.with_position(rotary).with_bias(qkv(false)),
    };
    let layer = MultiHeadAttention::load(&config, golden.0.at(&format!("{case}.layer"), DType::F32, &CPU)).unwrap();
    let mut mask = AttentionMask::causal();
    if let Some(segments) = golden.try_get(&format!("{case}.segments")) {
        mask = mask.and(AttentionMask::segments(&segments, &segments).unwrap());
    }
    (layer, ["input", "positions", "output"].map(|part| golden.get(&format!("{case}.{part}"))), mask)
}

fn options(positions: &Tensor) -> AttentionOptions<'_> {
    AttentionOptions::default().with_positions(positions)
}

/// The last dimension is the tokens.
fn tokens(positions: &Tensor, start: usize, len: usize) -> Tensor {
    positions.narrow(positions.rank() - 1, start, len).unwrap()
}

#[test]
fn given_positions_equal_transformers() {
    for case in ["llama", "qwen2_vl", "qwen3_vl"] {
        let (layer, [xs, positions, want], mask) = golden(case);
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        for backend in [None, Some(Backend::Eager)] {
            let got = layer.attend_with(&inputs, &options(&positions).with_backend(backend)).unwrap().output;
            println!("{case}: output differs by at most {:e}", max_diff(&got, &want));
            assert_close(case, &got, &want, LAYER);
        }
        let by_index = layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
        assert!(max_diff(&by_index, &want) > 1e-2, "{case}");
        // The queries are the last of the tokens. Segments are those of the queries.
        if case == "llama" {
            continue;
        }
        let last = xs.narrow(1, 5, 4).unwrap();
        let inputs = AttentionInputs::cross_attention(&last, &xs, &mask);
        let got = layer.attend_with(&inputs, &options(&positions)).unwrap().output;
        assert_close(case, &got, &want.narrow(1, 5, 4).unwrap(), LAYER);
        // In chunks, each with the positions of its tokens.
        let mut cache = KvCache::growing();
        for (start, len) in [(0, 4), (4, 1), (5, 4)] {
            let (xs, positions) = (xs.narrow(1, start, len).unwrap(), tokens(&positions, start, len));
            let inputs = AttentionInputs::self_attention(&xs, &mask);
            let got = layer.attend_with(&inputs.with_cache(&mut cache), &options(&positions)).unwrap().output;
            assert_close(&format!("{case} in chunks"), &got, &want.narrow(1, start, len).unwrap(), LAYER);
        }
    }
}

/// A configuration with `mrope_section` gives a layer that takes three positions per token.
#[test]
fn sections_are_read_from_a_configuration() {
    for (name, alternating) in [("qwen2_vl", false), ("qwen3_vl", true)] {
        let checkpoint = family(name);
        let json = family_config(&checkpoint);
        let model = checkpoint.attention_with("layers.0.self_attn", &json, DType::F32, &CPU).unwrap();
        let Position::Rotary(rotary) = &model.layer.config().position else { panic!("{name}") };
        assert_eq!((rotary.mrope_section, rotary.mrope_interleaved), (Some([2, 1, 1]), alternating), "{name}");
    }
}

/// After an image the text continues behind its largest position, as with `rope_deltas` of transformers.
#[test]
fn a_cache_continues_after_the_largest_position() {
    let (layer, [xs, positions, want], mask) = golden("qwen2_vl");
    let mut cache = KvCache::growing();
    let step = |start: usize, len: usize, positions: Option<&Tensor>, cache: &mut KvCache| {
        let (xs, mut options) = (xs.narrow(1, start, len).unwrap(), AttentionOptions::default());
        options.positions = positions;
        let inputs = AttentionInputs::self_attention(&xs, &mask);
        layer.attend_with(&inputs.with_cache(cache), &options).unwrap().output
    };
    // From token 6 on all three positions of the golden are those of text.
    step(0, 7, Some(&tokens(&positions, 0, 7)), &mut cache);
    assert_close("text", &step(7, 2, None, &mut cache), &want.narrow(1, 7, 2).unwrap(), LAYER);
    // Rejected tokens take their positions with them.
    cache.truncate(7).unwrap();
    cache.select_sequences(&[0, 1]).unwrap();
    assert_close("again", &step(7, 2, None, &mut cache), &want.narrow(1, 7, 2).unwrap(), LAYER);
}

/// Rows of different offsets and lengths in one batch, and the same as a ragged batch.
#[test]
fn ragged_rows_have_their_own_positions() {
    let (layer, [xs, positions, want], _) = golden("qwen3_vl");
    let causal = AttentionMask::causal();
    let lengths = [9, 6];
    let row = |t: &Tensor, row: usize| t.narrow(0, row, 1).unwrap().narrow(1, 0, lengths[row]).unwrap();
    let flat = |t: &Tensor| Tensor::cat(&[row(t, 0), row(t, 1)], 1).unwrap().squeeze(0).unwrap();
    let of_row = |i: usize| positions.narrow(1, i, 1).unwrap().narrow(2, 0, lengths[i]).unwrap().squeeze(1).unwrap();
    let given = Tensor::cat(&[of_row(0), of_row(1)], 1).unwrap(); // (3, tokens)
    let got =
        layer.attend_with(&AttentionInputs::ragged(&flat(&xs), &lengths, &causal), &options(&given)).unwrap().output;
    assert_close("ragged", &got, &flat(&want), LAYER);
    let short = given.narrow(1, 0, 14).unwrap();
    let failed = layer.attend_with(&AttentionInputs::ragged(&flat(&xs), &lengths, &causal), &options(&short));
    says(failed, &["positions has shape [3, 14]", "[15] or [3, 15]"]);
    // With a cache, where padding has positions that nobody reads.
    let mut cache = KvCache::growing();
    let inputs = AttentionInputs::self_attention(&xs, &causal);
    let got = layer.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options(&positions)).unwrap().output;
    for i in 0..2 {
        assert_close("cached", &row(&got, i), &row(&want, i), LAYER);
    }
}

#[test]
fn text_needs_no_positions() {
    let mut random = Random::new(81);
    let plain = Rotary::default().with_theta(50.0);
    let sections = plain.clone().with_mrope_section([2, 1, 0]);
    let config = |rotary: &Rotary| AttentionConfig::new(24, 4).with_position(rotary.clone());
    let layer = random_layer(&config(&plain), 0.4, &mut random);
    let multimodal = MultiHeadAttention::from_weights(&config(&sections), layer.weights().unwrap()).unwrap();
    let xs = random.tensor(&[2, 70, 24], DType::F32);
    let causal = AttentionMask::causal();
    let want = layer.attend(&xs, &xs, &xs, &causal).unwrap();
    assert_eq!(max_diff(&multimodal.attend(&xs, &xs, &xs, &causal).unwrap(), &want), 0.0);
    // Given or not, in every shape and integer dtype.
    for dtype in [DType::U32, DType::I64, DType::U8] {
        for shape in [&[70][..], &[1, 70], &[2, 70], &[3, 1, 70], &[3, 2, 70]] {
            let positions = Tensor::arange(0u32, 70, &CPU).unwrap().broadcast_as(shape).unwrap();
            let positions = positions.to_dtype(dtype).unwrap();
            let inputs = AttentionInputs::self_attention(&xs, &causal);
            let got = multimodal.attend_with(&inputs, &options(&positions)).unwrap().output;
            assert_eq!(max_diff(&got, &want), 0.0, "{shape:?}");
        }
    }
    // A layer without positions, as some layers of SmolLM3 or Cohere 2, is the same with and without them.
    let layer = random_layer(&AttentionConfig::new(24, 4), 0.4, &mut random);
    let positions = Tensor::arange(7u32, 77, &CPU).unwrap();
    let inputs = AttentionInputs::self_attention(&xs, &causal);
    let got = layer.attend_with(&inputs, &options(&positions)).unwrap().output;
    assert_eq!(max_diff(&got, &layer.attend(&xs, &xs, &xs, &causal).unwrap()), 0.0);
}

/// The length of a sequence is one more than its largest position: LongRoPE takes its long factors.
#[test]
fn given_positions_decide_the_length() {
    let mut random = Random::new(82);
    let rotary = |short: f64| {
        let scaling = RotaryScaling::LongRope {
            short_factor: vec![short; 3],
            long_factor: vec![3.0; 3],
            original_max_position_embeddings: 8,
            attention_factor: 1.1,
        };
        AttentionConfig::new(24, 4).with_position(Rotary::default().with_theta(50.0).with_scaling(scaling))
    };
    let layer = random_layer(&rotary(1.0), 0.4, &mut random);
    let long = MultiHeadAttention::from_weights(&rotary(3.0), layer.weights().unwrap()).unwrap();
    let xs = random.tensor(&[2, 4, 24], DType::F32);
    let causal = AttentionMask::causal();
    let inputs = AttentionInputs::self_attention(&xs, &causal);
    let run = |layer: &MultiHeadAttention, positions: &Tensor| {
        layer.attend_with(&inputs, &options(positions)).unwrap().output
    };
    let rows = Tensor::new(&[[4u32, 5, 6, 7], [5, 6, 7, 8]], &CPU).unwrap();
    let (got, all_long) = (run(&layer, &rows), run(&long, &rows));
    assert_eq!(max_diff(&got.get(1).unwrap(), &all_long.get(1).unwrap()), 0.0);
    assert!(max_diff(&got.get(0).unwrap(), &all_long.get(0).unwrap()) > 1e-3);
}

#[test]
fn errors_name_the_positions() {
    let mut random = Random::new(83);
    let base = || AttentionConfig::new(24, 4);
    let layer = random_layer(&base().with_position(Rotary::default()), 0.4, &mut random);
    let xs = random.tensor(&[2, 5, 24], DType::F32);
    let causal = AttentionMask::causal();
    let inputs = AttentionInputs::self_attention(&xs, &causal);
    let call = |layer: &MultiHeadAttention, positions: &Tensor| layer.attend_with(&inputs, &options(positions));
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::I64, &CPU).unwrap();
    for dims in [&[4][..], &[3, 5], &[2, 4], &[1, 1, 1, 5], &[3, 4, 5]] {
        says(call(&layer, &zeros(dims)), &["positions has shape", "[5], [2, 5] or [3, 2, 5]"]);
    }
    says(call(&layer, &zeros(&[3, 2, 5])), &["the number of positions is 3 per token", "rotary"]);
    says(call(&layer, &zeros(&[5]).to_dtype(DType::F32).unwrap()), &["positions has dtype f32", "integer"]);
    says(call(&layer, &(zeros(&[5]) - 1.0).unwrap()), &["a position is -1", "from 0"]);
    let multimodal =
        random_layer(&base().with_position(Rotary::default().with_mrope_section([1, 1, 1])), 0.4, &mut random);
    says(call(&multimodal, &zeros(&[2, 2, 5])), &["the number of positions is 2 per token"]);
    let alibi = random_layer(&base().with_position(Alibi::default()), 0.4, &mut random);
    says(call(&alibi, &zeros(&[5])), &["positions = given by the call", "alibi"]);
    let sections = Position::Rotary(Rotary::default().with_mrope_section([1, 1, 2]));
    says(base().with_position(sections).validate(), &["mrope_section = [1, 1, 2]", "the sum 3"]);
    let mut cache = KvCache::growing();
    says(layer.attend_with(&inputs.with_cache(&mut cache), &options(&zeros(&[4]))), &["positions has shape [4]"]);
    assert!(cache.is_empty());
}

/// A batch without sequences has positions without rows.
#[test]
fn an_empty_batch_takes_positions() {
    let config = AttentionConfig::new(24, 2).with_position(Rotary::default());
    let layer = random_layer(&config, 0.4, &mut Random::new(97));
    let xs = Tensor::zeros((0, 3, 24), DType::F32, &CPU).unwrap();
    for rows in [0, 1] {
        let positions = Tensor::zeros((rows, 3), DType::U32, &CPU).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
        let attended = layer.attend_with(&inputs, &options(&positions)).unwrap();
        assert_eq!(attended.output.dims(), [0, 3, 24]);
    }
}
