//! Every writer of the crate, with a fault at each of its calls: what was there stays, or all of the new is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::{Checkpoint, layouts, write_file, write_layers, write_tensors};
use crate::encoder::{EncodeOptions, SentenceEncoder, write_pruned};
use crate::error::Result;
use crate::io::file_system::with_file_system;
use crate::io::temporary::remove_abandoned;
use crate::io::tests::faults::{Call, FAULTS, Fault, Faulty};
use crate::search::Index;
use crate::train::{Teacher, TrainConfig, Trainer};
use crate::{AttentionConfig, MultiHeadAttention};

/// What a folder holds: the bytes of its files, nothing for folders.
type Content = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn content(folder: &Path) -> Content {
    let (mut content, mut folders) = (Content::new(), vec![folder.to_path_buf()]);
    while let Some(inside) = folders.pop() {
        for entry in std::fs::read_dir(inside).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_path_buf();
            let bytes = path.is_file().then(|| std::fs::read(&path).unwrap());
            folders.extend(bytes.is_none().then_some(path));
            content.insert(name, bytes);
        }
    }
    content
}

fn restore(folder: &Path, content: &Content) {
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::create_dir(folder).unwrap();
    for (name, bytes) in content {
        match bytes {
            Some(bytes) => std::fs::write(folder.join(name), bytes).unwrap(),
            None => std::fs::create_dir(folder.join(name)).unwrap(),
        }
    }
}

/// The content without what a killed writer leaves.
fn without_temporaries(mut content: Content) -> Content {
    let temporary = |name: &Path| name.iter().any(|part| part.to_string_lossy().starts_with(".candle-attention-"));
    content.retain(|name, _| !temporary(name));
    content
}

/// Removes what killed writers left in a folder and in those inside it.
fn remove_all_abandoned(folder: &Path) {
    remove_abandoned(folder, Duration::ZERO);
    for (name, bytes) in without_temporaries(content(folder)) {
        if bytes.is_none() {
            remove_abandoned(&folder.join(name), Duration::ZERO);
        }
    }
}

/// Runs `write`, which changes what `folder` holds, with each fault at each of its calls; returns the number of faults.
/// An error must name `target`.
fn inject(writer: &str, folder: &Path, target: &str, write: &dyn Fn() -> Result<()>) -> usize {
    let old = content(folder);
    let order = Rc::new(Faulty::new(Fault::Error, usize::MAX));
    with_file_system(order.clone(), write).unwrap();
    check_order(writer, &order.calls.borrow());
    let new = content(folder);
    assert_ne!(old, new, "{writer} writes something");
    assert_eq!(new, without_temporaries(new.clone()), "{writer} leaves nothing else");

    let mut faults = 0;
    for fault in FAULTS {
        for at in 0.. {
            restore(folder, &old);
            let file_system = Rc::new(Faulty::new(fault, at));
            let result = with_file_system(file_system.clone(), write);
            let what = format!("{writer}, {fault:?} at call {at}: {result:?}");
            let found = content(folder);
            let kept = without_temporaries(found.clone());
            match &result {
                Ok(()) => assert!(kept == new, "{what}"),
                Err(error) => {
                    assert!(kept == old || kept == new, "{what}: neither old nor new");
                    assert!(error.to_string().contains(target), "{what} names no {target}");
                }
            }
            match fault {
                Fault::Kill => remove_all_abandoned(folder),
                // A temporary file stays only if its removal was what failed.
                _ if file_system.calls.borrow().get(at) == Some(&Call::Remove) => {
                    remove_all_abandoned(folder);
                }
                _ => {}
            }
            assert!(content(folder) == kept, "{what}: left {:?}", content(folder).keys());
            // The next try succeeds.
            if file_system.failed.get() && at % 8 == 0 {
                restore(folder, &old);
                write().unwrap();
                assert!(content(folder) == new, "{what}");
            }
            if at >= file_system.calls.borrow().len() {
                break;
            }
            faults += usize::from(file_system.failed.get());
        }
    }
    restore(folder, &old);
    println!("{writer}: {faults} faults");
    faults
}

/// What is written is synced before it gets its name, and the folder of the name after.
fn check_order(writer: &str, calls: &[Call]) {
    let mut unsynced_folders: Vec<PathBuf> = Vec::new();
    let (mut unsynced_file, mut renames) = (false, 0);
    for call in calls {
        match call {
            Call::Write => unsynced_file = true,
            Call::SyncFile => unsynced_file = false,
            Call::CreateFile | Call::SetPermissions => assert!(!unsynced_file, "{writer}: {calls:?}"),
            Call::CreateFolder(path) => unsynced_folders.push(path.clone()),
            Call::SyncFolder(path) => unsynced_folders.retain(|other| other != path),
            Call::Rename(to) => {
                renames += 1;
                assert!(!unsynced_file, "{writer}: {calls:?}");
                // Of a new folder, the temporary one around it is not synced, which is removed.
                let inside = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "new");
                assert!(!unsynced_folders.iter().any(inside), "{writer}: {calls:?}");
                unsynced_folders = vec![to.parent().unwrap().to_path_buf()];
            }
            Call::Remove => {}
        }
    }
    assert!(renames > 0 && !unsynced_file && unsynced_folders.is_empty(), "{writer}: {calls:?}");
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-bert")
}

