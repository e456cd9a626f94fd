//! The encoder on a tiny random BERT saved by sentence-transformers, against what that library computes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_attention::{AttentionMask, Error};
use candle_attention_text::{EncodeOptions, SentenceEncoder, TextModel, TextModelConfig};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;

use crate::common::programs::copy_folder;
use crate::common::{Golden, LAYER, Random, assert_close, fixture, max_diff, numbers, says};
use crate::models::tiny;

const CPU: Device = Device::Cpu;

fn texts() -> Vec<String> {
    serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap()
}

fn encode(encoder: &SentenceEncoder, options: &EncodeOptions) -> Tensor {
    let texts = texts();
    encoder.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>(), options).unwrap()
}

fn load(folder: &Path) -> Result<SentenceEncoder, Error> {
    SentenceEncoder::from_folder(folder, DType::F32, &CPU)
}

fn config() -> TextModelConfig {
    TextModelConfig::from_file(fixture("tiny-bert/config.json")).unwrap()
}

/// An embedding or attention weights with NaN are an error that names the text.
#[test]
fn results_that_are_not_finite_are_errors() {
    let folder = tiny();
    let path = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &CPU).unwrap();
    let name = tensors.keys().find(|name| name.ends_with("layer.0.output.dense.bias")).unwrap().clone();
    tensors.insert(name, Tensor::full(f32::NAN, 24, &CPU).unwrap());
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let encoder = load(folder.path()).unwrap();
    let error = encoder.encode(&["a cat", "a dog"], &EncodeOptions::default()).unwrap_err();
    assert!(matches!(error, Error::NotFinite { .. }), "{error}");
    assert_eq!(error.to_string(), "NaN or an infinity in the embedding of text 0, `a cat`");
    #[cfg(feature = "visualize")]
    {
        let maps = |layer: usize| {
            let options = candle_attention_text::MapOptions::default();
            encoder.attention("a cat", &options.with_layers(&[layer]))
        };
        assert!(maps(0).is_ok());
        says(maps(1), &["NaN or an infinity in the attention weights of layer 1 for `a cat`"]);
    }
}

#[test]
fn embeddings_equal_those_of_sentence_transformers() {
    let encoder = load(&fixture("tiny-bert")).unwrap();
    assert_eq!((encoder.embedding_size(), encoder.max_seq_length()), (24, 16));
    let golden = Golden::open("tiny_bert.safetensors");
    let want = golden.get("mean_norm");
    for batch_size in [1, 3, 8, 100] {
        let got = encode(&encoder, &EncodeOptions::default().with_batch_size(batch_size));
        assert_close("mean_norm", &got, &want, LAYER);
    }
}

#[test]
fn pooling_modes_and_dense_module_equal_sentence_transformers() {
    let golden = Golden::open("tiny_bert.safetensors");
    for variant in ["cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken", "cls_mean", "mean_dense"] {
        let folder = tiny();
        std::fs::remove_file(folder.path().join("modules.json")).unwrap();
        copy_folder(&fixture("tiny-bert-variants").join(variant), folder.path());
        if variant == "mean_dense" {
            let dense = ["weight", "bias"].map(|name| {
                let name = format!("linear.{name}");
                (name.clone(), golden.get(&format!("dense.{name}")))
            });
            let path = folder.path().join("2_Dense/model.safetensors");
            candle_core::safetensors::save(&HashMap::from(dense), path).unwrap();
        }
        let encoder = load(folder.path()).unwrap();
        let got = encode(&encoder, &EncodeOptions::default().with_batch_size(3));
        let want = golden.get(variant);
        assert_eq!(encoder.embedding_size(), want.dim(1).unwrap(), "{variant}");
        println!("{variant}: differs by at most {:e}", max_diff(&got, &want));
        assert_close(variant, &got, &want, LAYER);
    }
}

