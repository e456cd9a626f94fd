//! Models without some of their heads, in memory and in files.

use candle_attention::AttentionMask;
use candle_attention::checkpoint::{Checkpoint, ModelConfig};
use candle_attention::pruning::PrunedHeads;
use candle_attention_text::{EncodeOptions, PruneOptions, TextModel, TextModelConfig, write_pruned, write_pruned_with};
use candle_core::{DType, Tensor};

use super::{CPU, TEXTS, encoder};
use crate::common::{assert_within, fixture, says};

/// A pruned model, a masked one, and one written and read again give the same embeddings; `config.json` lists the
/// pruned heads.
#[test]
fn pruned_model_survives_writing_and_reading() {
    let folder = fixture("tiny-bert");
    let whole = encoder(&folder);
    let heads = whole.heads();
    let options = EncodeOptions::default();
    let target = tempfile::tempdir().unwrap();
    // One; all of a layer; all of all.
    let all: Vec<(usize, usize)> = (0..heads.len()).flat_map(|l| (0..heads[l]).map(move |h| (l, h))).collect();
    let of_last: Vec<(usize, usize)> = all.iter().copied().filter(|(layer, _)| *layer == heads.len() - 1).collect();
    for (i, pruned) in [vec![(0, 1)], of_last, all.clone()].into_iter().enumerate() {
        let pruned: PrunedHeads = pruned.into_iter().collect();
        let in_memory = whole.prune_heads(&pruned).unwrap();
        let want = in_memory.encode(&TEXTS, &options).unwrap();
        let path = target.path().join(format!("pruned{i}"));
        assert_eq!(write_pruned(&folder, &path, &pruned).unwrap(), pruned);
        let read = encoder(&path);
        assert_eq!(read.heads(), in_memory.heads());
        assert_within("read again", &read.encode(&TEXTS, &options).unwrap(), &want, 1e-6);
        let config = TextModelConfig::from_file(path.join("config.json")).unwrap();
        assert_eq!(config.pruned_heads, pruned);
        let size = |folder: &std::path::Path| std::fs::metadata(folder.join("model.safetensors")).unwrap().len();
        assert!(size(&path) < size(&folder));
        // The layers alone are read by the same keys.
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap();
        for layer in Checkpoint::open(&path).unwrap().attention_layers(Some(ModelConfig::new(&json))) {
            assert_eq!(layer.problem, None, "{layer:?}");
        }
    }
    // Pruning goes on from what is left, and counts as in the unpruned model.
    let once = target.path().join("once");
    write_pruned(&folder, &once, &[(0, 0)].into_iter().collect()).unwrap();
    let twice = write_pruned(&once, target.path().join("twice"), &[(0, 0)].into_iter().collect()).unwrap();
    assert_eq!(twice, [(0, 0), (0, 1)].into_iter().collect());
    let want = whole.prune_heads(&twice).unwrap().encode(&TEXTS, &options).unwrap();
    let got = encoder(&target.path().join("twice")).encode(&TEXTS, &options).unwrap();
    assert_within("twice", &got, &want, 1e-6);
    assert_eq!(
        encoder(&once).prune_heads(&[(0, 0)].into_iter().collect()).unwrap().heads(),
        whole.prune_heads(&twice).unwrap().heads()
    );

    says(write_pruned(&folder, &once, &PrunedHeads::default()), &["once", "exists already"]);
    let none = [(0, 99)].into_iter().collect();
    says(write_pruned(&folder, target.path().join("none"), &none), &["a pruned head of layer 0 is 99"]);
    says(whole.prune_heads(&[(9, 0)].into_iter().collect()), &["a layer of pruned_heads is 9"]);
    let left: Vec<String> = std::fs::read_dir(target.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().to_string())
        .collect();
    assert!(left.iter().all(|name| !name.ends_with(".part") && name != "none"), "{left:?}");
}

/// Layers with fused projections or a shared bias table lose some or all of their heads.
#[test]
fn models_of_other_families_are_pruned() {
    let target = tempfile::tempdir().unwrap();
    for name in ["mpnet", "nomic_bert", "modernbert"] {
        let folder = fixture(&format!("encoders/{name}"));
        let load = |folder: &std::path::Path| {
            let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
            TextModel::load(&config, Checkpoint::open(folder).unwrap().at("", DType::F32, &CPU)).unwrap()
        };
        let whole = load(&folder);
        let first = (0..whole.heads()[0]).map(|head| (0, head));
        let heads: PrunedHeads = first.chain([(1, 1)]).collect();
        let path = target.path().join(name);
        write_pruned(&folder, &path, &heads).unwrap();
        let ids = Tensor::new(&[[5u32, 9, 7, 11, 6]], &CPU).unwrap();
        let run = |model: &TextModel| model.forward(&ids, None, &AttentionMask::full()).unwrap();
        let want = run(&whole.prune_heads(&heads).unwrap());
        assert_within(name, &run(&load(&path)), &want, 1e-6);
        // Of its size, with these heads zeroed; also of a model that is pruned already.
        let options = PruneOptions::default().with_masked(true);
        let masked = target.path().join(format!("{name}-masked"));
        assert_eq!(write_pruned_with(&folder, &masked, &heads, &options).unwrap(), heads);
        assert_eq!(load(&masked).heads(), whole.heads());
        assert_within(name, &run(&load(&masked)), &want, 1e-6);
        let (once, twice) = (target.path().join(format!("{name}-once")), target.path().join(format!("{name}-twice")));
        write_pruned(&folder, &once, &heads).unwrap();
        let more: PrunedHeads = [(1, 0)].into_iter().collect();
        write_pruned_with(&once, &twice, &more, &options).unwrap();
        let want = run(&load(&once).prune_heads(&more).unwrap());
        assert_within(name, &run(&load(&twice)), &want, 1e-6);
        let json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let layers = checkpoint.attention_layers(Some(ModelConfig::new(&json)));
        assert!(layers.len() > 1, "{name}");
        for layer in layers {
            assert_eq!(layer.problem, None, "{name} {layer:?}");
            let loaded = checkpoint.attention_with(&layer.prefix, &json, DType::F32, &CPU).unwrap().layer;
            assert_eq!(Some(loaded.config().num_attention_heads), layer.num_attention_heads);
        }
    }
}
