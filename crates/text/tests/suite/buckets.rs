//! Devices without a kernel for ragged batches pad texts of like length together. On the CPU models in f64 and models
//! of variables run this way, as models on an Apple GPU do.

use std::sync::Mutex;

use candle_attention::checkpoint::{Checkpoint, VarMapSource};
use candle_attention::position::{Alibi, Position, Rotary};
use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, Error};
use candle_attention_text::{
    CrossEncoder, EncodeOptions, EntityOptions, M3Encoder, MultiVectorEncoder, SentenceEncoder, SparseEncoder,
    TextClassifier, TextModel, TextModelConfig, TokenClassifier,
};
use candle_core::{DType, Device, Tensor};

use crate::common::{Random, assert_close, attend_ragged, fixture, numbers, random_layer, says};

const CPU: Device = Device::Cpu;

/// What an encoder gives for the texts in a dtype.
type Numbers<'a> = &'a dyn Fn(DType) -> Vec<f64>;

/// Texts of 1 to 30 words, in no order.
fn texts() -> Vec<String> {
    let mut random = Random::new(70);
    let words = ["a", "cat", "sleeps", "on", "the", "red", "couch", "and", "dreams"];
    let mut below = |bound: usize| (random.uniform() * bound as f64) as usize;
    let mut text = |i: usize| {
        let count = if i.is_multiple_of(3) { 1 + below(30) } else { 1 + below(6) };
        (0..count).map(|_| words[below(words.len())]).collect::<Vec<_>>().join(" ")
    };
    (0..50).map(&mut text).collect()
}

#[test]
fn attention_by_buckets_equals_ragged_attention() {
    let mut random = Random::new(71);
    let positions =
        [None, Some(Position::Alibi(Alibi::default())), Some(Position::Rotary(Rotary::default().with_theta(30.0)))];
    for position in positions {
        let mut config = AttentionConfig::new(24, 2);
        if let Some(position) = position {
            config.position = position;
        }
        let layer = random_layer(&config, 0.3, &mut random);
        for mask in [AttentionMask::full(), AttentionMask::causal(), AttentionMask::window(Some(4), Some(2))] {
            let lengths: Vec<usize> = (0..30).map(|i| (random.uniform().powi(3) * 60.0) as usize + i % 2).collect();
            let xs = random.tensor(&[lengths.iter().sum(), 24], DType::F32);
            let want = attend_ragged(&layer, &xs, &lengths, &mask).unwrap();
            let eager = AttentionOptions::default().with_backend(Backend::Eager);
            let got = layer.attend_with(&AttentionInputs::ragged(&xs, &lengths, &mask), &eager).unwrap().output;
            assert_close(&format!("{mask}, {:?}", config.position), &got, &want, 1e-5);
        }
    }
}

#[test]
fn models_by_buckets_equal_ragged_models() {
    for name in ["tiny-bert", "encoders/modernbert", "encoders/roberta", "encoders/deberta_v2", "encoders/qwen3"] {
        let folder = fixture(name);
        let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let map = checkpoint.to_varmap("", DType::F32, &CPU).unwrap();
        let trained = TextModel::load(&config, VarMapSource::new(&map)).unwrap();
        let fixed = TextModel::load(&config, checkpoint.at("", DType::F32, &CPU)).unwrap();
        assert!(fixed.supports_ragged() && !trained.supports_ragged());
        for lengths in [&[3, 15, 0, 1, 5, 14, 2, 11][..], &[4, 4, 3], &[0, 0], &[]] {
            let tokens: usize = lengths.iter().sum();
            let ids: Vec<u32> = (0..tokens as u32).map(|i| 3 + i * 7 % (config.vocab_size as u32 - 3)).collect();
            let types = vec![0; tokens];
            let want = fixed.forward_ragged(&ids, &types, lengths).unwrap();
            let got = trained.forward_ragged(&ids, &types, lengths).unwrap();
            assert_close(&format!("{name}, {lengths:?}"), &got, &want, 1e-5);
        }
        let hidden = trained.forward_ragged(&[4, 5, 6, 7, 8], &[0; 5], &[4, 1]).unwrap();
        let gradients = hidden.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let data = map.data().lock().unwrap();
        assert!(data.values().any(|variable| gradients.get(variable).is_some()), "{name}");
    }
}

