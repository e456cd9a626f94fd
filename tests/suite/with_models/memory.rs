//! Weights take memory once: an encoder of a checkpoint and a frozen copy keep what is packed, and give the tensors
//! back, from which nothing that was packed differs.

use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_attention::pruning::PrunedHeads;
use candle_attention::weights::{AttentionWeights, LinearWeights, QkvWeights};
use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, MultiHeadAttention};
use candle_attention_text::{MaskedLm, SequenceClassifier, TextModel, TextModelConfig};
use candle_core::{DType, Device, Module, Tensor, Var};

use crate::common::{Random, fixture};

const CPU: Device = Device::Cpu;
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The bits of all elements; f16 and bf16 are exact in f32.
fn bits(tensor: &Tensor) -> Vec<u32> {
    let numbers = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    numbers.into_iter().map(f32::to_bits).collect()
}

#[track_caller]
fn assert_same(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!((got.dims(), got.dtype()), (want.dims(), want.dtype()), "{what}");
    assert!(bits(got) == bits(want), "{what}: other bits");
}

fn same_linear(what: &str, got: &LinearWeights, want: &LinearWeights) {
    assert_same(what, &got.weight, &want.weight);
    assert_eq!(got.bias.is_some(), want.bias.is_some(), "{what}");
    if let (Some(got), Some(want)) = (&got.bias, &want.bias) {
        assert_same(what, got, want);
    }
}

fn same_weights(got: &AttentionWeights, want: &AttentionWeights) {
    let (QkvWeights::Split(got_parts), QkvWeights::Split(want_parts)) = (&got.qkv, &want.qkv) else {
        panic!("weights are given as three layers");
    };
    for (name, (got, want)) in ["q", "k", "v"].iter().zip(got_parts.iter().zip(want_parts.iter())) {
        same_linear(name, got, want);
    }
    same_linear("o", &got.o, &want.o);
}

/// Random weights, and what is rounded or lost most easily: zeros with a sign, infinities, subnormal numbers.
fn linear(random: &mut Random, dims: [usize; 2], bias: bool, dtype: DType) -> LinearWeights {
    let rare = Tensor::new(&[-0.0f32, f32::INFINITY, f32::NEG_INFINITY, 6e-8, -1e-40], &CPU).unwrap();
    let mut tensor = |dims: &[usize], rare: Option<&Tensor>| {
        let mut numbers = random.tensor(dims, DType::F32).flatten_all().unwrap().to_vec1::<f32>().unwrap();
        if let Some(rare) = rare {
            let at = numbers.len() - 5;
            numbers[at..].copy_from_slice(&rare.to_vec1::<f32>().unwrap());
        }
        Tensor::from_vec(numbers, dims, &CPU).unwrap().to_dtype(dtype).unwrap()
    };
    LinearWeights::new(tensor(&dims, Some(&rare)), bias.then(|| tensor(&dims[..1], None)))
}

#[test]
fn what_is_packed_gives_back_every_bit() {
    let mut random = Random::new(930);
    for dtype in DTYPES {
        // One input for all three; inputs of their own, so that each is packed for itself.
        for (key_size, value_size, bias) in [(31, 31, [true; 3]), (31, 31, [true, false, true]), (13, 17, [false; 3])] {
            let config = AttentionConfig::new(31, 3)
                .with_head_dim(7)
                .with_num_key_value_heads(1)
                .with_key_size(key_size)
                .with_value_size(value_size);
            let part = |random: &mut Random, rows, input, bias| linear(random, [rows, input], bias, dtype);
            let qkv = QkvWeights::Split(Box::new([
                part(&mut random, 21, 31, bias[0]),
                part(&mut random, 7, key_size, bias[1]),
                part(&mut random, 7, value_size, bias[2]),
            ]));
            let weights = AttentionWeights::new(qkv, part(&mut random, 31, 21, true));
            let layer = MultiHeadAttention::from_weights(&config, weights.clone()).unwrap();
            let frozen = layer.frozen().unwrap();
            assert!(format!("{frozen:?}").contains("packed: true"));
            for frozen in [&frozen, &frozen.frozen().unwrap(), &layer.frozen().unwrap()] {
                same_weights(&frozen.weights().unwrap(), &weights);
            }
            let fewer = |layer: &MultiHeadAttention| layer.prune_heads(&[1]).unwrap().weights().unwrap();
            same_weights(&fewer(&frozen), &fewer(&layer));
        }
    }
}

