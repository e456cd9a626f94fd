//! Text models whose weights are published in few bits.

use std::path::Path;

use candle_attention::ComputeType;
use candle_attention::checkpoint::Checkpoint;
use candle_attention::pruning::PrunedHeads;
use candle_attention_text::{EncodeOptions, ModelFiles, SentenceEncoder, write_pruned};
use candle_core::{DType, Device};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::common::fixture;

const CPU: Device = Device::Cpu;

/// Numbers of a row that share a scale.
const GROUP: usize = 8;

/// A tensor as it is stored.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

fn stored(name: &str, shape: &[usize], numbers: impl IntoIterator<Item = f32>) -> Stored {
    let bytes = numbers.into_iter().flat_map(f32::to_le_bytes).collect();
    (name.to_string(), Dtype::F32, shape.to_vec(), bytes)
}

fn save(folder: &Path, tensors: &[Stored]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The tiny BERT twice: every matrix, embeddings too, in int8 with a scale for eight numbers, in the format
/// `int-quantized`; and the numbers that this stands for in f32. (With a scale per row it would run in int8.)
fn quantized_and_plain() -> [tempfile::TempDir; 2] {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let source = fixture("tiny-bert");
    for folder in &folders {
        for entry in std::fs::read_dir(&source).unwrap().map(Result::unwrap) {
            let target = folder.path().join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                std::fs::create_dir(&target).unwrap();
                for file in std::fs::read_dir(entry.path()).unwrap().map(Result::unwrap) {
                    std::fs::copy(file.path(), target.join(file.file_name())).unwrap();
                }
            } else {
                std::fs::copy(entry.path(), target).unwrap();
            }
        }
    }
    let config = folders[0].path().join("config.json");
    let mut keys: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    keys["quantization_config"] = json!({
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {
            "targets": ["Linear", "Embedding"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": true, "strategy": "group", "group_size": GROUP},
        }},
    });
    std::fs::write(config, keys.to_string()).unwrap();

    let checkpoint = Checkpoint::open(source).unwrap();
    let (mut quantized, mut plain) = (Vec::new(), Vec::new());
    for name in checkpoint.names() {
        let tensor = checkpoint.tensor(name, &CPU).unwrap();
        let (shape, numbers) = (tensor.dims(), tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        let &[rows, columns] = shape else {
            quantized.push(stored(name, shape, numbers.iter().copied()));
            plain.push(stored(name, shape, numbers));
            continue;
        };
        let scale = |row: &[f32]| row.iter().fold(0f32, |most, number| most.max(number.abs())) / 127.0;
        let scales: Vec<f32> = numbers.chunks(GROUP).map(scale).collect();
        let codes: Vec<i8> =
            numbers.iter().enumerate().map(|(i, number)| (number / scales[i / GROUP]).round() as i8).collect();
        plain.push(stored(name, shape, codes.iter().enumerate().map(|(i, code)| f32::from(*code) * scales[i / GROUP])));
        quantized.push((name.to_string(), Dtype::I8, shape.to_vec(), codes.iter().map(|code| *code as u8).collect()));
        quantized.push(stored(&format!("{name}_scale"), &[rows, columns / GROUP], scales));
    }
    save(folders[0].path(), &quantized);
    save(folders[1].path(), &plain);
    folders
}

fn embeddings(encoder: &SentenceEncoder) -> Vec<Vec<f32>> {
    let texts = ["a cat sleeps", "the dog", ""];
    let embeddings = encoder.encode(&texts, &EncodeOptions::default()).unwrap();
    embeddings.to_dtype(DType::F32).unwrap().to_vec2().unwrap()
}

#[test]
fn a_quantized_model_is_that_of_its_dequantized_weights() {
    let [quantized, plain] = quantized_and_plain();
    let dtypes = [DType::F32, DType::F16, DType::BF16].map(ComputeType::from);
    for compute_type in dtypes.into_iter().chain([ComputeType::default()]) {
        let load = |folder: &Path| SentenceEncoder::from_folder(folder, compute_type, &CPU).unwrap();
        let expected = embeddings(&load(plain.path()));
        assert_eq!(embeddings(&load(quantized.path())), expected, "{compute_type}");
    }
}

/// The configuration is found among the files in memory.
#[test]
fn a_quantized_model_in_memory_is_that_on_disk() {
    let [quantized, _] = quantized_and_plain();
    let files = ["config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json"];
    let files = files.iter().fold(ModelFiles::new(), |files, name| {
        files.with(*name, std::fs::read(quantized.path().join(name)).unwrap()).unwrap()
    });
    let memory = SentenceEncoder::from_files(&files, DType::F32, &CPU).unwrap();
    let disk = SentenceEncoder::from_folder(quantized.path(), DType::F32, &CPU).unwrap();
    assert_eq!(embeddings(&memory), embeddings(&disk));
}

/// What is written dequantized does not state to be quantized.
#[test]
fn a_pruned_model_is_written_without_quantization() {
    let [quantized, plain] = quantized_and_plain();
    let heads = PrunedHeads::from_iter([(0, 1), (1, 3)]);
    let [first, second] = [quantized, plain].map(|folder| {
        let target = folder.path().join("pruned");
        write_pruned(folder.path(), &target, &heads).unwrap();
        let config: Value = serde_json::from_slice(&std::fs::read(target.join("config.json")).unwrap()).unwrap();
        assert_eq!(config.get("quantization_config"), None);
        embeddings(&SentenceEncoder::from_folder(target, DType::F32, &CPU).unwrap())
    });
    assert_eq!(first, second);
}