/// The earlier booleans of a pooling configuration, and none of them, mean the same as the newer list.
#[test]
fn older_pooling_configurations_mean_the_same() {
    let golden = Golden::open("tiny_bert.safetensors");
    let folder = tiny();
    let modules = r#"[{"idx":0,"name":"0","path":"","type":"sentence_transformers.models.Transformer"},
        {"idx":1,"name":"1","path":"1_Pooling","type":"sentence_transformers.models.Pooling"}]"#;
    std::fs::write(folder.path().join("modules.json"), modules).unwrap();
    let pooling = folder.path().join("1_Pooling/config.json");
    let write = |text: &str| std::fs::write(&pooling, text).unwrap();
    write(r#"{"word_embedding_dimension":24,"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":true}"#);
    let got = encode(&load(folder.path()).unwrap(), &EncodeOptions::default());
    assert_close("cls and mean", &got, &golden.get("cls_mean"), LAYER);
    write(r#"{"word_embedding_dimension":24,"pooling_mode_lasttoken":true,"pooling_mode_mean_tokens":false}"#);
    let got = encode(&load(folder.path()).unwrap(), &EncodeOptions::default());
    assert_close("last token", &got, &golden.get("lasttoken"), LAYER);

    // Without modules.json tokens are averaged and not normalized; with no mode on, too.
    write(r#"{"word_embedding_dimension":24}"#);
    let mean = encode(&load(folder.path()).unwrap(), &EncodeOptions::default());
    std::fs::remove_file(folder.path().join("modules.json")).unwrap();
    assert_eq!(numbers(&mean), numbers(&encode(&load(folder.path()).unwrap(), &EncodeOptions::default())));
    let lengths = mean.sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
    assert_close("mean", &mean.broadcast_div(&lengths).unwrap(), &golden.get("mean_norm"), LAYER);
}

#[test]
fn bare_prefixed_and_legacy_checkpoints_give_the_same_hidden_states() {
    let golden = Golden::open("tiny_bert.safetensors");
    let ids = golden.get("ids").to_dtype(DType::U32).unwrap();
    let types = golden.get("type_ids").to_dtype(DType::U32).unwrap();
    let keep = golden.get("mask");
    let mask = AttentionMask::keep_keys(&keep).unwrap();
    // Padding's own hidden states are nobody's business: they follow from what a padded query may see.
    let real = keep.to_dtype(DType::F32).unwrap().unsqueeze(2).unwrap();
    let want = golden.get("hidden").broadcast_mul(&real).unwrap();
    for file in ["tiny-bert", "tiny_bert_prefixed.safetensors", "tiny_bert_legacy.safetensors"] {
        let checkpoint = Checkpoint::open(fixture(file)).unwrap();
        let model = TextModel::load(&config(), checkpoint.at("", DType::F32, &CPU)).unwrap();
        for types in [Some(&types), None] {
            let hidden = model.forward(&ids, types, &mask).unwrap();
            assert_close(file, &hidden.broadcast_mul(&real).unwrap(), &want, LAYER);
        }
    }
}

#[test]
fn half_types_are_close_to_f32() {
    let want = Golden::open("tiny_bert.safetensors").get("mean_norm");
    for (dtype, tolerance) in [(DType::F64, 1e-6), (DType::F16, 5e-3), (DType::BF16, 4e-2)] {
        let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), dtype, &CPU).unwrap();
        let got = encode(&encoder, &EncodeOptions::default());
        assert_eq!(got.dtype(), if dtype == DType::F64 { DType::F64 } else { DType::F32 });
        assert_close(dtype.as_str(), &got, &want, tolerance);
    }
}

