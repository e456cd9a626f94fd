//! Additive masks in each dtype, with very low numbers, mean the same on every path: against torch
//! (`tests/golden/masks_in_dtypes.py`).

use candle_attention::sdpa::{Backend, SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention, ProjectionBias,
    Result,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

use crate::common::{Golden, assert_close};

/// Each case with its masks and the output of all of them together.
fn cases(golden: &Golden) -> Vec<(String, Vec<Tensor>, Tensor)> {
    let cases = golden.0.names().filter_map(|name| name.strip_suffix(".output"));
    let masks = |case: &str| (0..3).map_while(|i| golden.try_get(&format!("{case}.{i}"))).collect();
    cases.map(|case| (case.to_string(), masks(case), golden.get(&format!("{case}.output")))).collect()
}

fn joined(masks: &[Tensor], construct: impl Fn(&Tensor) -> Result<AttentionMask>) -> AttentionMask {
    masks.iter().fold(AttentionMask::full(), |all, mask| all.and(construct(mask).unwrap()))
}

#[test]
fn very_low_numbers_are_those_of_torch_on_every_backend() {
    let golden = Golden::open("masks_in_dtypes.safetensors");
    let cases = cases(&golden);
    assert!(cases.len() > 40, "{}", cases.len());
    for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-6), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        let [q, k, v] = ["q", "k", "v"].map(|name| golden.get(name).to_dtype(dtype).unwrap());
        for (case, masks, want) in &cases {
            let mask = joined(masks, AttentionMask::additive);
            let forms =
                [mask.clone(), joined(masks, |mask| AttentionMask::additive_pattern(&mask.squeeze(0)?.squeeze(0)?))];
            for mask in &forms {
                let mut options = vec![SdpaOptions::new(mask), SdpaOptions::new(mask).with_backend(Backend::Eager)];
                options.push(SdpaOptions::new(mask).with_return_attention_weights(true));
                if dtype != DType::F64 {
                    options.push(SdpaOptions::new(mask).with_backend(Backend::Cpu));
                }
                for options in options {
                    let got = attend_bshd(&q, &k, &v, &options).unwrap().output.to_dtype(DType::F64).unwrap();
                    assert_close(&format!("{case} in {dtype:?}, {:?}", options.backend), &got, want, tolerance);
                }
            }
        }
    }
}

/// A layer whose projections change nothing, at once and token by token.
#[test]
fn a_layer_with_a_cache_reads_the_same_masks() {
    let golden = Golden::open("masks_in_dtypes.safetensors");
    let eye = Tensor::eye(6, DType::F32, &Device::Cpu).unwrap();
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| format!("{name}.weight"));
    let tensors = names.into_iter().map(|name| (name, eye.clone())).collect();
    let config = AttentionConfig::new(6, 2).with_bias(ProjectionBias::NONE);
    let layer = MultiHeadAttention::load(&config, VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)).unwrap();
    let [q, k, v] = ["q", "k", "v"].map(|name| golden.get(name).flatten_from(2).unwrap());
    for (case, masks, want) in cases(&golden) {
        let want = want.flatten_from(2).unwrap();
        let close = |what: &str, got: &Tensor, want: &Tensor| {
            assert_close(&format!("{case}, {what}"), &got.to_dtype(DType::F64).unwrap(), want, 2e-6);
        };
        let mask = joined(&masks, AttentionMask::additive);
        let inputs = AttentionInputs::new(&q, &k, &v, &mask);
        for weights in [false, true] {
            let options = AttentionOptions::default().with_return_attention_weights(weights);
            close("whole", &layer.attend_with(&inputs, &options).unwrap().output, &want);
        }
        // The third token after the first two: its row of the mask, up to itself.
        let mut cache = KvCache::growing();
        for (start, count) in [(0, 2), (2, 1)] {
            let rows = |mask: &Tensor| mask.narrow(2, start, count)?.narrow(3, 0, start + count);
            let rows: Vec<Tensor> = masks.iter().map(|mask| rows(mask).unwrap()).collect();
            let mask = joined(&rows, AttentionMask::additive);
            let part = |xs: &Tensor| xs.narrow(1, start, count).unwrap();
            let (xs, options) = (part(&q), AttentionOptions::default());
            let inputs = AttentionInputs::self_attention(&xs, &mask);
            let cached = layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap().output;
            let seen = q.narrow(1, 0, start + count).unwrap();
            let whole = layer.attend(&xs, &seen, &seen, &mask).unwrap();
            close("cached", &cached, &whole.to_dtype(DType::F64).unwrap());
        }
    }
}
