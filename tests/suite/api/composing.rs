//! The layer as a part of other people's models: a mask in its configuration, inputs that own their mask, errors that
//! can be matched through candle's.

use std::error::Error as _;

use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, Error, KvCache, MultiHeadAttention,
    ObserveOptions,
};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Random, assert_close, attend_ragged, max_diff, numbers, random_layer, says};

/// Two layers with the same weights: one with `mask` in its configuration, one without.
fn with_and_without(mask: &AttentionMask) -> [MultiHeadAttention; 2] {
    let config = AttentionConfig::new(12, 3);
    [config.clone().with_mask(mask.clone()), config].map(|config| random_layer(&config, 0.5, &mut Random::new(71)))
}

#[test]
fn a_mask_of_the_configuration_holds_in_every_kind_of_call() {
    let (b, s) = (2, 7);
    let xs = Random::new(72).tensor(&[b, s, 12], DType::F32);
    for mask in
        [AttentionMask::causal(), AttentionMask::window(Some(2), Some(1)), AttentionMask::window(Some(2), Some(0))]
    {
        let [layer, plain] = with_and_without(&mask);
        let same =
            |what: &str, got: &Tensor, want: &Tensor| assert_eq!(max_diff(got, want), 0.0, "{what} under {mask}");
        let want = plain.attend(&xs, &xs, &xs, &mask).unwrap();
        assert!(max_diff(&plain.forward(&xs).unwrap(), &want) > 1e-3, "the mask hides something");
        same("forward", &layer.forward(&xs).unwrap(), &want);
        same("forward_t", &layer.forward_t(&xs, true).unwrap(), &want);
        same("the mask twice", &layer.attend(&xs, &xs, &xs, &mask).unwrap(), &want);

        // With a mask of the call, on both backends.
        for mine in [AttentionMask::lengths(&[7, 4]), AttentionMask::padding(&[7, 4])] {
            for backend in [None, Some(Backend::Eager)] {
                let options = AttentionOptions::default().with_backend(backend);
                let both = AttentionInputs::self_attention(&xs, mine.clone().and(mask.clone()));
                let inputs = AttentionInputs::self_attention(&xs, &mine);
                let want = plain.attend_with(&both, &options).unwrap().output;
                same("attend_with", &layer.attend_with(&inputs, &options).unwrap().output, &want);
                let what = ObserveOptions::default().with_attention_weights(true);
                let [got, want] = [layer.observe(&inputs, &options, &what), plain.observe(&both, &options, &what)];
                let (got, want) = (got.unwrap(), want.unwrap());
                same("observed output", &got.output, &want.output);
                same("observed weights", &got.attention_weights.unwrap(), &want.attention_weights.unwrap());
            }
        }

        let ragged = Tensor::cat(&[xs.get(0).unwrap(), xs.get(1).unwrap().narrow(0, 0, 4).unwrap()], 0).unwrap();
        let want_ragged = attend_ragged(&plain, &ragged, &[7, 4], &mask).unwrap();
        same("attend_ragged", &attend_ragged(&layer, &ragged, &[7, 4], &AttentionMask::full()).unwrap(), &want_ragged);

        // With a cache, which has no keys after the last query.
        if mask != AttentionMask::window(Some(2), Some(1)) {
            let mut cache = KvCache::growing();
            for (start, len) in [(0, 3), (3, 1), (4, 3)] {
                let chunk = xs.narrow(1, start, len).unwrap();
                let inputs = AttentionInputs::self_attention(&chunk, AttentionMask::full());
                let got =
                    layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default()).unwrap().output;
                assert_close("attend_cached", &got, &want.narrow(1, start, len).unwrap(), 1e-6);
            }
        }

        // A window over another sequence is aligned with its end.
        let queries = xs.narrow(1, 0, 3).unwrap();
        let full = AttentionMask::full();
        let want = plain.attend(&queries, &xs, &xs, &mask).unwrap();
        same("cross-attention", &layer.attend(&queries, &xs, &xs, &full).unwrap(), &want);
    }
}

