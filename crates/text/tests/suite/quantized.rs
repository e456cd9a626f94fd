//! Models with weights in few bits: quantized when they are loaded, and written in int8.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{Checkpoint, CheckpointSource};
use candle_attention::io::read_json;
use candle_attention::{AttentionMask, ComputeType, Quantization};
use candle_attention_text::{
    EncodeOptions, MaskedLm, SentenceEncoder, SequenceClassifier, TextModel, TextModelConfig, fingerprint,
    int8_weights, write_int8, write_pruned,
};
use candle_core::{DType, Device, Tensor};

use crate::common::{fixture, numbers, says};

const CPU: Device = Device::Cpu;
const TEXTS: [&str; 4] = ["a cat sleeps", "the dog barks at the cat", "a", "birds sing in the morning and dogs sleep"];

fn tiny() -> PathBuf {
    fixture("tiny-bert")
}

fn encode(encoder: &SentenceEncoder, texts: &[&str]) -> Vec<Vec<f32>> {
    encoder.encode(texts, &EncodeOptions::default()).unwrap().to_vec2().unwrap()
}

/// The embeddings of the model in a folder.
fn embeddings(folder: &Path, compute_type: impl Into<ComputeType>) -> Vec<Vec<f32>> {
    encode(&SentenceEncoder::from_folder(folder, compute_type, &CPU).unwrap(), &TEXTS)
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn a_quantized_encoder_is_near_the_exact_one_and_batches_change_no_bit() {
    let exact = encode(&SentenceEncoder::embedded(DType::F32, &CPU).unwrap(), &TEXTS);
    for (format, least) in [(Quantization::Int8, 0.99), (Quantization::Q8_0, 0.99), (Quantization::Q4_0, 0.8)] {
        let encoder = SentenceEncoder::embedded(format, &CPU).unwrap();
        assert!(format!("{encoder:?}").contains(&format!("quantization: {format}")), "{encoder:?}");
        let together = encode(&encoder, &TEXTS);
        for (i, text) in TEXTS.iter().enumerate() {
            assert!(cosine(&together[i], &exact[i]) > least, "{format}: {}", cosine(&together[i], &exact[i]));
            assert_eq!(encode(&encoder, &[text])[0], together[i], "{format}: alone");
        }
        assert_ne!(together, exact);
    }
    // Its width is no multiple of 32: nothing is quantized.
    assert_eq!(embeddings(&tiny(), Quantization::Q8_0), embeddings(&tiny(), DType::F32));
}

/// Every family of encoders: layers that are shared, gated, mixed or convolved; tables of other widths.
#[test]
fn all_families_run_in_int8() {
    for name in
        ["albert", "deberta_v2", "embedding_gemma2_text", "gemma3_text", "lfm2", "modernbert", "nomic_moe", "t5_gated"]
    {
        let folder = fixture("encoders").join(name);
        let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let load = |compute_type: ComputeType| TextModel::load(&config, checkpoint.at("", compute_type, &CPU)).unwrap();
        let (exact, int8) = (load(DType::F32.into()), load(Quantization::Int8.into()));
        assert_eq!((exact.quantization(), int8.quantization()), (None, Some(Quantization::Int8)), "{name}");
        let (ids, types, lengths) = ([5u32, 9, 7, 6, 8, 4, 11], [0; 7], [4, 3]);
        let run = |model: &TextModel| model.forward_ragged(&ids, &types, &lengths).unwrap();
        let (want, got) = (run(&exact), run(&int8));
        for (want, got) in want.to_vec2::<f32>().unwrap().iter().zip(&got.to_vec2().unwrap()) {
            assert!(cosine(got, want) > 0.95, "{name}: {}", cosine(got, want));
        }
        let second = int8.forward_ragged(&ids[4..], &types[4..], &lengths[1..]).unwrap();
        assert_eq!(numbers(&second), numbers(&got.narrow(0, 4, 3).unwrap()), "{name}: alone");
        assert_eq!(numbers(&run(&int8.frozen().unwrap())), numbers(&got), "{name}: a frozen copy");
    }
}

/// A head that is tied to quantized word embeddings, and one that is not quantized.
#[test]
fn heads_run_on_quantized_models() {
    let ids = Tensor::new(&[[5u32, 9, 7, 6, 8]], &CPU).unwrap();
    let near = |name: &str, forward: &dyn Fn(&TextModelConfig, CheckpointSource) -> Tensor| {
        let folder = fixture("encoders").join(name);
        let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let logits = |compute_type: ComputeType| {
            let logits = forward(&config, checkpoint.at("", compute_type, &CPU)).flatten_all().unwrap();
            logits.to_vec1::<f32>().unwrap()
        };
        let (exact, int8) = (logits(DType::F32.into()), logits(Quantization::Int8.into()));
        assert_ne!(exact, int8, "{name}");
        assert!(cosine(&exact, &int8) > 0.99, "{name}: {}", cosine(&exact, &int8));
    };
    near("bert_mlm", &|config, source| {
        MaskedLm::load(config, source).unwrap().forward(&ids, None, &AttentionMask::full()).unwrap()
    });
    near("modernbert_mlm", &|config, source| {
        MaskedLm::load(config, source).unwrap().forward(&ids, None, &AttentionMask::full()).unwrap()
    });
    near("roberta_classifier", &|config, source| {
        SequenceClassifier::load(config, source).unwrap().forward(&ids, None, &[5]).unwrap()
    });
}

#[test]
fn a_folder_written_in_int8_is_loaded_as_it_was_quantized() {
    let parent = tempfile::tempdir().unwrap();
    let (all, some) = (parent.path().join("all"), parent.path().join("some"));
    let names = int8_weights(tiny()).unwrap();
    assert_eq!(write_int8(tiny(), &all, |_| true).unwrap(), names);
    assert!(names.contains(&"embeddings.word_embeddings.weight".to_string()), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("pooler") || name.contains("position")), "{names:?}");
    // Nothing is rounded again.
    let want = embeddings(&tiny(), Quantization::Int8);
    assert_eq!(embeddings(&all, ComputeType::default()), want);
    assert_eq!(embeddings(&all, Quantization::Int8), want);
    // In a dtype it is dequantized.
    for dtype in [DType::F32, DType::BF16] {
        let encoder = SentenceEncoder::from_folder(&all, dtype, &CPU).unwrap();
        assert!(!format!("{encoder:?}").contains("int8"), "{encoder:?}");
        let got = embeddings(&all, dtype);
        assert!(got != want && cosine(&got[0], &want[0]) > 0.99, "{dtype:?}");
    }
    // Written once more, it has the same bits.
    let again = parent.path().join("again");
    write_int8(&all, &again, |_| true).unwrap();
    for file in ["model.safetensors", "config.json"] {
        assert!(std::fs::read(all.join(file)).unwrap() == std::fs::read(again.join(file)).unwrap(), "{file}");
    }

    let keeps = |name: &str| name.starts_with("encoder.layer.0.") || name.contains("intermediate");
    let int8 = write_int8(tiny(), &some, |name| !keeps(name)).unwrap();
    assert!(!int8.is_empty() && int8.len() < names.len());
    let names: HashSet<String> = names.into_iter().collect();
    let source = Checkpoint::open(tiny()).unwrap().at("", DType::F32, &CPU);
    let source = source.with_quantization(move |name| (!keeps(name)).then_some(Quantization::Int8));
    let source = source.with_rounding(move |name| (keeps(name) && names.contains(name)).then_some(DType::BF16));
    let want = encode(&SentenceEncoder::load(tiny(), source).unwrap(), &TEXTS);
    assert_eq!(embeddings(&some, ComputeType::default()), want);
    assert_eq!(embeddings(&some, Quantization::Int8), want, "what the folder keeps is not quantized");
    let written = Checkpoint::open(&some).unwrap();
    let stored = |name: &str| written.tensor(name, &CPU).unwrap().dtype();
    assert_eq!(stored("encoder.layer.0.output.dense.weight"), DType::BF16);
    assert_eq!(stored("encoder.layer.0.output.dense.bias"), DType::F32);
    let config: serde_json::Value = read_json(&some.join("config.json")).unwrap();
    let stated = &config["quantization_config"];
    assert_eq!([&stated["quant_method"], &stated["format"]], ["compressed-tensors", "int-quantized"]);
    let ignored = stated["ignore"].as_array().unwrap();
    assert!(ignored.iter().any(|module| module == "encoder.layer.0.attention.self.query"), "{ignored:?}");
    assert_eq!(stated["config_groups"]["group_1"]["targets"][0], "embeddings.word_embeddings");

    assert!(write_int8(tiny(), &some, |_| true).is_err(), "a folder is never replaced");
    assert!(write_int8(tiny(), parent.path().join("none"), |_| false).is_err());
    assert!(!parent.path().join("none").exists());
    let prints = [tiny(), all, some].map(|folder| fingerprint(folder).unwrap());
    assert!(prints[0] != prints[1] && prints[1] != prints[2]);
}

