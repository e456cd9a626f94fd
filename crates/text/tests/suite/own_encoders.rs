//! Encoders whose code is published beside their checkpoints (`tests/golden/own_encoders.py`).

use candle_attention::AttentionMask;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{
    EncodeOptions, Precision, SentenceEncoder, TextModel, TextModelConfig, quantize_embeddings,
};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::programs::copy_folder;
use crate::common::{Golden, assert_close, fixture, max_diff, says};
use crate::encoders::{Case, changed, encoder, every_parameter_learns, load};

#[test]
fn nomic_moe() {
    encoder("nomic_moe");
}

/// Where the configuration says so, the weights of a token's experts add up to 1.
#[test]
fn weights_of_experts_are_normalized_if_stated() {
    let folder = changed("nomic_moe", &[], json!({"moe_normalize_expert_weights": true}));
    let case = Case::read(&fixture("encoders/nomic_moe"), "normalized");
    let model = load(folder.path()).unwrap();
    case.check("normalized", &model);
    case.check_ragged("normalized", &model);
}

#[test]
fn every_parameter_of_a_mixture_gets_a_gradient() {
    every_parameter_learns("nomic_moe");
}

#[test]
fn mixtures_that_cannot_be_are_refused() {
    let with = |key: &str, value: Value| load(changed("nomic_moe", &[], json!({ key: value })).path());
    says(with("num_experts", Value::Null), &["num_experts = absent", "1 to 4096"]);
    says(with("num_experts", json!("five")), &["num_experts = \"five\"", "a whole number"]);
    says(with("num_experts", json!(0)), &["num_experts = 0"]);
    says(with("num_experts", json!(4)), &["mlp.router.layer.weight", "[5, 16]", "[4, 16]"]);
    says(with("moe_top_k", json!(6)), &["moe_top_k = 6", "1 to 5, the number of experts (`num_experts`)"]);
    says(with("moe_top_k", json!(0)), &["moe_top_k = 0"]);
    says(with("moe_every_n_layers", json!(1)), &["moe_every_n_layers = 1", "0, or at least 2"]);
    says(with("moe_every_n_layers", json!(3)), &["encoder.layers.3.mlp.fc1"]);
    says(with("moe_normalize_expert_weights", json!(2)), &["moe_normalize_expert_weights = 2", "true or false"]);
    says(with("num_shared_experts", json!(1)), &["num_shared_experts = 1", "expected false, or absent"]);
    says(with("expert_choice_router", json!(true)), &["expert_choice_router = true"]);
    says(with("ffn_div", json!(2)), &["ffn_div = 2", "1, or absent"]);

    let folder = changed("nomic_moe", &[], json!({}));
    let tensors = candle_core::safetensors::load(folder.path().join("model.safetensors"), &candle_core::Device::Cpu);
    let mut tensors = tensors.unwrap();
    tensors.remove("encoder.layers.3.mlp.experts.mlp.w2").unwrap();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    assert!(Checkpoint::open(folder.path()).is_ok());
    says(load(folder.path()), &["encoder.layers.3.mlp.experts.mlp.w2"]);
}

/// Qwen 3 that sees both ways, and with a projection of each token.
#[test]
fn qwen3_both_ways() {
    encoder("pplx");
    encoder("voyage");
    every_parameter_learns("voyage");
    let with = |name: &str, without: &[&str], with: Value| load(changed(name, without, with).path());
    says(with("pplx", &[], json!({"use_bidirectional_attention": false})), &["use_bidirectional_attention = false"]);
    says(with("voyage", &["num_labels"], json!({})), &["num_labels = absent", "the size of an embedding"]);
    says(with("voyage", &[], json!({"num_labels": 0})), &["num_labels = 0"]);
    says(with("voyage", &[], json!({"num_labels": 7})), &["linear.weight", "[24, 16]", "[7, 16]"]);
    // Another class of another author may see as it likes.
    says(with("voyage", &[], json!({"auto_map": {"AutoModel": "modeling.Other"}})), &["auto_map = stated alone"]);
}

#[test]
fn lfm2_bidirectional() {
    encoder("lfm2_bidirectional");
    // As later versions of transformers name it.
    let newer = changed("lfm2_bidirectional", &["auto_map"], json!({"model_type": "lfm2_bidirectional"}));
    let case = Case::read(&fixture("encoders/lfm2_bidirectional"), "hidden");
    case.check_ragged("newer", &load(newer.path()).unwrap());
    // Of a model that fills in masked tokens.
    let headed =
        changed("lfm2_bidirectional", &["auto_map"], json!({"architectures": ["Lfm2BidirectionalForMaskedLM"]}));
    let file = headed.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let tensors = tensors.into_iter().map(|(name, tensor)| (format!("lfm2.{name}"), tensor)).collect();
    candle_core::safetensors::save(&tensors, &file).unwrap();
    case.check_ragged("with a head", &load(headed.path()).unwrap());
    // By the list of layers with attention, as earlier ones.
    let listed = changed("lfm2_bidirectional", &["layer_types"], json!({"full_attn_idxs": [1]}));
    case.check_ragged("listed", &load(listed.path()).unwrap());
}