/// Each parameter that the hidden states depend on gets a gradient, layer norms included.
#[test]
fn every_parameter_gets_a_gradient() {
    let checkpoint = Checkpoint::open(fixture("tiny-bert")).unwrap();
    let map = checkpoint.to_varmap("", DType::F64, &CPU).unwrap();
    let model = TextModel::load(&config(), VarBuilder::from_varmap(&map, DType::F64, &CPU)).unwrap();
    let ids = Tensor::new(&[[2u32, 9, 5, 3], [2, 7, 3, 0]], &CPU).unwrap();
    let weighting = Random::new(40).tensor(&[2, 4, 24], DType::F64);
    let mask = AttentionMask::lengths(&[4, 3]);
    let loss = || (model.forward(&ids, None, &mask).unwrap() * &weighting).unwrap().sum_all().unwrap();
    let grads = loss().backward().unwrap();
    let variables = map.data().lock().unwrap();
    let mut checked = 0;
    for (name, variable) in variables.iter().filter(|(name, _)| !name.starts_with("pooler")) {
        let grad = numbers(grads.get(variable).unwrap_or_else(|| panic!("`{name}` has no gradient")));
        // The gradient of a key's bias is zero: it moves all scores of a query alike.
        let moves = !name.ends_with("key.bias");
        assert!(!moves || grad.iter().any(|n| n.abs() > 1e-6), "`{name}` has a zero gradient");
        // A sample of each against central differences.
        let start = variable.copy().unwrap();
        let values = numbers(&start);
        let largest = (0..grad.len()).max_by(|&a, &b| grad[a].abs().total_cmp(&grad[b].abs())).unwrap();
        let moved = |by: f64| {
            let mut values = values.clone();
            values[largest] += by;
            variable.set(&Tensor::from_vec(values, start.dims(), &CPU).unwrap()).unwrap();
            loss().to_scalar::<f64>().unwrap()
        };
        let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
        variable.set(&start).unwrap();
        assert!((difference - grad[largest]).abs() < 1e-5 + 1e-5 * difference.abs(), "`{name}`: {difference}");
        checked += 1;
    }
    assert_eq!(checked, 5 + 2 * 16);
}

#[test]
fn prompts_are_prepended_to_the_text() {
    let folder = tiny();
    let write = |text: &str| {
        std::fs::write(folder.path().join("config_sentence_transformers.json"), text).unwrap();
    };
    write(r#"{"prompts": {"query": "the cat ", "document": ""}, "default_prompt_name": null}"#);
    let encoder = load(folder.path()).unwrap();
    let plain = EncodeOptions::default();
    let by_name = encoder.encode(&["sat"], &plain.with_prompt_name("query")).unwrap();
    let by_hand = encoder.encode(&["the cat sat"], &plain).unwrap();
    assert_eq!(numbers(&by_name), numbers(&by_hand));
    assert_ne!(numbers(&by_name), numbers(&encoder.encode(&["sat"], &plain).unwrap()));
    says(encoder.encode(&["sat"], &plain.with_prompt_name("q")), &["prompt_name is q", "document or query"]);
    #[cfg(feature = "visualize")]
    {
        use candle_attention_text::MapOptions;
        let weights = |text: &str, options| encoder.attention(text, &options).unwrap().weights(0, 0).unwrap().to_vec();
        let prompted = weights("sat", MapOptions::default().with_prompt("the cat "));
        assert_eq!(prompted, weights("the cat sat", MapOptions::default()));
        let maps = |length| encoder.attention("the cat sat", &MapOptions::default().with_max_length(length));
        let cut = maps(4).unwrap();
        assert_eq!((cut.queries().len(), cut.total_tokens()), (4, Some(5)));
        assert_eq!(cut.weights(0, 0).unwrap(), weights("the cat", MapOptions::default()));
        says(maps(2), &["max_length = 2", "more than the 2 special tokens"]);
        says(maps(1 << 20), &["max_length = 1048576", "at most "]);
    }

    write(r#"{"prompts": {"query": "the cat "}, "default_prompt_name": "query"}"#);
    assert_eq!(numbers(&load(folder.path()).unwrap().encode(&["sat"], &plain).unwrap()), numbers(&by_hand));
    let pooling = r#"{"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": false}"#;
    std::fs::write(folder.path().join("1_Pooling/config.json"), pooling).unwrap();
    let without = load(folder.path()).unwrap().encode(&["sat"], &plain).unwrap();
    assert_ne!(numbers(&without), numbers(&by_hand));
    // The end of the text is no part of the prompt: of an empty text it alone counts.
    write(r#"{"prompts": {"all": "the cat sat"}}"#);
    let end = load(folder.path()).unwrap().encode(&[""], &plain.with_prompt_name("all")).unwrap();
    let last = r#"{"embedding_dimension": 24, "pooling_mode": "lasttoken"}"#;
    std::fs::write(folder.path().join("1_Pooling/config.json"), last).unwrap();
    let last = load(folder.path()).unwrap().encode(&["the cat sat"], &plain).unwrap();
    assert_close("the end", &end, &last, 1e-6);
}

#[test]
fn embeddings_are_in_input_order_and_progress_is_reported() {
    let encoder = load(&fixture("tiny-bert")).unwrap();
    let seen = std::sync::Mutex::new(Vec::new());
    let on_progress = |done, all| seen.lock().unwrap().push((done, all));
    let texts = ["a", "the cat sat on the mat", "", "hello world"];
    let options = EncodeOptions::default().with_batch_size(3);
    let together = encoder.encode(&texts, &options.with_on_progress(&on_progress)).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(3, 4), (4, 4)]);
    for (i, text) in texts.iter().enumerate() {
        assert_close(text, &together.narrow(0, i, 1).unwrap(), &encoder.encode(&[text], &options).unwrap(), 1e-6);
    }
    assert_eq!(encoder.encode(&[], &options).unwrap().dims(), [0, 24]);
    let wide = SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F64, &CPU).unwrap();
    assert_eq!(wide.encode(&[], &options).unwrap().dtype(), DType::F64);
    says(encoder.encode(&texts, &options.with_batch_size(0)), &["batch_size = 0", "at least 1"]);
}