/// Together, one by one, and differentiable: from what is packed as from tensors.
#[test]
fn packed_layers_compute_what_layers_of_tensors_compute() {
    let mut random = Random::new(931);
    for dtype in DTYPES {
        let config = AttentionConfig::new(60, 3).with_num_key_value_heads(1);
        let dense = |random: &mut Random, rows: usize| {
            let mut tensor = |dims: &[usize]| (random.tensor(dims, DType::F32) * 0.3).unwrap().to_dtype(dtype).unwrap();
            LinearWeights::new(tensor(&[rows, 60]), Some(tensor(&[rows])))
        };
        let qkv = [60, 20, 20].map(|rows| dense(&mut random, rows));
        let weights = AttentionWeights::new(QkvWeights::Split(Box::new(qkv)), dense(&mut random, 60));
        let layer = MultiHeadAttention::from_weights(&config, weights).unwrap();
        let frozen = layer.frozen().unwrap();
        let [xs, memory] = [5, 7].map(|s| random.tensor(&[2, s, 60], dtype));
        let variable = Var::from_tensor(&xs).unwrap();
        let full = AttentionMask::full();
        let results = |layer: &MultiHeadAttention| {
            let cache = layer.cross_cache(&memory, &memory).unwrap();
            [
                layer.forward(&xs).unwrap(),
                layer.attend(&xs, &memory, &memory, &full).unwrap(),
                layer.attend(&xs, &xs, &memory.narrow(1, 0, 5).unwrap(), &full).unwrap(),
                layer
                    .attend_with(&AttentionInputs::cross_cached(&xs, &cache, &full), &Default::default())
                    .unwrap()
                    .output,
                layer.forward(variable.as_tensor()).unwrap(),
            ]
        };
        for (got, want) in results(&frozen).iter().zip(&results(&layer)) {
            assert_same(dtype.as_str(), got, want);
        }
        let loss = frozen.forward(variable.as_tensor()).unwrap().sqr().unwrap().sum_all().unwrap();
        assert!(loss.backward().unwrap().get(variable.as_tensor()).is_some());
    }
}

/// A model of a checkpoint keeps what is packed, and one of a `VarBuilder` its tensors.
#[test]
fn encoders_of_a_checkpoint_compute_what_encoders_of_tensors_compute() {
    let ids = Tensor::new(&[[5u32, 6, 7, 8], [9, 5, 6, 7]], &CPU).unwrap();
    let run = |model: &TextModel| model.forward(&ids, None, &AttentionMask::full()).unwrap();
    let ragged = |model: &TextModel| model.forward_ragged(&[5, 6, 7, 8, 9], &[0; 5], &[3, 2]).unwrap();
    for name in ["xlm_roberta", "albert", "modernbert", "nomic_bert", "mpnet"] {
        let folder = fixture(&format!("encoders/{name}"));
        let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        for dtype in DTYPES {
            let source = checkpoint.at("", dtype, &CPU);
            assert!(source.gives_own_tensors());
            let packed = TextModel::load(&config, source).unwrap();
            let tensors = TextModel::load(&config, checkpoint.var_builder(dtype, &CPU)).unwrap();
            for model in
                [packed.clone(), packed.frozen().unwrap(), tensors.frozen().unwrap(), tensors.frozen().unwrap()]
            {
                assert_same(name, &run(&model), &run(&tensors));
                assert_same(name, &ragged(&model), &ragged(&tensors));
            }
            let mut heads = PrunedHeads::default();
            heads.insert(0, 0);
            if let Ok(fewer) = tensors.prune_heads(&heads) {
                assert_same(name, &run(&packed.prune_heads(&heads).unwrap()), &run(&fewer));
            }
        }
    }
}