/// A causal layer is a `Module`, so it can be a part of a `Sequential`.
#[test]
fn a_causal_layer_is_a_module_of_a_sequence() {
    let [layer, plain] = with_and_without(&AttentionMask::causal());
    let xs = Random::new(73).tensor(&[1, 5, 12], DType::F32);
    let want = plain.attend(&xs, &xs, &xs, AttentionMask::causal()).unwrap().relu().unwrap();
    let model = candle_nn::seq().add(layer).add(candle_nn::Activation::Relu);
    assert_eq!(max_diff(&model.forward(&xs).unwrap(), &want), 0.0);
}

#[test]
fn a_mask_of_tensors_or_lengths_is_not_one_of_a_configuration() {
    let keep = AttentionMask::keep_keys(&Tensor::ones((2, 5), DType::U8, &Device::Cpu).unwrap()).unwrap();
    for mask in [keep, AttentionMask::lengths(&[3]), AttentionMask::causal().and(AttentionMask::padding(&[3]))] {
        let text = mask.to_string();
        says(
            AttentionConfig::new(8, 2).with_mask(mask).validate(),
            &["mask = ", &text, "expected full, causal, a window, chunks or functions"],
        );
    }
    let causal = || AttentionConfig::new(8, 2).with_mask(AttentionMask::causal());
    assert_eq!(causal(), causal());
    assert_eq!(causal(), AttentionConfig::new(8, 2).with_mask(AttentionMask::window(None, Some(0))));
    assert_ne!(causal(), AttentionConfig::new(8, 2));
    assert!(format!("{:?}", causal()).contains("causal"), "{:?}", causal());
}

#[test]
fn masks_are_equal_if_they_are_the_same_windows_or_clones() {
    let lengths = AttentionMask::lengths(&[3, 2]);
    assert_eq!(lengths, lengths.clone());
    assert_ne!(lengths, AttentionMask::full());
    assert_ne!(lengths, lengths.clone().and(AttentionMask::causal()));
    let twice = AttentionMask::causal().and(AttentionMask::window(Some(3), None));
    assert_eq!(twice, AttentionMask::window(Some(3), Some(0)));
    assert_ne!(twice, AttentionMask::causal());
}

/// The same weights are dropped for the same seed, others for another one, a share of `p` of them, and the mean stays.
#[test]
fn a_seed_makes_dropout_reproducible() {
    const S: usize = 24;
    let p = 0.3;
    let layer = |dropout| {
        let config = AttentionConfig::new(12, 3).with_dropout(dropout);
        random_layer(&config, 0.5, &mut Random::new(76))
    };
    let (dropping, plain) = (layer(p), layer(0.0));
    let xs = Random::new(77).tensor(&[2, S, 12], DType::F32);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::full());
    let train = AttentionOptions::default().with_train(true);
    let run = |seed: Option<u64>| dropping.attend_with(&inputs, &train.with_dropout_seed(seed)).unwrap().output;
    assert_eq!(max_diff(&run(Some(5)), &run(Some(5))), 0.0);
    for other in [Some(6), Some(5 + (1 << 32)), None] {
        assert!(max_diff(&run(Some(5)), &run(other)) > 1e-3, "{other:?}");
    }
    // A seed alone drops nothing.
    let seeded = AttentionOptions::default().with_dropout_seed(5);
    let want = plain.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
    assert_eq!(max_diff(&dropping.attend_with(&inputs, &seeded).unwrap().output, &want), 0.0);
    // Ragged batches and caches take it, too.
    let ragged = |seed: u64| {
        let options = train.with_dropout_seed(seed);
        dropping
            .attend_with(&AttentionInputs::ragged(&xs.get(0).unwrap(), &[20, 4], AttentionMask::full()), &options)
            .unwrap()
            .output
    };
    assert_eq!(max_diff(&ragged(1), &ragged(1)), 0.0);
    assert!(max_diff(&ragged(1), &ragged(2)) > 1e-3);

    // Uniform weights and values of 1: an output is the share of weights that are left, over `1 - p`.
    let zeros = Tensor::zeros((1, S, 1, 4), DType::F32, &Device::Cpu).unwrap();
    let ones = zeros.ones_like().unwrap();
    let mut sum = 0.0;
    for seed in 0..200 {
        let options = SdpaOptions::new(AttentionMask::full()).with_dropout(p).with_dropout_seed(seed);
        let output = attend_bshd(&zeros, &zeros, &ones, &options).unwrap().output;
        sum += numbers(&output.mean_all().unwrap())[0];
    }
    // 115,200 draws: the standard deviation of the mean is 0.0019.
    assert!((sum / 200.0 - 1.0).abs() < 0.01, "{}", sum / 200.0);
}