fn texts() -> Vec<String> {
    (0..30).map(|i| format!("the cat {} sat on mat {}", i % 7, i % 11)).collect()
}

fn config() -> TrainConfig {
    let config = TrainConfig::default().with_vocab_size(50).with_hidden_size(8).with_num_attention_heads(2);
    let config = config.with_num_hidden_layers(1).with_intermediate_size(12).with_max_position_embeddings(16);
    config.with_max_length(16).with_batch_size(8).with_steps(6)
}

fn numbers(count: usize) -> Tensor {
    Tensor::arange(0f32, count as f32, &Device::Cpu).unwrap()
}

#[test]
fn files_of_a_checkpoint_survive_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut faults = 0;
    // First a file that is new, then one that replaces the first.
    for count in [5, 400_000] {
        faults += inject("write_tensors", folder.path(), "t.safetensors", &|| {
            write_tensors(file("t.safetensors"), [("a", numbers(count)), ("b", numbers(3))], Default::default())
        });
        write_tensors(file("t.safetensors"), [("a", numbers(2))], Default::default()).unwrap();
        faults +=
            inject("write_file", folder.path(), "config.json", &|| write_file(file("config.json"), "x".repeat(count)));
        write_file(file("config.json"), "{}").unwrap();
    }
    let config = AttentionConfig::new(8, 2);
    let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
    let weights = MultiHeadAttention::new(&config, vb).unwrap().weights().unwrap();
    let layout = layouts().next().unwrap();
    faults += inject("write_layers", folder.path(), "layers.safetensors", &|| {
        write_layers(file("layers.safetensors"), &[("layer", &weights, &config)], layout, Default::default())
    });
    println!("{faults} faults in 3 writers");
}

#[test]
fn an_index_survives_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index.safetensors");
    let encoder = SentenceEncoder::from_folder(tiny(), DType::F32, &Device::Cpu).unwrap();
    let index = |texts: &[&str], path: &Path| {
        let mut index = Index::new(texts, encoder.embedding_size(), "tiny")?;
        index.embed(&encoder, &EncodeOptions::default(), |_| Ok(()))?;
        index.save(path)
    };
    inject("Index::save, a new file", folder.path(), "index.safetensors", &|| index(&["the cat"], &path));
    index(&["the cat"], &path).unwrap();
    inject("Index::save", folder.path(), "index.safetensors", &|| index(&["the cat", "a dog"], &path));
}

#[test]
fn a_run_survives_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let mut trainer = Trainer::new(config(), &texts(), None, &run, None).unwrap();
    inject("Trainer::save, a new file", &run, "run.safetensors", &|| trainer.save());
    trainer.save().unwrap();
    trainer.step().unwrap();
    inject("Trainer::save", &run, "run.safetensors", &|| trainer.save());

    let model = folder.path().join("model");
    let write = |dtype| trainer.write(&model, dtype);
    inject("Trainer::write, a new folder", folder.path(), "model", &|| write(DType::F32));
    write(DType::F32).unwrap();
    inject("Trainer::write, new weights", folder.path(), "model", &|| write(DType::F16));
    for name in ["config.json", "modules.json"] {
        std::fs::remove_file(model.join(name)).unwrap();
    }
    let loads = || SentenceEncoder::from_folder(&model, DType::F32, &Device::Cpu);
    assert!(loads().is_err());
    // Several files, one after the other: never a folder that loads before it is complete.
    for at in 0.. {
        for name in ["config.json", "modules.json"] {
            let _ = std::fs::remove_file(model.join(name));
        }
        let file_system = Rc::new(Faulty::new(Fault::Kill, at));
        let result = with_file_system(file_system.clone(), || write(DType::F16));
        assert!(loads().is_err() || model.join("modules.json").exists(), "killed at call {at}");
        if !file_system.failed.get() {
            result.unwrap();
            loads().unwrap();
            break;
        }
    }
}

#[test]
fn the_vectors_of_a_teacher_survive_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let teacher = Teacher::open(tiny(), DType::F32).unwrap();
    inject("Teacher, its vectors", folder.path(), "teacher-", &|| {
        Trainer::new(config(), &texts(), Some(&teacher), folder.path(), None).map(drop)
    });
}

#[test]
fn a_pruned_model_survives_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("pruned");
    let heads = [(0, 0)].into_iter().collect();
    inject("write_pruned", folder.path(), "pruned", &|| write_pruned(tiny(), &target, &heads).map(drop));
    write_pruned(tiny(), &target, &heads).unwrap();
    SentenceEncoder::from_folder(&target, DType::F32, &Device::Cpu).unwrap();
    assert!(Checkpoint::open(&target).is_ok() && File::open(target.join("tokenizer.json")).is_ok());
}