/// Beside a weight in int8 the format has names of its own, under which some files have leftovers of another one.
#[test]
fn leftovers_beside_a_weight_are_refused() {
    let parent = tempfile::tempdir().unwrap();
    let copied = parent.path().join("source");
    std::fs::create_dir(&copied).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(tiny().join(file), copied.join(file)).unwrap();
    }
    for (leftover, dims, dtype) in [
        ("encoder.layer.0.intermediate.dense.weight_scale", [40, 1], DType::F32),
        ("embeddings.word_embeddings.weight_scale", [40, 1], DType::F32),
        ("encoder.layer.1.output.dense.weight_zero_point", [24, 1], DType::F32),
        ("encoder.layer.0.attention.self.key.weight_g_idx", [24, 1], DType::I64),
        ("encoder.layer.0.attention.self.key.input_scale", [1, 1], DType::F32),
    ] {
        let mut tensors = candle_core::safetensors::load(tiny().join("model.safetensors"), &CPU).unwrap();
        tensors.insert(leftover.to_string(), Tensor::ones(&dims, dtype, &CPU).unwrap());
        candle_core::safetensors::save(&tensors, copied.join("model.safetensors")).unwrap();
        let written = parent.path().join("written");
        says(write_int8(&copied, &written, |_| true), &[leftover]);
        assert!(!written.exists(), "{leftover}");
    }
}

