//! Layers written in other layouts, and read again.

use std::collections::HashMap;

use candle_attention::checkpoint::{
    Checkpoint, ModelAttention, ModelConfig, VarMapSource, config_from_json, detect, layouts, write_layers,
};
use candle_attention::weights::AttentionWeights;
use candle_attention::{AttentionConfig, MultiHeadAttention};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::common::{Files, family_config, numbers, says};

const CPU: Device = Device::Cpu;

fn layout(name: &str) -> &'static candle_attention::checkpoint::Layout {
    layouts().find(|layout| layout.name() == name).unwrap()
}

fn bits(tensor: &Tensor) -> (Vec<usize>, Vec<u64>) {
    (tensor.dims().to_vec(), numbers(tensor).iter().map(|x| x.to_bits()).collect())
}

/// Every layer of every family in every layout that can hold it: the same bits again, and in its own layout the tensors
/// that its file has.
#[test]
fn every_layer_survives_writing_in_every_layout_that_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let (mut written, mut refused) = (0, 0);
    let files = Files::open("families.safetensors");
    for (family, checkpoint) in files.all() {
        let bytes = files.bytes(family);
        let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().clone().unwrap();
        assert_eq!(*checkpoint.metadata(), metadata);
        let json = family_config(&checkpoint);
        let json = ModelConfig::new(&json).with_like(metadata.contains_key("timm").then_some("timm"));
        for info in checkpoint.attention_layers(Some(json)) {
            let source = checkpoint.at(&info.prefix, DType::F32, &CPU);
            // Some layouts are known that cannot be run yet.
            let Ok(config) = config_from_json(json, &source).map(|read| read.config) else { continue };
            let weights = checkpoint.layer_weights(&info.prefix, &config).unwrap();
            let own = weights.to_layout(&config, layout(info.layout)).unwrap();
            for (name, tensor) in own.iter().filter(|(name, _)| !name.contains("norm")) {
                let stored = checkpoint.tensor(&format!("{}.{name}", info.prefix), &CPU).unwrap();
                assert_eq!(bits(tensor), bits(&stored), "{family} {name}");
            }
            for other in layouts() {
                let file = folder.path().join("layer.safetensors");
                match write_layers(&file, &[("some.layer", &weights, &config)], other, metadata.clone()) {
                    Ok(()) => written += 1,
                    Err(error) => {
                        assert!(error.to_string().starts_with("the layout for "), "{error}");
                        refused += 1;
                        continue;
                    }
                }
                let reread = Checkpoint::open(&file).unwrap();
                assert_eq!(*reread.metadata(), metadata);
                let source = reread.at("some.layer", DType::F32, &CPU);
                assert_eq!(detect(&source).unwrap().name(), other.name(), "{family}");
                let (again, _) = AttentionWeights::read(&config, &source).unwrap();
                let again = again.to_layout(&config, layout(info.layout)).unwrap();
                assert_eq!(again.len(), own.len(), "{family} by {}", other.name());
                for (name, tensor) in &again {
                    assert_eq!(bits(tensor), bits(&own[name]), "{family} {name} by {}", other.name());
                }
            }
        }
    }
    println!("{written} written, {refused} refused");
    assert!(written > 500 && refused > 500, "{written} written, {refused} refused");
}

/// Convolutions in groups (SqueezeBERT) are matrices with blocks, which are written as the groups that they are.
#[test]
fn grouped_convolutions_are_written_in_their_groups() {
    let checkpoint = Files::open_all("model_types").checkpoint("squeezebert");
    let json = family_config(&checkpoint);
    let (prefix, names) = ("encoder.layers.0", ["attention.query.weight", "post_attention.conv1d.weight"]);
    let model = checkpoint.attention_with(prefix, &json, DType::F32, &CPU).unwrap();
    let (config, weights) = (model.layer.config().clone(), model.layer.weights().unwrap());
    let written = weights.to_layout(&config, layout("squeezebert")).unwrap();
    for (name, columns) in names.into_iter().zip([4, 16]) {
        let stored = checkpoint.tensor(&format!("{prefix}.{name}"), &CPU).unwrap();
        assert_eq!(stored.dims(), [16, columns, 1]);
        assert_eq!(bits(&written[name]), bits(&stored), "{name}");
    }
    assert_eq!(weights.to_layout(&config, layout("vit")).unwrap()["attention.query.weight"].dims(), [16, 16]);

    // What is learned is the convolution, not the zeros between its groups.
    let map = checkpoint.to_varmap(prefix, DType::F32, &CPU).unwrap();
    let layer = ModelAttention::load(&json, VarMapSource::new(&map).at(prefix)).unwrap().layer;
    let xs = Tensor::ones((1, 3, 16), DType::F32, &CPU).unwrap();
    let gradients = layer.forward(&xs).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let variable = map.data().lock().unwrap()[&format!("{prefix}.{}", names[0])].clone();
    assert_eq!(gradients.get(&variable).unwrap().dims(), [16, 4, 1]);

    // A pruned projection is no square, from which the groups would be known.
    let pruned = model.layer.prune_heads(&[1]).unwrap();
    let failed = pruned.weights().unwrap().to_layout(pruned.config(), layout("squeezebert"));
    says(failed, &["the layout for a projection of 16 numbers to 12 is layout `squeezebert`"]);

    // Groups that do not divide the width.
    let mut tensors: HashMap<String, Tensor> =
        written.into_iter().map(|(name, tensor)| (format!("{prefix}.{name}"), tensor)).collect();
    tensors.insert(format!("{prefix}.{}", names[0]), Tensor::zeros((16, 5, 1), DType::F32, &CPU).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.safetensors");
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let broken = Checkpoint::open(&file).unwrap();
    says(broken.attention_with(prefix, &json, DType::F32, &CPU).map(|_| ()), &[names[0], "[16, 5, 1]"]);
    says(MultiHeadAttention::load(&config, broken.at(prefix, DType::F32, &CPU)).map(|_| ()), &[names[0], "[16, 5, 1]"]);
}

#[test]
fn unwritable_layer_is_an_error_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layer.safetensors");
    let fresh = |config: &AttentionConfig| {
        MultiHeadAttention::new(config, VarBuilder::from_varmap(&VarMap::new(), DType::F32, &CPU)).unwrap()
    };
    let write = |config: &AttentionConfig, name: &str| {
        let weights = fresh(config).weights().unwrap();
        write_layers(&file, &[("layer", &weights, config)], layout(name), HashMap::new())
    };
    let plain = AttentionConfig::new(24, 6);
    let grouped = plain.clone().with_num_key_value_heads(2);
    says(
        write(&grouped, "bert"),
        &["the layout for 2 key-value heads of 6 heads is layout `bert`", "candle-attention"],
    );
    says(write(&plain, "codegen"), &["the layout for biases of [q, k, v, o] is layout `codegen`"]);
    says(
        write(&plain.clone().with_key_size(10), "timm"),
        &["inputs of [24, 10, 24] numbers", "one with a weight for each"],
    );
    let elsewhere = folder.path().join("no/such/folder.safetensors");
    let weights = fresh(&plain).weights().unwrap();
    let failed = write_layers(&elsewhere, &[("layer", &weights, &plain)], layout("bert"), HashMap::new());
    says(failed, &["no/such/folder.safetensors"]);
    // Two layers of one name, of which the last would be there alone.
    let twice = [("layer", &weights, &plain), ("layer", &weights, &plain)];
    says(write_layers(&file, &twice, layout("bert"), HashMap::new()), &["the name of a tensor", "`layer.", "twice"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
