//! One layer from every source of weights: a file, bytes, a `VarBuilder`, variables; with tables that layers share.

use std::path::Path;

use candle_attention::checkpoint::{
    Checkpoint, ModelAttention, VarMapSource, WeightSource, config_from_json, infer_config,
};
use candle_attention::{AttentionConfig, AttentionMask, HeadNorm, MultiHeadAttention, NormKind, NormOver};
use candle_attention_text::{
    CrossEncoder, EncodeOptions, FillMask, MaskedLm, SentenceEncoder, SequenceClassifier, TextClassifier, TextModel,
    TextModelConfig,
};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Files, assert_close, family_config, fixture, says};

const CPU: Device = Device::Cpu;

/// A fixture of a family as a file, whose folder must be kept, with its bytes and its configuration.
fn family(name: &str) -> (TempDir, Checkpoint, Vec<u8>, Value) {
    let bytes = Files::open("families.safetensors").bytes(name);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, &bytes).unwrap();
    let checkpoint = Checkpoint::open(path).unwrap();
    let json = family_config(&checkpoint);
    (folder, checkpoint, bytes, json)
}

/// `(1, 10, width)`: BEiT takes 9 patches and a class token.
fn tokens(width: usize) -> Tensor {
    let numbers = (0..10 * width).map(|i| ((i * 7 + 3) % 11) as f32 / 11.0 - 0.5);
    Tensor::from_iter(numbers, &CPU).unwrap().reshape((1, 10, width)).unwrap()
}

fn output(model: &ModelAttention) -> Tensor {
    model.forward(&tokens(model.layer.config().hidden_size)).unwrap()
}

/// Layers whose tables stand in the first layer (T5), next to the layers (MPNet, DeBERTa, BEiT), and without a table.
#[test]
fn every_source_gives_the_same_layer() {
    for (name, prefix) in [
        ("t5", "encoder.block.1.layer.0.SelfAttention"),
        ("mpnet", "encoder.layer.0.attention.attn"),
        ("deberta", "encoder.layer.0.attention"),
        ("beit_shared", "encoder.layer.0.attention"),
        ("gemma3", "model.layers.1.self_attn"),
    ] {
        let (_folder, checkpoint, bytes, json) = family(name);
        let want = checkpoint.attention_with(prefix, &json, DType::F32, &CPU).unwrap();
        let same = |what: &str, got: &ModelAttention| {
            assert_eq!(got.layer.config(), want.layer.config(), "{name} {what}");
            assert_eq!(got.layout.name(), want.layout.name());
            assert_close(&format!("{name} {what}"), &output(got), &output(&want), 0.0);
        };
        let owned = Checkpoint::from_bytes(bytes.clone()).unwrap();
        assert!(owned.path().is_none() && owned.metadata() == checkpoint.metadata());
        same("from bytes", &owned.attention_with(prefix, &json, DType::F32, &CPU).unwrap());
        let leaked: &'static [u8] = bytes.clone().leak();
        let borrowed = Checkpoint::from_bytes(leaked).unwrap();
        same("from static bytes", &borrowed.attention_with(prefix, &json, DType::F32, &CPU).unwrap());
        let vb = checkpoint.var_builder(DType::F32, &CPU);
        same("from its VarBuilder", &ModelAttention::load(&json, vb.pp(prefix)).unwrap());
        let vb = VarBuilder::from_buffered_safetensors(bytes, DType::F32, &CPU).unwrap();
        same("from candle's VarBuilder", &ModelAttention::load(&json, vb.pp(prefix)).unwrap());
        // Without config.json: what it would say is given.
        let config = config_from_json(&json, &vb.pp(prefix)).unwrap().config;
        let layer = MultiHeadAttention::load(&config, vb.pp(prefix)).unwrap();
        let got = layer.forward(&tokens(config.hidden_size)).unwrap();
        assert_close(&format!("{name} by its configuration"), &got, &output(&want), 0.0);

        let map = checkpoint.to_varmap("", DType::F32, &CPU).unwrap();
        let source = VarMapSource::new(&map).at(prefix);
        let model = ModelAttention::load(&json, source.clone()).unwrap();
        assert_close(name, &output(&model), &output(&want), 1e-6);
        let layer = MultiHeadAttention::load(&config, VarBuilder::from_varmap(&map, DType::F32, &CPU).pp(prefix));
        assert_close(name, &layer.unwrap().forward(&tokens(config.hidden_size)).unwrap(), &output(&want), 1e-6);
        // Everything that the layer reads learns, the shared tables too.
        let gradients = output(&model).sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let weights = model.layer.weights().unwrap();
        let mut learned = 0;
        for (part, tensor) in weights.position.iter().chain([("o_proj", &weights.o.weight)]) {
            let gradient = gradients.get(tensor).unwrap_or_else(|| panic!("{name} {part}: no gradient"));
            assert!(gradient.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap() > 0.0, "{name} {part}");
            learned += 1;
        }
        assert_eq!(learned > 1, name != "gemma3", "{name}");
        // The map holds what it held: reading adds no variable.
        assert_eq!(
            map.data().lock().unwrap().len(),
            checkpoint.to_varmap("", DType::F32, &CPU).unwrap().data().lock().unwrap().len()
        );
    }
}