/// Every kind of encoder, in f32 without padding and in f64 with it.
#[test]
fn encoders_by_buckets_equal_ragged_encoders() {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let pairs: Vec<(&str, &str)> = texts.iter().copied().zip(texts.iter().copied().rev()).collect();
    let options = EncodeOptions::default();
    let flat = |tensors: Vec<Tensor>| tensors.iter().flat_map(numbers).collect::<Vec<f64>>();
    let wide = |rows: Vec<Vec<f32>>| rows.concat().into_iter().map(f64::from).collect::<Vec<f64>>();
    let kinds: [(&str, Numbers); 9] = [
        ("sentences", &|dtype| {
            let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), dtype, &CPU).unwrap();
            numbers(&encoder.encode(&texts, &options).unwrap())
        }),
        ("tokens", &|dtype| {
            let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), dtype, &CPU).unwrap();
            flat(encoder.encode_tokens(&texts, &options).unwrap())
        }),
        ("sparse", &|dtype| {
            let encoder = SparseEncoder::from_folder(fixture("sparse/plain"), dtype, &CPU).unwrap();
            wide(encoder.encode(&texts, &options).unwrap().into_iter().map(|vector| vector.values).collect())
        }),
        ("queries", &|dtype| {
            let encoder = MultiVectorEncoder::from_folder(fixture("multi_vector/pylate"), dtype, &CPU).unwrap();
            flat(encoder.encode_query(&texts, &options).unwrap())
        }),
        ("documents", &|dtype| {
            let encoder = MultiVectorEncoder::from_folder(fixture("multi_vector/stanford"), dtype, &CPU).unwrap();
            flat(encoder.encode_document(&texts, &options).unwrap())
        }),
        ("m3", &|dtype| {
            let encoder = M3Encoder::from_folder(fixture("sparse/bge_m3"), dtype, &CPU).unwrap();
            flat(encoder.encode_all(&texts, &options).unwrap().into_iter().map(|all| all.tokens).collect())
        }),
        ("pairs", &|dtype| {
            let encoder = CrossEncoder::from_folder(fixture("rerankers/qwen3"), dtype, &CPU).unwrap();
            wide(vec![encoder.scores(&pairs, &options).unwrap()])
        }),
        ("labels", &|dtype| {
            let classifier = TextClassifier::from_folder(fixture("rerankers/qwen3_head"), dtype, &CPU).unwrap();
            wide(classifier.logits(&pairs, &options).unwrap())
        }),
        ("entities", &|dtype| {
            let classifier = TokenClassifier::from_folder(fixture("token_classifier/bert"), dtype, &CPU).unwrap();
            let found = classifier.entities(&texts, &EntityOptions::default(), &options).unwrap();
            found.into_iter().flatten().map(|entity| f64::from(entity.score)).collect()
        }),
    ];
    for (name, run) in kinds {
        let as_tensor = |dtype| Tensor::new(run(dtype), &CPU).unwrap();
        let (ragged, padded) = (as_tensor(DType::F32), as_tensor(DType::F64));
        assert!(ragged.elem_count() > 0, "{name}");
        assert_close(name, &padded, &ragged, 2e-5);
    }
}

/// Of the tokens of each batch that is computed, at most a quarter is padding.
#[test]
fn batches_are_padded_by_a_quarter_at_most() {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let batches = |dtype| {
        let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), dtype, &CPU).unwrap();
        let options = EncodeOptions::default().with_batch_size(25);
        let tokens = encoder.encode_tokens(&texts, &options).unwrap();
        let mut lengths: Vec<usize> = tokens.iter().map(|tokens| tokens.dims()[0]).collect();
        lengths.sort_by(|a, b| b.cmp(a));
        let done = Mutex::new(vec![0]);
        let on_progress = |texts: usize, _: usize| done.lock().unwrap().push(texts);
        encoder.encode(&texts, &options.with_on_progress(&on_progress)).unwrap();
        let done = done.into_inner().unwrap();
        let batches: Vec<Vec<usize>> = done.windows(2).map(|ends| lengths[ends[0]..ends[1]].to_vec()).collect();
        assert_eq!(batches.concat(), lengths);
        batches
    };
    let share = |batch: &Vec<usize>| 1.0 - batch.iter().sum::<usize>() as f64 / (batch.len() * batch[0]) as f64;
    assert!(batches(DType::F64).iter().all(|batch| share(batch) <= 0.25));
    // Without padding, batches are as large as the options allow, and with it they would waste more.
    let ragged = batches(DType::F32);
    assert!(ragged.iter().all(|batch| batch.len() == 25));
    assert!(ragged.iter().any(|batch| share(batch) > 0.25));
}

/// Numbers beyond those of f16 become infinities in a model that computes in it: no other numbers come of that.
#[test]
fn a_model_that_f16_is_too_narrow_for_is_an_error() {
    let encoder = |dtype| {
        let checkpoint = Checkpoint::open(fixture("tiny-bert")).unwrap();
        let map = checkpoint.to_varmap("", dtype, &CPU).unwrap();
        let data = map.data().lock().unwrap();
        let name = data.keys().find(|name| name.ends_with("layer.0.output.LayerNorm.weight")).unwrap();
        data[name].set(&Tensor::full(60_000f32, 24, &CPU).unwrap().to_dtype(dtype).unwrap()).unwrap();
        drop(data);
        SentenceEncoder::load(fixture("tiny-bert"), VarMapSource::new(&map)).unwrap()
    };
    let run = |dtype| encoder(dtype).encode(&["a cat", "a dog"], &EncodeOptions::default());
    assert!(run(DType::F32).is_ok() && run(DType::BF16).is_ok());
    assert!(matches!(run(DType::F16), Err(Error::NotFinite { .. })));
    says(run(DType::F16), &["the embedding of text 0, `a cat`", "computed in f16", "65504", "load the model in f32"]);
}