#[test]
fn heads_of_a_checkpoint_compute_what_heads_of_tensors_compute() {
    let ids = Tensor::new(&[[5u32, 6, 7, 8]], &CPU).unwrap();
    for name in ["roberta_classifier", "modernbert_classifier", "bert_mlm", "albert_mlm"] {
        let folder = fixture(&format!("encoders/{name}"));
        let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let (source, vb) = (checkpoint.at("", DType::F32, &CPU), checkpoint.var_builder(DType::F32, &CPU));
        if name.ends_with("mlm") {
            let run = |head: &MaskedLm| head.forward(&ids, None, &AttentionMask::full()).unwrap();
            let (packed, tensors) = (MaskedLm::load(&config, source).unwrap(), MaskedLm::load(&config, vb).unwrap());
            assert_same(name, &run(&packed), &run(&tensors));
            assert_same(name, &run(&tensors.frozen().unwrap()), &run(&tensors));
        } else {
            let run = |head: &SequenceClassifier| head.forward(&ids, None, &[4]).unwrap();
            let load = |config| SequenceClassifier::load(config, source);
            let (packed, tensors) = (load(&config).unwrap(), SequenceClassifier::load(&config, vb).unwrap());
            assert_same(name, &run(&packed), &run(&tensors));
            assert_same(name, &run(&tensors.frozen().unwrap()), &run(&tensors));
        }
    }
}

/// Resident memory of processes that load a model and use it.
#[cfg(target_os = "linux")]
mod resident {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::process::Command;

    use candle_attention::io::write_tensors;
    use candle_attention::{ComputeType, Quantization};
    use candle_nn::VarBuilder;

    use super::*;

    const FOLDER: &str = "CANDLE_ATTENTION_TEST_MODEL";
    const DTYPE: &str = "CANDLE_ATTENTION_TEST_DTYPE";
    const HOW: &str = "CANDLE_ATTENTION_TEST_HOW";
    const HIDDEN: usize = 512;
    const INNER: usize = 2048;
    const LAYERS: usize = 6;
    /// Rows of a small table of words, and of a large one.
    const FEW_WORDS: usize = 11;
    const MANY_WORDS: usize = 40_000;