#[test]
fn a_layer_names_its_device_and_dtype() {
    let layer = random_layer(&AttentionConfig::new(8, 2), 0.5, &mut Random::new(74));
    assert!(layer.device().is_cpu());
    assert_eq!(layer.dtype(), DType::F32);
}

fn small_layer() -> MultiHeadAttention {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb).unwrap()
}

/// What a function of the user's that returns candle's result sees.
fn in_candle(layer: &MultiHeadAttention, xs: &Tensor) -> candle_core::Result<Tensor> {
    let ys = layer.attend(xs, xs, xs, AttentionMask::full())?;
    ys.relu()
}

#[test]
fn errors_of_calls_can_be_matched_also_through_candles_error() {
    let layer = small_layer();
    let xs = Tensor::zeros((1, 5, 7), DType::F32, &Device::Cpu).unwrap();
    let error = layer.attend(&xs, &xs, &xs, AttentionMask::full()).unwrap_err();
    let is_shape = |error: &Error| matches!(error, Error::Shape { found, .. } if found == &[1, 5, 7]);
    assert!(is_shape(&error));
    let message = error.to_string();

    for candle in [layer.forward(&xs).unwrap_err(), in_candle(&layer, &xs).unwrap_err()] {
        assert_eq!(candle.to_string(), message);
        let source = candle.source().expect("a source").downcast_ref::<Error>().expect("the crate's error");
        assert!(is_shape(source));
        assert!(format!("{candle:?}").contains(&message), "{candle:?}");
        assert!(is_shape(Error::find_in(&candle).unwrap()));
        // Back with `?`.
        let back = || -> candle_attention::Result<()> { Err(candle)? };
        assert!(is_shape(&back().unwrap_err()));
    }

    // Wherever candle or a user put it.
    let wrapped = layer.forward(&xs).unwrap_err().context("layer 3").with_path("model.safetensors");
    assert!(is_shape(Error::find_in(&wrapped).unwrap()));
    assert!(is_shape(Error::find_in(&Error::from(wrapped)).unwrap()));
    let boxed: Box<dyn std::error::Error + Send + Sync> = layer.forward(&xs).unwrap_err().into();
    assert!(is_shape(Error::find_in(&*boxed).unwrap()));

    // candle's own errors stay candle's.
    let own = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap().reshape((4, 4)).unwrap_err();
    assert!(Error::find_in(&own).is_none());
    let error = || -> candle_attention::Result<()> {
        Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?.reshape((4, 4))?;
        Ok(())
    };
    let error = error().unwrap_err();
    assert!(matches!(&error, Error::Candle(_)) && error.to_string().contains("Shape mismatch"), "{error}");
    let io = candle_core::Error::Io(std::io::Error::other("disk"));
    assert!(matches!(Error::from(io), Error::Candle(candle_core::Error::Io(error)) if error.to_string() == "disk"));
}

#[test]
fn a_full_cache_is_a_variant_of_the_error() {
    let layer = small_layer();
    let (xs, mut cache) = (Tensor::zeros((1, 3, 8), DType::F32, &Device::Cpu).unwrap(), KvCache::fixed(4));
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default()).unwrap();
    let error = layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default()).unwrap_err();
    assert!(matches!(error, Error::CacheFull { tokens: 6, capacity: 4, .. }), "{error}");
}