/// What is kept of a model in f16 has more bits there than in bf16. MLX's key would go before the one that is written.
#[test]
fn kept_weights_stay_in_f16_and_no_other_quantization_is_stated() {
    let parent = tempfile::tempdir().unwrap();
    let (half, int8) = (parent.path().join("half"), parent.path().join("int8"));
    std::fs::create_dir(&half).unwrap();
    std::fs::copy(tiny().join("tokenizer.json"), half.join("tokenizer.json")).unwrap();
    let tensors = candle_core::safetensors::load(tiny().join("model.safetensors"), &CPU).unwrap();
    let tensors: HashMap<String, Tensor> =
        tensors.into_iter().map(|(name, tensor)| (name, tensor.to_dtype(DType::F16).unwrap())).collect();
    candle_core::safetensors::save(&tensors, half.join("model.safetensors")).unwrap();
    let mut config: serde_json::Value = read_json(&tiny().join("config.json")).unwrap();
    config["quantization"] = serde_json::json!({"group_size": 64, "bits": 4});
    std::fs::write(half.join("config.json"), config.to_string()).unwrap();

    let is_int8 = |name: &str| !name.contains("layer.0.");
    write_int8(&half, &int8, is_int8).unwrap();
    let written: serde_json::Value = read_json(&int8.join("config.json")).unwrap();
    assert!(written.get("quantization").is_none() && written.get("quantization_config").is_some());
    let (before, after) = (Checkpoint::open(&half).unwrap(), Checkpoint::open(&int8).unwrap());
    let kept = "encoder.layer.0.output.dense.weight";
    let [before, after] = [before, after].map(|checkpoint| checkpoint.tensor(kept, &CPU).unwrap());
    assert_eq!((after.dtype(), numbers(&after)), (DType::F16, numbers(&before)));
    // As without writing it.
    let loaded = candle_attention_text::load_int8(&half, is_int8, |name| !is_int8(name)).unwrap();
    assert_eq!(embeddings(&int8, ComputeType::default()), encode(&loaded, &TEXTS));
}