    /// Elements of the weights of all projections, and of the table of words.
    fn elements(words: usize) -> usize {
        LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * INNER) + words * HIDDEN
    }

    /// A BERT of which almost all is projections and the table of words.
    fn write_model(folder: &Path, dtype: DType, words: usize) {
        let mut tensors = BTreeMap::new();
        let mut add = |name: &str, dims: &[usize], value: f64| {
            let tensor = Tensor::full(value as f32, dims, &CPU).unwrap().to_dtype(dtype).unwrap();
            tensors.insert(name.to_string(), tensor.contiguous().unwrap());
        };
        for (name, rows) in [("word", words), ("position", 8), ("token_type", 2)] {
            add(&format!("embeddings.{name}_embeddings.weight"), &[rows, HIDDEN], 0.1);
        }
        let mut norms = vec!["embeddings".to_string()];
        for i in 0..LAYERS {
            let layer = format!("encoder.layer.{i}");
            let square = ["self.query", "self.key", "self.value", "output.dense"];
            let square = square.map(|name| (format!("attention.{name}"), HIDDEN, HIDDEN));
            let wide = [("intermediate.dense".to_string(), INNER, HIDDEN), ("output.dense".to_string(), HIDDEN, INNER)];
            for (name, out, input) in square.into_iter().chain(wide) {
                add(&format!("{layer}.{name}.weight"), &[out, input], 0.01);
                add(&format!("{layer}.{name}.bias"), &[out], 0.0);
            }
            norms.extend([format!("{layer}.attention.output"), format!("{layer}.output")]);
        }
        for norm in norms {
            add(&format!("{norm}.LayerNorm.weight"), &[HIDDEN], 1.0);
            add(&format!("{norm}.LayerNorm.bias"), &[HIDDEN], 0.0);
        }
        write_tensors(&folder.join("model.safetensors"), tensors, Default::default()).unwrap();
        let config = serde_json::json!({
            "model_type": "bert", "vocab_size": words, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
            "hidden_act": "gelu", "num_attention_heads": 8, "intermediate_size": INNER, "max_position_embeddings": 8,
            "type_vocab_size": 2, "layer_norm_eps": 1e-12,
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }

    /// A line of `/proc/self/status` in bytes.
    fn status(key: &str) -> usize {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.map_or(0, |line| line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10)
    }

    /// Not a test by itself: the process that is measured.
    #[test]
    #[ignore = "run by the test of this module"]
    fn measured() {
        let Ok(folder) = std::env::var(FOLDER) else { return };
        let config = TextModelConfig::from_file(Path::new(&folder).join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let compute_type: ComputeType = std::env::var(DTYPE).unwrap().parse().unwrap();
        let dtype = compute_type.dtype();
        let before = status("VmRSS");
        let model = match std::env::var(HOW).as_deref() {
            Ok("frozen") => {
                let map = checkpoint.to_varmap("", dtype, &CPU).unwrap();
                let model = TextModel::load(&config, VarBuilder::from_varmap(&map, dtype, &CPU)).unwrap();
                model.frozen().unwrap();
                // Compared with the variables, which are unpacked for that one layer at a time.
                model.frozen().unwrap()
            }
            Ok("tensors") => TextModel::load(&config, checkpoint.var_builder(dtype, &CPU)).unwrap(),
            _ => TextModel::load(&config, checkpoint.at("", compute_type, &CPU)).unwrap(),
        };
        let hidden = model.forward_ragged(&[1, 2, 3, 4, 5], &[0; 5], &[2, 3]).unwrap();
        model.forward(&Tensor::new(&[[1u32, 2, 3]], &CPU).unwrap(), None, &AttentionMask::full()).unwrap();
        assert_eq!(hidden.dim(0).unwrap(), 5);
        println!("resident {} peak {}", status("VmRSS") - before, status("VmHWM").saturating_sub(before));
    }

    /// What a process holds after loading and using the model, and the most it ever held, in copies of the checkpoint,
    /// which has the dtype of the compute type and so many words.
    fn copies(
        folder: &Path,
        compute_type: impl Into<ComputeType>,
        how: &str,
        isa: Option<&str>,
        vocabulary: usize,
    ) -> [f64; 2] {
        let compute_type = compute_type.into();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "with_models::memory::resident::measured", "--ignored", "--nocapture"]);
        command.env(FOLDER, folder).env(DTYPE, compute_type.to_string()).env(HOW, how).env("RAYON_NUM_THREADS", "1");
        // glibc then returns every tensor and every packed matrix to the system when it is freed.
        command.env("MALLOC_MMAP_THRESHOLD_", "65536");
        if let Some(isa) = isa {
            command.env("CANDLE_ATTENTION_ISA", isa);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let words: Vec<&str> = text.split_whitespace().collect();
        let after = |key: &str| {
            let at = words.iter().position(|word| *word == key);
            let number = at.and_then(|at| words.get(at + 1)?.parse::<f64>().ok());
            number.unwrap_or_else(|| panic!("no `{key}` in {text}"))
        };
        let copy = (elements(vocabulary) * compute_type.dtype().size_in_bytes()) as f64;
        let copies = [after("resident") / copy, after("peak") / copy];
        println!("{compute_type} {how} {isa:?}: {:.2} copies resident, {:.2} at the peak", copies[0], copies[1]);
        copies
    }

    #[test]
    fn weights_take_memory_once() {
        for dtype in DTYPES {
            let folder = tempfile::tempdir().unwrap();
            write_model(folder.path(), dtype, FEW_WORDS);
            // Half types are packed as f32 where the processor has no bf16 products, and f16 always.
            let packed = if dtype == DType::F32 { 1.0 } else { 2.0 };
            for isa in [Some("portable"), None] {
                let [resident, peak] = copies(folder.path(), dtype, "loaded", isa, FEW_WORDS);
                assert!(resident < packed + 0.4, "{dtype:?}: {resident:.2} copies");
                // Beside that, the tensors of one sub-layer.
                assert!(peak < packed + 0.5, "{dtype:?}: {peak:.2} copies at the peak");
            }
        }
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), DType::F32, FEW_WORDS);
        // A second copy would be seen: tensors that may be shared are kept beside what is packed.
        let [resident, _] = copies(folder.path(), DType::F32, "tensors", None, FEW_WORDS);
        assert!(resident > 1.9, "{resident:.2} copies");
        // The variables are dropped with their model.
        let [resident, peak] = copies(folder.path(), DType::F32, "frozen", None, FEW_WORDS);
        assert!(resident < 1.3 && peak < 2.5, "{resident:.2} copies, {peak:.2} at the peak");
    }

    /// The weights of a model in few bits are never in memory in f32, neither the projections nor the table of words.
    #[test]
    fn weights_in_few_bits_are_packed_a_part_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), DType::F32, MANY_WORDS);
        for (format, share) in [(Quantization::Int8, 0.26), (Quantization::Q8_0, 0.27), (Quantization::Q4_0, 0.15)] {
            let [resident, peak] = copies(folder.path(), format, "loaded", None, MANY_WORDS);
            assert!(resident < share + 0.1, "{format}: {resident:.2} copies");
            assert!(peak < share + 0.15, "{format}: {peak:.2} copies at the peak");
        }
    }
}