#[test]
fn trained_layer_is_written_and_read_again() {
    let (_folder, checkpoint, _, json) = family("qwen3");
    let prefix = "model.layers.0.self_attn";
    let map = checkpoint.to_varmap(prefix, DType::F32, &CPU).unwrap();
    let source = VarMapSource::new(&map).at(prefix);
    assert_eq!(source.names().unwrap().len(), checkpoint.at(prefix, DType::F32, &CPU).names().unwrap().len());
    let before = output(&ModelAttention::load(&json, source.clone()).unwrap());
    for variable in map.all_vars() {
        variable.set(&(variable.as_tensor() * 1.25).unwrap()).unwrap();
    }
    let trained = output(&ModelAttention::load(&json, source).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    map.save(&path).unwrap();
    let again = Checkpoint::open(&path).unwrap().attention_with(prefix, &json, DType::F32, &CPU).unwrap();
    assert_close("written", &output(&again), &trained, 1e-6);
    assert!(crate::common::max_diff(&trained, &before) > 1e-3);
}

/// A source that cannot tell what is asked of it says so, and what to take instead.
#[test]
fn errors_of_sources_say_what_to_do() {
    let (_folder, checkpoint, bytes, json) = family("qwen3");
    let prefix = "model.layers.0.self_attn";
    let map = checkpoint.to_varmap("", DType::F32, &CPU).unwrap();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &CPU);
    says(
        ModelAttention::load(&json, vb.pp(prefix)),
        &["tensor `model.layers.0.self_attn.o_proj.weight`", "VarBuilder::from_varmap", "VarMapSource::new(&map)"],
    );
    says(infer_config(&vb.pp(prefix), 4), &["does not tell shapes", "VarMapSource::new(&map)"]);

    says(
        checkpoint.to_varmap("model.layers.0.attn", DType::F32, &CPU),
        &["`model.layers.0.attn`", "`model.layers.0` has `self_attn`"],
    );
    says(checkpoint.to_varmap("typo", DType::F32, &CPU), &["`typo`", "the checkpoint has", "`model`"]);
    // Part of a component is none of it.
    says(checkpoint.to_varmap("mod", DType::F32, &CPU), &["`mod`"]);

    let empty = VarMapSource::new(&VarMap::new());
    says(ModelAttention::load(&json, empty.at(prefix)), &["no known attention layout", prefix]);

    says(Checkpoint::from_bytes(bytes[..bytes.len() - 1].to_vec()), &["<bytes>: not a valid safetensors file"]);
    says(Checkpoint::from_bytes(bytes[..7].to_vec()), &["<bytes>: not a valid safetensors file"]);
    let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let twice = [&(header.len() as u64).to_le_bytes(), header.as_slice(), &[0; 4]].concat();
    says(Checkpoint::from_bytes(twice), &["<bytes>", "tensor `a` is listed twice"]);
}

