//! Sizes that no memory has: views of one element with any shape. Each is an error, and nothing is allocated.

use candle_attention::sdpa::{SdpaOptions, attend_bshd, plan_for};
use candle_attention::weights::{AttentionWeights, LinearWeights, QkvWeights};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, MultiHeadAttention, PaddedIds,
};
use candle_core::{DType, Device, Module, Tensor, Var};

use crate::common::{Random, attend_ragged, random_layer, says};

const CPU: Device = Device::Cpu;
/// Times 128 it wraps around to 128 in 64 bits.
const ABSURD: usize = (1 << (usize::BITS - 7)) + 1;
/// Does not wrap around with a few others, but exceeds all memory.
const HUGE: usize = 1 << (usize::BITS - 14);

fn one(dtype: DType) -> Tensor {
    Tensor::ones((1, 1, 1, 1), dtype, &CPU).unwrap()
}

fn view(dims: [usize; 4]) -> Tensor {
    one(DType::F32).broadcast_as(&dims).unwrap()
}

fn options() -> SdpaOptions<'static> {
    SdpaOptions::new(AttentionMask::full())
}

#[test]
fn absurd_queries_keys_and_values_are_errors_on_every_backend() {
    let small = || view([1, 1, 1, 128]);
    for size in [ABSURD, HUGE] {
        let calls = [
            [view([1, 1, size, 128]), small(), small()],
            [view([1, size, 1, 128]), small(), small()],
            [view([size, 1, 1, 128]), view([size, 1, 1, 128]), view([size, 1, 1, 128])],
            [small(), view([1, size, 1, 128]), view([1, size, 1, 128])],
            [view([1, 1, 1, size]), view([1, 1, 1, size]), small()],
            [small(), small(), view([1, 1, 1, size])],
            [view([1, 1 << 31, 1, 1]), view([1, 1 << 31, 1, 1]), view([1, 1 << 31, 1, 1])],
        ];
        for [q, k, v] in &calls {
            for backend in [None, Some(Backend::Eager)] {
                let options = options().with_backend(backend);
                // The last of the calls is possible without a score matrix, in hours.
                let possible = q.dims()[1] == 1 << 31 && backend.is_none();
                if !possible {
                    let error = attend_bshd(q, k, v, &options).unwrap_err().to_string();
                    assert!(error.contains("memory") || error.contains("elements"), "{error}");
                }
                let _ = plan_for(q, k, v, &options);
            }
            let q = Var::from_tensor(&one(DType::F32)).unwrap().broadcast_as(q.shape()).unwrap();
            assert!(attend_bshd(&q, k, v, &options()).is_err(), "with a gradient");
            assert!(attend_bshd(&q, k, v, &options().with_return_attention_weights(true)).is_err());
        }
    }
}

/// Their output is zeros, which take memory all the same.
#[test]
fn absurd_queries_without_keys_are_errors() {
    let none = Tensor::zeros((1, 0, 1, 1), DType::F32, &Device::Cpu).unwrap();
    for weights in [false, true] {
        let options = options().with_return_attention_weights(weights);
        says(
            attend_bshd(&view([1, 1 << 50, 1, 1]), &none, &none, &options),
            &[
                "the memory for the output of attention is 4503599627370496 bytes, expected an amount that can be allocated",
            ],
        );
    }
}

/// A mask that repeats one element costs one element.
#[test]
fn masks_that_repeat_an_element_cost_no_memory() {
    let s = 1 << 20;
    let shape = (1, 1, s, s);
    let [q, k] = [view([1, 1, 1, 8]), view([1, 1, 1, 8])];
    // The shapes fit the call, so the mask is not rejected before it is read.
    let keep = one(DType::U8).broadcast_as(shape).unwrap();
    let bias = one(DType::F16).broadcast_as(shape).unwrap();
    for mask in [AttentionMask::keep(&keep).unwrap(), AttentionMask::additive(&bias).unwrap()] {
        let q = q.broadcast_as((1, s, 1, 8)).unwrap();
        let k = k.broadcast_as((1, s, 1, 8)).unwrap();
        // Planned, not run: 2^40 scores take too long.
        plan_for(&q, &k, &k, &SdpaOptions::new(&mask)).unwrap();
        assert!(attend_bshd(&q, &k, &k, &SdpaOptions::new(&mask).with_backend(Backend::Eager)).is_err());
    }
    let keep = one(DType::U8).broadcast_as((1, 1, 3, 5)).unwrap();
    let (q, k) = (view([1, 3, 1, 8]), view([1, 5, 1, 8]));
    let options = SdpaOptions::new(AttentionMask::keep(&keep).unwrap());
    assert_eq!(attend_bshd(&q, &k, &k, &options).unwrap().output.dims(), [1, 3, 1, 8]);
}

