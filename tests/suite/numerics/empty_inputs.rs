//! Inputs without elements: no sequence, no query, no key, no head.

use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention,
};
use candle_core::{DType, Device, Module, Tensor, Var};

use crate::common::{Random, attend_ragged, numbers, random_layer};

const CPU: Device = Device::Cpu;

fn zeros(dims: [usize; 4], dtype: DType) -> Tensor {
    Tensor::zeros(&dims, dtype, &CPU).unwrap()
}

#[test]
fn calls_without_elements_give_what_their_shape_says() {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for [b, s_q, s_kv, h] in [[0, 3, 4, 2], [2, 0, 4, 2], [2, 3, 0, 2], [0, 0, 0, 2], [2, 3, 4, 0], [0, 3, 4, 0]] {
            let h_kv = h.max(1);
            let (q, k, v) =
                (zeros([b, s_q, h, 8], dtype), zeros([b, s_kv, h_kv, 8], dtype), zeros([b, s_kv, h_kv, 6], dtype));
            let masks = [
                AttentionMask::full(),
                AttentionMask::causal(),
                AttentionMask::lengths(&vec![s_kv / 2; b]),
                AttentionMask::keep(&Tensor::ones((1, 1, s_q, s_kv), DType::U8, &CPU).unwrap()).unwrap(),
                AttentionMask::distances(vec![0.5; h], true),
            ];
            for mask in &masks {
                for backend in [None, Some(Backend::Eager)] {
                    let run = |q: &Tensor, k: &Tensor, v: &Tensor, weights: bool| {
                        let options =
                            SdpaOptions::new(mask).with_backend(backend).with_return_attention_weights(weights);
                        let output = attend_bshd(q, k, v, &options).unwrap();
                        assert_eq!(output.output.dims(), [b, s_q, h, 6], "{dtype:?} {mask} {backend:?}");
                        assert!(numbers(&output.output).iter().all(|x| *x == 0.0));
                        output
                    };
                    run(&q, &k, &v, false);
                    let weights = run(&q, &k, &v, true).attention_weights.unwrap();
                    assert_eq!(weights.dims(), [b, h, s_q, s_kv]);
                    let [q, k, v] = [&q, &k, &v].map(|t| Var::from_tensor(t).unwrap());
                    let loss = run(&q, &k, &v, false).output.sum_all().unwrap();
                    let grads = loss.backward().unwrap();
                    for variable in [&q, &k, &v] {
                        let finite = |grad: &Tensor| numbers(grad).iter().all(|x| *x == 0.0);
                        assert!(grads.get(variable).is_none_or(finite));
                    }
                }
            }
        }
    }
}

/// A view without elements may start after the end of its memory.
#[test]
fn an_empty_batch_cut_by_tokens_or_features_is_empty() {
    let config = AttentionConfig::new(8, 2);
    let packed = random_layer(&config, 0.3, &mut Random::new(1));
    let learning = {
        let map = candle_nn::VarMap::new();
        let vb = candle_nn::VarBuilder::from_varmap(&map, DType::F32, &CPU);
        MultiHeadAttention::new(&config, vb).unwrap()
    };
    let empty = Tensor::zeros((0, 5, 8), DType::F32, &CPU).unwrap();
    let wide = Tensor::zeros((0, 5, 24), DType::F32, &CPU).unwrap();
    for xs in [
        empty.narrow(1, 2, 3).unwrap(),
        wide.narrow(2, 8, 8).unwrap(),
        wide.narrow(1, 4, 1).unwrap().narrow(2, 16, 8).unwrap(),
    ] {
        let dims = xs.dims().to_vec();
        for layer in [&packed, &learning] {
            assert_eq!(layer.forward(&xs).unwrap().dims(), dims);
            for mask in [AttentionMask::causal(), AttentionMask::padding(&[])] {
                let inputs = AttentionInputs::self_attention(&xs, mask);
                let output = layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
                assert_eq!(output.dims(), dims);
            }
            let rows = xs.narrow(1, 0, 1).unwrap().squeeze(1).unwrap();
            assert_eq!(attend_ragged(layer, &rows, &[], &AttentionMask::full()).unwrap().dims(), [0, 8]);
        }
        let mut cache = KvCache::growing();
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
        let output = packed.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default());
        assert!(output.is_ok_and(|output| output.output.dims() == dims));
    }
    let heads = zeros([0, 5, 6, 8], DType::F32);
    let parts = [0, 2, 4].map(|start| heads.narrow(2, start, 2).unwrap().narrow(1, 2, 3).unwrap());
    for backend in [None, Some(Backend::Eager)] {
        let options = SdpaOptions::new(AttentionMask::causal()).with_backend(backend);
        assert_eq!(attend_bshd(&parts[0], &parts[1], &parts[2], &options).unwrap().output.dims(), [0, 3, 2, 8]);
    }
}
