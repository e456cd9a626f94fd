//! Heads turned down or off for a call.

use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, ObserveOptions,
};
use candle_core::{DType, Tensor, Var};

use super::{CPU, layer};
use crate::common::{Random, assert_close, numbers};

/// A head with mask 0 adds nothing to the output on any path, and the mask gets a gradient.
#[test]
fn head_masks_apply_on_every_path() {
    let config = AttentionConfig::new(24, 6).with_num_key_value_heads(3);
    let layer = layer(&config, 8);
    let xs = Random::new(9).tensor(&[2, 7, 24], DType::F32);
    let head_mask = Tensor::new(&[1f32, 0., 0.5, 1., 0., 2.], &CPU).unwrap();
    let mask = AttentionMask::padding(&[7, 4]).and(AttentionMask::causal());
    let inputs = AttentionInputs::self_attention(&xs, &mask);
    let options = AttentionOptions::default().with_head_mask(&head_mask);
    let fused = layer.attend_with(&inputs, &options).unwrap().output;
    let eager = layer.attend_with(&inputs, &options.with_backend(Backend::Eager)).unwrap().output;
    assert_close("eager", &fused, &eager, 1e-6);
    let rows = Tensor::stack(&[&head_mask, &head_mask], 0).unwrap();
    let by_row = layer.attend_with(&inputs, &AttentionOptions::default().with_head_mask(&rows)).unwrap().output;
    assert_close("by row", &by_row, &fused, 0.0);
    let observed = layer.observe(&inputs, &options, &ObserveOptions::default()).unwrap().output;
    assert_close("observed", &observed, &fused, 1e-6);
    let causal = AttentionMask::causal();
    let one = xs.narrow(0, 0, 1).unwrap();
    let whole = layer.attend_with(&AttentionInputs::self_attention(&one, &causal), &options).unwrap().output;
    let mut cache = KvCache::growing();
    let step = |i: usize, cache: &mut KvCache| {
        let xs = one.narrow(1, i, 1).unwrap();
        layer.attend_with(&AttentionInputs::self_attention(&xs, &causal).with_cache(cache), &options).unwrap().output
    };
    let steps: Vec<Tensor> = (0..7).map(|i| step(i, &mut cache)).collect();
    assert_close("cached", &Tensor::cat(&steps, 1).unwrap(), &whole, 1e-6);

    let variable = Var::from_tensor(&head_mask).unwrap();
    let loss = |mask: &Tensor| {
        let options = AttentionOptions::default().with_head_mask(mask);
        layer.attend_with(&inputs, &options).unwrap().output.sqr().unwrap().sum_all().unwrap()
    };
    let grads = loss(&variable).backward().unwrap();
    let grad = numbers(grads.get(&variable).unwrap());
    for (head, got) in grad.iter().enumerate() {
        let at = |step: f32| {
            let mut mask = head_mask.to_vec1::<f32>().unwrap();
            mask[head] += step;
            f64::from(loss(&Tensor::new(mask, &CPU).unwrap()).to_scalar::<f32>().unwrap())
        };
        let want = (at(0.05) - at(-0.05)) / 0.1;
        assert!((got - want).abs() < 1e-2 * (1.0 + want.abs()), "head {head}: {got}, want {want}");
    }
}