#[test]
fn absurd_masks_and_lists_are_errors() {
    let ids = |dtype, dims: &[usize]| Tensor::ones(1, dtype, &CPU).unwrap().broadcast_as(dims).unwrap();
    for size in [ABSURD, HUGE] {
        assert!(AttentionMask::keep_keys(&ids(DType::I16, &[1, size])).is_err());
        assert!(AttentionMask::segments(&ids(DType::I32, &[1, size]), &ids(DType::I32, &[1, size])).is_err());
        assert!(AttentionMask::lengths_tensor(&ids(DType::U32, &[size])).is_err());
        assert!(AttentionMask::lengths_tensor(&ids(DType::U32, &[size, 128])).is_err());
        let q = view([1, 1, 1, 8]);
        let k = view([1, size, 1, 8]);
        let wide = [
            AttentionMask::keep_keys(&ids(DType::U8, &[1, size])).unwrap(),
            AttentionMask::additive_keys(&ids(DType::F64, &[1, size])).unwrap(),
            AttentionMask::segments(&ids(DType::U8, &[1, 1]), &ids(DType::U8, &[1, size])).unwrap(),
            AttentionMask::causal(),
            AttentionMask::prefix_lm(&[1]),
            AttentionMask::distances(vec![0.5], false),
        ];
        for mask in wide {
            let mut masks = vec![mask.clone()];
            masks.extend(mask.or(AttentionMask::window(Some(1), None)));
            for (mask, backend) in masks.iter().flat_map(|mask| [(mask, None), (mask, Some(Backend::Eager))]) {
                let options = SdpaOptions::new(mask).with_backend(backend);
                assert!(attend_bshd(&q, &k, &k, &options).is_err(), "{mask}");
                // As many queries; the masks that do not fit them are errors, too.
                assert!(attend_bshd(&k, &k, &k, &options).is_err(), "{mask}");
            }
        }
    }
    let error = AttentionMask::distances(vec![f64::NAN], false);
    let q = view([1, 1, 1, 8]);
    let error = attend_bshd(&q, &q, &q, &SdpaOptions::new(error)).unwrap_err().to_string();
    assert!(error.contains("slopes[0]") && error.contains("NaN"), "{error}");
}

#[test]
fn absurd_inputs_of_a_layer_are_errors() {
    let config = AttentionConfig::new(64, 2);
    let packed = random_layer(&config, 0.3, &mut Random::new(1));
    let learning = {
        let map = candle_nn::VarMap::new();
        let vb = candle_nn::VarBuilder::from_varmap(&map, DType::F32, &CPU);
        MultiHeadAttention::new(&config, vb).unwrap()
    };
    let xs = |b: usize, s: usize| Tensor::ones((1, 1, 64), DType::F32, &CPU).unwrap().broadcast_as((b, s, 64)).unwrap();
    for layer in [&packed, &learning] {
        // 2^64 elements: 0 in 64 bits.
        for xs in [xs(1 << (usize::BITS - 6), 1), xs(1, ABSURD), xs(HUGE, 1), xs(HUGE, HUGE)] {
            assert!(layer.forward(&xs).is_err(), "{:?}", xs.dims());
            let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
            assert!(layer.attend_with(&inputs, &AttentionOptions::default()).is_err(), "{:?}", xs.dims());
            let ragged = xs.narrow(0, 0, 1).unwrap().squeeze(0).unwrap();
            let lengths = [ragged.dim(0).unwrap()];
            if lengths[0] > 1 {
                assert!(attend_ragged(layer, &ragged, &lengths, &AttentionMask::full()).is_err(), "{:?}", xs.dims());
            }
        }
        let lengths = [usize::MAX, 2];
        assert!(
            attend_ragged(layer, &Tensor::ones((1, 64), DType::F32, &CPU).unwrap(), &lengths, &AttentionMask::full())
                .is_err()
        );
    }
}

#[test]
fn absurd_weights_are_errors() {
    let size = 1 << 23;
    let weight = |dims: &[usize]| Tensor::ones(1, DType::F32, &CPU).unwrap().broadcast_as(dims).unwrap();
    let config = AttentionConfig::new(size, 1).with_head_dim(1 << 23);
    let linear = || LinearWeights::new(weight(&[size, size]), Some(weight(&[size])));
    let weights = AttentionWeights::new(QkvWeights::Split(Box::new([(); 3].map(|()| linear()))), linear());
    let layer = MultiHeadAttention::from_weights(&config, weights);
    // The layer may be refused as it is; if not, its first call is.
    if let Ok(layer) = layer {
        let error = layer.forward(&weight(&[1, 1, size])).unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
    }
}

#[test]
fn padding_to_a_huge_length_is_an_error() {
    struct Long(bool);
    impl AsRef<[u32]> for Long {
        fn as_ref(&self) -> &[u32] {
            static IDS: [u32; 1 << 20] = [7; 1 << 20];
            if self.0 { &IDS } else { &IDS[..1] }
        }
    }
    let many: Vec<Long> = (0..1 << 23).map(|i| Long(i == 0)).collect();
    let error = PaddedIds::new(&many, 0, &CPU).unwrap_err().to_string();
    assert!(error.contains("padded ids"), "{error}");
}