/// What the configuration of a loaded layer says is what its checkpoint holds, and a default that is stated is no
/// difference.
#[test]
fn configuration_of_a_loaded_layer_is_that_of_its_weights() {
    let bias = |name: &str, prefix: &str| {
        let (_folder, checkpoint, _, json) = family(name);
        let vb = checkpoint.var_builder(DType::F32, &CPU).pp(prefix);
        let asked = config_from_json(&json, &vb).unwrap().config;
        let layer = ModelAttention::load(&json, vb).unwrap().layer;
        assert_eq!(asked, *layer.config(), "{name}");
        let bias = layer.config().bias;
        [bias.q, bias.k, bias.v, bias.o]
    };
    assert_eq!(bias("whisper", "model.encoder.layers.0.self_attn"), [true, false, true, true]);
    assert_eq!(bias("bert", "encoder.layer.0.attention"), [true; 4]);
    assert_eq!(bias("deberta", "encoder.layer.0.attention"), [true, false, true, true]);
    assert_eq!(bias("qwen2", "model.layers.0.self_attn"), [true, true, true, false]);
    assert_eq!(bias("gemma", "model.layers.0.self_attn"), [false; 4]);
    assert_eq!(bias("mpt", "transformer.blocks.0.attn"), [false; 4]);

    let short = AttentionConfig::new(24, 4);
    let long = short.clone().with_head_dim(6).with_num_key_value_heads(4).with_key_size(24).with_scale(6f64.powf(-0.5));
    assert_eq!(short, long);
    assert_ne!(short, long.clone().with_value_size(8));
    assert_ne!(short, long.clone().with_scale(1.0));
    assert_ne!(short, long.with_dropout(0.1));
}

/// Norms over one head, where the configuration has them over all heads, and the other way round, are told apart.
#[test]
fn extent_of_norms_that_does_not_fit_is_named() {
    let (_folder, checkpoint, _, json) = family("olmo2");
    let prefix = "model.layers.0.self_attn";
    let load = |over: NormOver, name: &str| {
        let (_folder, checkpoint, _, json) = family(name);
        let source = checkpoint.at(prefix, DType::F32, &CPU);
        let config = config_from_json(&json, &source).unwrap().config;
        let config = config.with_qk_norm(HeadNorm::new(NormKind::Rms, over, 1e-6));
        MultiHeadAttention::load(&config, source)
    };
    assert!(checkpoint.attention_with(prefix, &json, DType::F32, &CPU).is_ok());
    says(load(NormOver::Head, "olmo2"), &["qk_norm.over = one head", "all heads", "self_attn.q_norm.weight` has"]);
    says(load(NormOver::AllHeads, "qwen3"), &["qk_norm.over = all heads", "one head", "self_attn.q_norm.weight` has"]);
}

/// The `VarBuilder` of a checkpoint is that of candle, but for weights whose scales a cast would leave out.
#[test]
fn var_builder_reads_what_candle_reads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tensors = std::collections::HashMap::from([
        ("a.weight".to_string(), Tensor::arange(0f32, 6.0, &CPU).unwrap().reshape((2, 3)).unwrap()),
        ("a.ids".to_string(), Tensor::arange(0i64, 4, &CPU).unwrap()),
    ]);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let vb = Checkpoint::open(&path).unwrap().var_builder(DType::F16, &CPU).pp("a");
    let weight = vb.get((2, 3), "weight").unwrap();
    assert_eq!(
        (weight.dtype(), weight.to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap()[1][2]),
        (DType::F16, 5.0)
    );
    assert_eq!(vb.get_unchecked("weight").unwrap().dims(), [2, 3]);
    assert_eq!(
        vb.get_with_hints_dtype(4, "ids", Default::default(), DType::U32).unwrap().to_vec1::<u32>().unwrap(),
        [0, 1, 2, 3]
    );
    assert!(vb.contains_tensor("ids") && !vb.contains_tensor("bias"));
    says(vb.get((3, 2), "weight"), &["tensor `a.weight` has shape [2, 3], expected [3, 2]"]);
    says(vb.get(1, "bias"), &["tensor `a.bias` is missing"]);
    says(vb.get(4, "ids"), &["tensor `a.ids` has dtype I64"]);
    says(vb.get_with_hints_dtype(3, "ids", Default::default(), DType::U32), &["a.ids"]);
}