/// The layer alone knows by the class of the model that tokens see later ones.
#[test]
fn a_layer_of_lfm2_sees_as_its_model_does() {
    let folder = fixture("encoders/lfm2_bidirectional");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let layer = |config: &str| {
        let (checkpoint, config) = (Checkpoint::open(&folder).unwrap(), serde_json::from_str::<Value>(config).unwrap());
        checkpoint.attention_with("layers.1.self_attn", &config, DType::F32, &Device::Cpu).unwrap().layer
    };
    assert!(layer(&config).config().mask.is_full());
    let causal = config.replace("Lfm2BidirectionalModel", "Lfm2Model");
    assert_eq!(layer(&causal).config().mask, AttentionMask::causal());
}

/// The first `visible` tokens are what the others attend to; a convolution reads all of them, and no padding.
#[test]
fn convolutions_need_the_lengths_of_sequences() {
    let model = load(&fixture("encoders/lfm2_bidirectional")).unwrap();
    assert_eq!(model.heads(), [0, 4, 0]);
    let ids = Tensor::new(&[[5u32, 7, 9], [6, 8, 0]], &Device::Cpu).unwrap();
    let run = |mask: AttentionMask| model.forward(&ids, None, &mask);
    let by_padding = run(AttentionMask::padding(&[3, 2])).unwrap();
    let by_lengths = run(AttentionMask::lengths(&[3, 2])).unwrap();
    let texts = |t: &Tensor| t.get(1).unwrap().narrow(0, 0, 2).unwrap();
    assert_eq!(max_diff(&texts(&by_padding), &texts(&by_lengths)), 0.0);
    assert!(max_diff(&texts(&run(AttentionMask::full()).unwrap()), &texts(&by_lengths)) > 1e-3);
    let keep = AttentionMask::keep_keys(&Tensor::new(&[[1u8, 1, 1], [1, 1, 0]], &Device::Cpu).unwrap()).unwrap();
    says(run(keep), &["the mask", "the lengths of 2 sequences alone"]);
}

#[test]
fn convolutions_that_cannot_be_are_refused() {
    let with = |key: &str, value: Value| load(changed("lfm2", &[], json!({ key: value })).path());
    says(with("conv_L_cache", json!(0)), &["conv_L_cache = 0", "1 to 256"]);
    says(with("conv_L_cache", json!(5)), &["layers.0.conv.conv.weight", "[16, 1, 4]", "[16, 1, 5]"]);
    says(with("conv_bias", json!(false)), &["layers.0.conv.in_proj.bias", "`conv_bias` = false"]);
    says(with("layer_types", json!(["conv", "mamba", "conv"])), &["layer_types = \"mamba\"", "conv or full_attention"]);
    says(with("layer_types", json!(["conv", "conv", "conv"])), &["layer_types", "a layer with attention"]);
    says(with("block_multiple_of", json!(0)), &["block_multiple_of = 0"]);
    says(with("block_ffn_dim_multiplier", json!(-1)), &["block_ffn_dim_multiplier = -1"]);
    says(with("block_auto_adjust_ff_dim", json!(1)), &["block_auto_adjust_ff_dim = 1", "true or false"]);
    says(with("block_auto_adjust_ff_dim", json!(false)), &["feed_forward.w1.weight", "[30, 16]"]);
}

fn texts() -> Vec<String> {
    serde_json::from_slice(&std::fs::read(fixture("sentence_models.json")).unwrap()).unwrap()
}

/// pplx-embed gives whole numbers from -127 to 127, alone and in any batch.
#[test]
fn pplx_gives_numbers_of_int8() {
    let encoder = SentenceEncoder::from_folder(fixture("own_sentences/pplx"), DType::F32, &Device::Cpu).unwrap();
    let (texts, options) = (texts(), EncodeOptions::default());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let got = encoder.encode(&texts, &options).unwrap();
    let want = Golden::open("own_sentences.safetensors").get("pplx");
    assert_eq!(max_diff(&got, &want), 0.0);
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(max_diff(&encoder.encode(&[text], &options).unwrap(), &want.narrow(0, i, 1).unwrap()), 0.0);
    }
    assert!(quantize_embeddings(&got, Precision::Ubinary, None).is_ok());
}

