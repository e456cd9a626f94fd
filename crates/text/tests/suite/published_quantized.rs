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
use crate::common::programs::copy_folder;

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
    int8_and_plain(Some(GROUP), |scale| scale)
}

/// The same with a scale for so many numbers, or for a row, each changed by `change`.
fn int8_and_plain(group: Option<usize>, change: impl Fn(f32) -> f32) -> [tempfile::TempDir; 2] {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let source = fixture("tiny-bert");
    folders.iter().for_each(|folder| copy_folder(&source, folder.path()));
    let config = folders[0].path().join("config.json");
    let mut keys: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    keys["quantization_config"] = json!({
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {
            "targets": ["Linear", "Embedding"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": true,
                "strategy": if group.is_some() { "group" } else { "channel" }, "group_size": group},
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
        let group = group.unwrap_or(columns);
        // As compressed-tensors has it: the largest number becomes -128 or 127.
        let scale = |row: &[f32]| change(row.iter().fold(0f32, |most, number| most.max(number.abs())) / 127.5);
        let scales: Vec<f32> = numbers.chunks(group).map(scale).collect();
        let codes: Vec<i8> =
            numbers.iter().enumerate().map(|(i, number)| (number / scales[i / group]).round() as i8).collect();
        plain.push(stored(name, shape, codes.iter().enumerate().map(|(i, code)| f32::from(*code) * scales[i / group])));
        quantized.push((name.to_string(), Dtype::I8, shape.to_vec(), codes.iter().map(|code| *code as u8).collect()));
        quantized.push(stored(&format!("{name}_scale"), &[rows, columns / group], scales));
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

/// With a scale per row the weights stay int8 where no dtype is asked for, and are those of the file, or else, where
/// scales have too many bits for that, or are negative, they are dequantized.
#[test]
fn published_int8_has_the_weights_of_its_owner() {
    let bf16 = |scale: f32| half::bf16::from_f32(scale).to_f32();
    let changes: [(&dyn Fn(f32) -> f32, bool); 3] =
        [(&bf16, true), (&|scale| scale, false), (&|scale| -bf16(scale), false)];
    for (change, is_int8) in changes {
        let [quantized, plain] = int8_and_plain(None, change);
        let load = |folder: &Path| SentenceEncoder::from_folder(folder, ComputeType::default(), &CPU).unwrap();
        let [int8, f32] = [&quantized, &plain].map(|folder| load(folder.path()));
        assert_eq!(format!("{int8:?}").contains("quantization: int8"), is_int8);
        let [int8, f32] = [int8, f32].map(|encoder| embeddings(&encoder).concat());
        let worst = int8.iter().zip(&f32).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        // Inputs are rounded to integers at run time.
        assert!(if is_int8 { worst > 0.0 && worst < 0.05 } else { worst == 0.0 }, "{worst}");

        // Each weight is that of the file.
        let weights = |folder: &Path| {
            let json: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
            let checkpoint = Checkpoint::open(folder).unwrap();
            let read =
                checkpoint.attention_with("encoder.layer.0.attention", &json, ComputeType::default(), &CPU).unwrap();
            assert_eq!(read.layer.quantization().is_some(), is_int8 && folder == quantized.path());
            read.layer.weights().unwrap().o.weight.to_vec2::<f32>().unwrap()
        };
        assert_eq!(weights(quantized.path()), weights(plain.path()));
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