#[test]
fn a_call_ends_at_the_batch_before_which_it_is_cancelled() {
    let encoder = load(&fixture("tiny-bert")).unwrap();
    let (done, asked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let on_progress = |texts, _| done.store(texts, Relaxed);
    // Before the tokens, and before three batches.
    let is_cancelled = || asked.fetch_add(1, Relaxed) == 3;
    let options = EncodeOptions::default().with_batch_size(1).with_on_progress(&on_progress);
    let ended = encoder.encode(&["a", "b", "c", "d"], &options.with_is_cancelled(&is_cancelled));
    assert!(matches!(ended, Err(Error::Cancelled)), "{ended:?}");
    assert_eq!((done.into_inner(), asked.into_inner()), (2, 4));
}

/// A text that cannot be tokenized stops the texts after it only: those before it are embedded first.
#[test]
fn long_texts_are_tokenized_a_few_at_a_time() {
    let encoder = load(&fixture("tiny-bert")).unwrap();
    let [long, longest] = [1 << 20, (1 << 24) + 1].map(|n| "a".repeat(n));
    let done = AtomicUsize::new(0);
    let (on_progress, is_cancelled) = (|texts: usize, _: usize| done.store(texts, Relaxed), || done.load(Relaxed) == 2);
    let options = EncodeOptions::default().with_on_progress(&on_progress);
    let texts = [&long, "a cat", &longest];
    assert!(matches!(encoder.encode(&texts, &options), Err(Error::Value { .. })));
    assert_eq!(done.load(Relaxed), 2);
    // A call that is cancelled tokenizes no more.
    let options = options.with_is_cancelled(&is_cancelled);
    assert!(matches!(encoder.encode(&texts[2..], &options), Err(Error::Cancelled)));
}

/// A server shares one value between its threads.
#[test]
fn options_are_shared_by_threads() {
    fn assert_sync<T: Sync>(_: &T) {}
    assert_sync(&EncodeOptions::default());
}

#[test]
fn token_ids_are_one_for_each_token_vector() {
    let encoder = load(&fixture("tiny-bert")).unwrap();
    let (texts, options) = (["the cat sat on the mat", ""], EncodeOptions::default().with_prompt("hello "));
    let ids = encoder.token_ids(&texts, &options).unwrap();
    let vectors = encoder.encode_tokens(&texts, &options).unwrap();
    let lengths: Vec<usize> = vectors.iter().map(|vectors| vectors.dims()[0]).collect();
    assert_eq!(ids.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
    let plain = encoder.token_ids(&texts, &EncodeOptions::default()).unwrap();
    assert_eq!([&ids[0][..1], &ids[0][2..]].concat(), plain[0]);
    let too_long = encoder.token_ids(&texts, &EncodeOptions::default().with_max_length(100_000));
    says(too_long, &["max_length = 100000", "positions"]);
}

#[test]
fn errors_name_the_wrong_file_of_a_folder() {
    type Change = fn(&Path);
    let changes: [(Change, &[&str]); 14] = [
        (|f| std::fs::remove_file(f.join("config.json")).unwrap(), &["config.json", "No such file"]),
        (|f| std::fs::remove_file(f.join("tokenizer.json")).unwrap(), &["tokenizer.json", "No such file"]),
        (|f| std::fs::remove_file(f.join("model.safetensors")).unwrap(), &["holds neither `model.safetensors`"]),
        (|f| std::fs::write(f.join("tokenizer.json"), "{}").unwrap(), &["tokenizer.json"]),
        (|f| std::fs::write(f.join("config.json"), "[]").unwrap(), &["config.json"]),
        (
            |f| edit(f, "config.json", "\"bert\"", "\"gpt2\""),
            &["config.json", "model_type = gpt2", "expected bert or roberta"],
        ),
        (
            |f| edit(f, "config.json", "\"num_attention_heads\": 4", "\"num_attention_heads\": 5"),
            &["config.json", "num_attention_heads = 5", "a divisor of hidden_size = 24"],
        ),
        (
            |f| edit(f, "config.json", "\"hidden_size\": 24", "\"hidden_size\": 28"),
            &["tensor `embeddings.word_embeddings.weight` has shape [109, 24], expected [109, 28]"],
        ),
        (
            |f| edit(f, "config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
            &["tensor `encoder.layer.2.attention.output.LayerNorm.weight` is missing"],
        ),
        (
            |f| edit(f, "config.json", "\"pad_token_id\": 0", "\"pad_token_id\": 500"),
            &["pad_token_id = 500", "less than vocab_size = 109"],
        ),
        (
            |f| edit(f, "config.json", "\"vocab_size\": 109", "\"vocab_size\": 50"),
            &["tensor `embeddings.word_embeddings.weight` has shape [109, 24], expected [50, 24]"],
        ),
        (|f| edit(f, "modules.json", "pooling.Pooling", "cnn.CNN"), &["modules.json", "module `CNN`"]),
        (|f| edit(f, "modules.json", "\"1_Pooling\"", "\"../1_Pooling\""), &["`../1_Pooling` leads out of the folder"]),
        (|f| edit(f, "1_Pooling/config.json", "\"mean\"", "\"median\""), &["1_Pooling/config.json"]),
    ];
    for (change, parts) in changes {
        let folder = tiny();
        change(folder.path());
        says(load(folder.path()), parts);
    }
    says(SentenceEncoder::from_folder(fixture("tiny-bert"), DType::U8, &CPU), &["dtype u8", "f16, bf16, f32 or f64"]);

    let checkpoint = Checkpoint::open(fixture("tiny-bert")).unwrap();
    let model = TextModel::load(&config(), checkpoint.at("", DType::F32, &CPU)).unwrap();
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::U32, &CPU).unwrap();
    let none = AttentionMask::full();
    says(model.forward(&zeros(&[1, 41]), None, &none), &["ids has shape [1, 41]", "at most 40 tokens"]);
    says(model.forward(&zeros(&[4]), None, &none), &["ids has shape [4]", "(b, s)"]);
    let ids = |id: u32| Tensor::new(&[[1, id]], &CPU).unwrap();
    says(model.forward(&ids(109), None, &none), &["the largest of ids is 109", "less than 109"]);
    says(model.forward(&ids(u32::MAX), None, &none), &["the largest of ids is 4294967295"]);
    says(model.forward(&ids(1), Some(&ids(2)), &none), &["the largest of token_type_ids is 2", "less than 2"]);
    says(model.forward(&zeros(&[1, 2]).to_dtype(DType::I64).unwrap(), None, &none), &["ids has dtype i64", "u32"]);
    says(model.forward(&zeros(&[1, 4]), Some(&zeros(&[1, 3])), &none), &["token_type_ids has shape [1, 3]"]);
    assert!(checkpoint.at("encoder", DType::F32, &CPU).names().unwrap().len() == 32);
}

fn edit(folder: &Path, file: &str, from: &str, to: &str) {
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{file} has no {from}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}