/// What the format of written folders has no place for: experts stay as they are, adapters for tasks are refused.
#[test]
fn weights_that_are_no_modules_are_not_written_in_int8() {
    let names = int8_weights(fixture("encoders/nomic_moe")).unwrap();
    assert!(names.iter().any(|name| name.contains("fc1")) && !names.iter().any(|name| name.contains("experts")));
    says(int8_weights(fixture("lora/jina_tasks")), &["jina_tasks", "adapters for tasks", "not written"]);
    let encoder = SentenceEncoder::from_folder(fixture("lora/jina_tasks"), Quantization::Int8, &CPU).unwrap();
    assert!(format!("{encoder:?}").contains("quantization: int8"), "{encoder:?}");
}

/// What stands for other weights is plain tensors: pruned, they are written as these.
#[test]
fn a_quantized_model_is_pruned() {
    let parent = tempfile::tempdir().unwrap();
    let (int8, pruned) = (parent.path().join("int8"), parent.path().join("pruned"));
    write_int8(tiny(), &int8, |_| true).unwrap();
    let heads = "{\"0\":[1]}".parse::<serde_json::Value>().unwrap();
    write_pruned(&int8, &pruned, &serde_json::from_value(heads).unwrap()).unwrap();
    let config: serde_json::Value = read_json(&pruned.join("config.json")).unwrap();
    assert!(config.get("quantization_config").is_none());
    let encoder = SentenceEncoder::from_folder(&pruned, DType::F32, &CPU).unwrap();
    assert!(!format!("{encoder:?}").contains("int8"));
}

#[test]
fn weights_that_are_not_finite_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        if tiny().join(file).exists() {
            std::fs::copy(tiny().join(file), folder.path().join(file)).unwrap();
        }
    }
    for name in ["embeddings.word_embeddings.weight", "encoder.layer.1.output.dense.weight"] {
        let mut tensors = candle_core::safetensors::load(tiny().join("model.safetensors"), &CPU).unwrap();
        let ones = Tensor::ones(tensors[name].dims(), DType::F32, &CPU).unwrap();
        tensors.insert(name.to_string(), (ones / 0.0).unwrap());
        candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
        let error = SentenceEncoder::from_folder(folder.path(), Quantization::Int8, &CPU).unwrap_err().to_string();
        assert!(error.contains("inf") && error.lines().count() == 1, "{error}");
    }
}

/// The mean cosine of the embeddings of a published model to the exact ones.
#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn minilm_in_few_bits_is_near_the_exact_one() {
    let folder =
        PathBuf::from(std::env::var_os("CANDLE_ATTENTION_MINILM").expect("CANDLE_ATTENTION_MINILM is not set"));
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("minilm_sentences.json")).unwrap()).unwrap();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let run = |compute_type: ComputeType| {
        let encoder = SentenceEncoder::from_folder(&folder, compute_type, &CPU).unwrap();
        encode(&encoder, &texts)
    };
    let exact = run(DType::F32.into());
    // Short texts, which lose the most.
    for (format, least) in [(Quantization::Int8, 0.99), (Quantization::Q8_0, 0.998), (Quantization::Q4_0, 0.94)] {
        let cosines: Vec<f32> = run(format.into()).iter().zip(&exact).map(|(got, want)| cosine(got, want)).collect();
        let mean = cosines.iter().sum::<f32>() / cosines.len() as f32;
        let worst = cosines.iter().copied().fold(1.0, f32::min);
        println!("{format}: mean cosine {mean}, smallest {worst}");
        assert!(mean >= least, "{format}: {mean}");
    }
}