/// Whole models, with and without a head, from every source.
#[test]
fn whole_encoders_load_from_every_source() {
    let ids = Tensor::new(&[[5u32, 9, 7, 11, 6]], &CPU).unwrap();
    for name in ["tiny-bert", "encoders/mpnet", "encoders/bert_mlm", "encoders/roberta_classifier"] {
        let folder = fixture(name);
        let json: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let config: TextModelConfig = serde_json::from_value(json).unwrap();
        let file = Checkpoint::open(&folder).unwrap();
        let bytes = Checkpoint::from_bytes(std::fs::read(folder.join("model.safetensors")).unwrap()).unwrap();
        let map = file.to_varmap("", DType::F32, &CPU).unwrap();
        fn run<S: WeightSource>(name: &str, config: &TextModelConfig, source: S, ids: &Tensor) -> Tensor {
            match name {
                name if name.ends_with("_mlm") => {
                    MaskedLm::load(config, source).unwrap().forward(ids, None, &AttentionMask::full()).unwrap()
                }
                name if name.ends_with("_classifier") => {
                    SequenceClassifier::load(config, source).unwrap().forward(ids, None, &[5]).unwrap()
                }
                _ => TextModel::load(config, source).unwrap().forward(ids, None, &AttentionMask::full()).unwrap(),
            }
        }
        let want = run(name, &config, file.at("", DType::F32, &CPU), &ids);
        assert_close(name, &run(name, &config, bytes.at("", DType::F32, &CPU), &ids), &want, 0.0);
        assert_close(name, &run(name, &config, bytes.var_builder(DType::F32, &CPU), &ids), &want, 0.0);
        let trained = run(name, &config, VarMapSource::new(&map), &ids);
        assert_close(name, &trained, &want, 1e-5);
        let gradients = trained.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let learns = |part: &str| {
            map.data().lock().unwrap().iter().any(|(name, var)| name.contains(part) && gradients.get(var).is_some())
        };
        assert!(learns("layer.0.attention") && learns("word_embeddings"), "{name}");
    }
}

/// What takes texts loads its weights from every source too, and follows the variables.
#[test]
fn text_models_load_from_every_source() {
    let load = |name: &str, folder: &Path, source: VarMapSource| {
        let (text, options) = ("a cat sleeps", EncodeOptions::default());
        match name {
            "sentence" => SentenceEncoder::load(folder, source).unwrap().encode(&[text], &options).unwrap().to_string(),
            "pairs" => {
                let pairs = [("a cat sleeps", "a dog")];
                format!("{:?}", CrossEncoder::load(folder, source).unwrap().scores(&pairs, &options).unwrap())
            }
            "mask" => {
                let model = FillMask::load(folder, source).unwrap();
                format!("{:?}", model.fill_mask(&format!("a {} sleeps", model.mask_token()), 3).unwrap())
            }
            _ => format!("{:?}", TextClassifier::load(folder, source).unwrap().logits(&[text], &options).unwrap()),
        }
    };
    for (name, labels) in [("sentence", 3), ("classes", 3), ("pairs", 1), ("mask", 0)] {
        let folder = crate::models::folder(labels, serde_json::json!({}));
        let map = Checkpoint::open(folder.path()).unwrap().to_varmap("", DType::F32, &CPU).unwrap();
        let before = load(name, folder.path(), VarMapSource::new(&map));
        assert_eq!(load(name, folder.path(), VarMapSource::new(&map)), before);
        for (part, variable) in map.data().lock().unwrap().iter() {
            if part.contains("attention.output.dense") {
                variable.set(&(variable.as_tensor() * -3.0).unwrap()).unwrap();
            }
        }
        assert_ne!(load(name, folder.path(), VarMapSource::new(&map)), before, "{name}");
    }
}