/// As voyage-4-nano: what is pooled is the projection, which is wider than the model.
#[test]
fn voyage_pools_projected_tokens() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("own_sentences/pplx"), folder.path());
    let edit = |file: &str, change: &dyn Fn(&mut Value)| {
        let path = folder.path().join(file);
        let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(path, json.to_string()).unwrap();
    };
    edit("modules.json", &|modules| {
        modules.as_array_mut().unwrap().truncate(2);
    });
    let open = || SentenceEncoder::from_folder(folder.path(), DType::F32, &Device::Cpu);
    let (pooled, texts) = (open().unwrap(), ["cats", "hello world, it's warm"]);
    edit("config.json", &|config| {
        config["model_type"] = json!("qwen3");
        config["auto_map"] = json!({"AutoModel": "modeling_qwen3_bidirectional.Qwen3BidirectionalModel"});
        config["num_labels"] = json!(32);
    });
    says(open(), &["linear.weight"]);
    let file = folder.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let mut tensors: std::collections::HashMap<_, _> =
        tensors.into_iter().map(|(name, tensor)| (format!("model.{name}"), tensor)).collect();
    let identity = Tensor::eye(16, DType::F32, &Device::Cpu).unwrap();
    let linear = Tensor::cat(&[&identity, &(&identity * 2.0).unwrap()], 0).unwrap();
    tensors.insert("linear.weight".to_string(), linear);
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let projected = open().unwrap();
    assert_eq!(projected.embedding_size(), 32);
    let encode = |encoder: &SentenceEncoder| encoder.encode(&texts, &EncodeOptions::default()).unwrap();
    let (narrow, wide) = (encode(&pooled), encode(&projected));
    assert_close("first half", &wide.narrow(1, 0, 16).unwrap(), &narrow, 1e-6);
    assert_close("second half", &wide.narrow(1, 16, 16).unwrap(), &(narrow * 2.0).unwrap(), 1e-6);
}

/// A frozen copy has the bits of the model; half types and f64 run; heads can be removed from a mixture.
#[test]
fn copies_and_other_dtypes_compute_the_same() {
    for name in ["nomic_moe", "voyage", "lfm2_bidirectional", "embedding_gemma2_text"] {
        let folder = fixture(&format!("encoders/{name}"));
        let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let ids = [3u32, 9, 5, 7, 8, 6, 4];
        let run = |model: &TextModel| model.forward_ragged(&ids, &[0; 7], &[5, 2]).unwrap();
        let packed = TextModel::load(&config, checkpoint.at("", DType::F32, &Device::Cpu)).unwrap();
        let shared = TextModel::load(&config, checkpoint.var_builder(DType::F32, &Device::Cpu)).unwrap();
        let want = run(&packed);
        assert_eq!(max_diff(&run(&shared), &want), 0.0, "{name}");
        assert_eq!(max_diff(&run(&shared.frozen().unwrap()), &want), 0.0, "{name}");
        assert_eq!(max_diff(&run(&packed.clone().with_shared_weights(&shared).unwrap()), &want), 0.0, "{name}");
        for (dtype, tolerance) in [(DType::F64, 1e-5), (DType::BF16, 0.3)] {
            let other = run(&TextModel::load(&config, checkpoint.at("", dtype, &Device::Cpu)).unwrap());
            assert_close(&format!("{name}, {dtype:?}"), &other.to_dtype(DType::F32).unwrap(), &want, tolerance);
        }
    }
    let model = load(&fixture("encoders/nomic_moe")).unwrap();
    let pruned = model.prune_heads(&[(1, 2), (3, 0)].into_iter().collect()).unwrap();
    assert_eq!(pruned.heads(), [4, 3, 4, 3]);
    let lfm2 = load(&fixture("encoders/lfm2_bidirectional")).unwrap();
    says(lfm2.prune_heads(&[(0, 0)].into_iter().collect()), &["layer 0"]);
}

/// The text model of EmbeddingGemma 2 as a part of the model with images and sounds.
#[test]
fn embedding_gemma2_inside_of_the_whole_model() {
    let folder = changed("embedding_gemma2_text", &[], json!({}));
    let path = folder.path().join("config.json");
    let text: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let whole = json!({"model_type": "embedding_gemma2", "architectures": ["EmbeddingGemma2Model"],
        "image_token_id": 30, "vision_config": {"model_type": "gemma4_vision"}, "text_config": text});
    std::fs::write(&path, whole.to_string()).unwrap();
    let file = folder.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let tensors = tensors.into_iter().map(|(name, tensor)| (format!("language_model.{name}"), tensor)).collect();
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let case = Case::read(&fixture("encoders/embedding_gemma2_text"), "hidden");
    case.check_ragged("whole", &load(folder.path()).unwrap());
    // The sizes of wider layers, as a configuration is built from them.
    let built = json!({"global_head_dim": 8, "num_global_key_value_heads": 1});
    let built = changed("embedding_gemma2_text", &["per_layer_config"], built);
    case.check_ragged("built", &load(built.path()).unwrap());
    std::fs::write(&path, json!({"model_type": "embedding_gemma2"}).to_string()).unwrap();
    says(load(folder.path()), &["text_config = absent"]);
    let with = |key: &str, value: Value| load(changed("embedding_gemma2_text", &[], json!({ key: value })).path());
    says(with("hidden_size_per_layer_input", json!(4)), &["ple.per_layer_model_projection.weight", "[12, 16]"]);
    says(with("hidden_size_per_layer_input", json!(0)), &["hidden_size_per_layer_input = 0"]);
    says(with("embedding_dim", json!(3)), &["embedding_projection.weight", "[3, 16]"]);
}
