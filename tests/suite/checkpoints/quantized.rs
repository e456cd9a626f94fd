//! Quantized checkpoints: dequantized as the owners of the formats do it, or refused with the reason. The fixtures are
//! those of `tests/golden/quantized.py`.

use std::collections::{BTreeMap, HashMap};

use candle_attention::checkpoint::{Checkpoint, LayerInfo, ModelAttention, ModelConfig};
use candle_attention::{AttentionConfig, MultiHeadAttention};
use candle_core::{DType, Device, Module, Tensor};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::common::{Random, fixture};

const CPU: Device = Device::Cpu;

/// Every fixture, the number of its modules, and how `inspect` names the query projection of its layer.
const FORMATS: [(&str, usize, &str); 10] = [
    ("mlx", 7, "MLX affine, 4 bits per channel"),
    ("metal4", 4, "metal, 4 bits in groups of 32"),
    ("metal8", 4, "metal, 8 bits in groups of 32"),
    ("fp8", 4, "FP8, 8 bits in blocks of 24×40"),
    ("compressed_int", 4, "compressed-tensors, 8 bits per channel"),
    ("compressed_float", 4, "FP8, 8 bits per channel"),
    ("compressed_packed", 6, "compressed-tensors, 4 bits in groups of 32"),
    ("gptq", 4, "GPTQ, 4 bits in groups of 16"),
    ("gptq_v2", 4, "GPTQ, 4 bits in groups of 16"),
    ("awq", 4, "AWQ, 4 bits in groups of 16"),
];

/// The stored tensors of a file, which a test changes.
#[derive(Clone)]
struct File {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    config: Value,
}

impl File {
    fn open(name: &str) -> Self {
        let bytes = std::fs::read(fixture(&format!("quantized/{name}.safetensors"))).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let config = serde_json::from_str(&header.metadata().as_ref().unwrap()["config"]).unwrap();
        let stored = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = stored
            .iter()
            .map(|(name, view)| (name.to_string(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())));
        Self { tensors: tensors.collect(), config }
    }

    fn bytes(&self) -> Vec<u8> {
        let views = self
            .tensors
            .iter()
            .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        safetensors::serialize(views, None).unwrap()
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint::from_bytes(self.bytes()).unwrap().with_quantization_config(&self.config)
    }

    /// A folder with the file and its configuration.
    fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors"), self.bytes()).unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        folder
    }

    /// The dequantized weights of the fixture, as a file without quantization.
    fn golden(&self) -> Checkpoint {
        let golden = self
            .tensors
            .iter()
            .filter_map(|(name, tensor)| Some((format!("{}.weight", name.strip_prefix("golden.")?), tensor.clone())));
        Self { tensors: golden.collect(), config: self.config.clone() }.checkpoint()
    }

    fn without(mut self, name: &str) -> Self {
        assert!(self.tensors.remove(name).is_some(), "{name}");
        self
    }

    fn with(mut self, name: &str, dtype: Dtype, shape: &[usize], data: Vec<u8>) -> Self {
        self.tensors.insert(name.to_string(), (dtype, shape.to_vec(), data));
        self
    }

    /// With other bytes at the start of a tensor.
    fn with_start(mut self, name: &str, bytes: &[u8]) -> Self {
        self.tensors.get_mut(name).unwrap().2[..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// With another shape of the same bytes.
    fn with_shape(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.get_mut(name).unwrap().1 = shape.to_vec();
        self
    }

    /// With the keys of `changes` in the settings.
    fn with_settings(mut self, changes: &Value) -> Self {
        for section in ["quantization", "quantization_config"] {
            if let Some(Value::Object(settings)) = self.config.get_mut(section) {
                settings.extend(changes.as_object().unwrap().clone());
            }
        }
        self
    }
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn every_format_is_dequantized_to_the_bits_of_its_owner() {
    for (name, modules, _) in FORMATS {
        let file = File::open(name);
        let (checkpoint, golden) = (file.checkpoint(), file.golden());
        assert_eq!(golden.names().count(), modules, "{name}");
        let names: Vec<&str> = checkpoint.names().filter(|tensor| !tensor.starts_with("golden.")).collect();
        assert_eq!(names, golden.names().collect::<Vec<_>>(), "{name}");
        for module in names {
            let (read, expected) = (checkpoint.tensor(module, &CPU).unwrap(), golden.tensor(module, &CPU).unwrap());
            assert_eq!(read.dims(), expected.dims(), "{name} {module}");
            assert_eq!(checkpoint.tensor_info(module).unwrap(), (Dtype::F32, expected.dims()), "{name} {module}");
            let differing = bits(&read).iter().zip(bits(&expected)).filter(|(a, b)| **a != *b).count();
            assert_eq!(differing, 0, "{name} {module}");
        }
    }
}

/// The layer of a quantized file is that of the dequantized weights, from a folder and by every loader.
#[test]
fn a_layer_of_every_format_is_loaded() {
    let xs = Tensor::randn(0f32, 1.0, (2, 5, 64), &CPU).unwrap();
    for (name, _, _) in FORMATS {
        let file = File::open(name);
        let folder = file.folder();
        let (checkpoint, golden) = (Checkpoint::open(folder.path()).unwrap(), file.golden());
        for dtype in [DType::F32, DType::BF16] {
            let xs = xs.to_dtype(dtype).unwrap();
            let layer =
                |checkpoint: &Checkpoint| checkpoint.attention_with("layer", &file.config, dtype, &CPU).unwrap();
            let (read, expected) = (layer(&checkpoint), layer(&golden));
            let outputs =
                [read.forward(&xs), expected.forward(&xs)].map(|ys| ys.unwrap().to_dtype(DType::F32).unwrap());
            assert_eq!(bits(&outputs[0]), bits(&outputs[1]), "{name} {dtype:?}");
        }
        let config = AttentionConfig::new(64, 1).with_head_dim(32);
        let expected = MultiHeadAttention::load(&config, golden.at("layer", DType::F32, &CPU)).unwrap();
        let map = checkpoint.to_varmap("layer", DType::F32, &CPU).unwrap();
        let of_variables = candle_attention::checkpoint::VarMapSource::new(&map).at("layer");
        for read in [
            MultiHeadAttention::load(&config, checkpoint.at("layer", DType::F32, &CPU)),
            MultiHeadAttention::load(&config, checkpoint.var_builder(DType::F32, &CPU).pp("layer")),
            MultiHeadAttention::load(&config, of_variables),
        ] {
            let (ys, expected) = (read.unwrap().forward(&xs).unwrap(), expected.forward(&xs).unwrap());
            let difference = (ys - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(difference < 1e-5, "{name} {difference}");
        }
    }
}

#[test]
fn inspect_names_the_format() {
    for (name, _, format) in FORMATS {
        let file = File::open(name);
        let layers = file.checkpoint().attention_layers(Some(ModelConfig::new(&file.config)));
        let [LayerInfo { prefix, dtype, parameters, problem, .. }] = &layers[..] else { panic!("{name} {layers:?}") };
        assert_eq!((prefix.as_str(), *parameters, problem), ("layer", 8192, &None), "{name}");
        assert!(dtype.contains(format), "{name}: {dtype}");
        assert!(file.checkpoint().non_finite("layer").unwrap().is_empty(), "{name}");
    }
    let damaged = File::open("awq").with_start("layer.k_proj.scales", &[0, 0x7c]).checkpoint();
    assert_eq!(damaged.non_finite("layer").unwrap(), ["layer.k_proj.scales"]);
}

/// A name may change above the file; what MLX states for a module stays with it.
#[test]
fn renamed_modules_keep_their_settings() {
    let file = File::open("mlx");
    let renamed = file.checkpoint().rename(|name| name.replace("layer.", "model.")).unwrap();
    let (read, expected) =
        (renamed.tensor("model.k_proj.weight", &CPU), file.golden().tensor("layer.k_proj.weight", &CPU));
    assert_eq!(bits(&read.unwrap()), bits(&expected.unwrap()));
}

/// DeepSeek V4 has another name for the scales of FP8, which are powers of two in a byte.
#[test]
fn scales_of_fp8_have_another_name() {
    let mut file = File::open("fp8");
    for name in ["q_proj", "k_proj", "v_proj", "o_proj"].map(|module| format!("layer.{module}.weight_scale_inv")) {
        let (_, shape, _) = file.tensors[&name].clone();
        let exponents = (0..shape.iter().product::<usize>() as u8).map(|i| 120 + i % 7).collect::<Vec<u8>>();
        let floats = exponents.iter().flat_map(|e| (f32::from(*e) - 127.0).exp2().to_le_bytes()).collect();
        file = file.with(&name, Dtype::F32, &shape, floats);
        file = file.with(&name.replace("weight_scale_inv", "scale"), Dtype::F8_E8M0, &shape, exponents);
    }
    let without = |part: &str| {
        let mut file = file.clone();
        file.tensors.retain(|name, _| !name.ends_with(part));
        file.checkpoint()
    };
    let (usual, other) = (without(".scale"), without(".weight_scale_inv"));
    for module in usual.names().filter(|name| !name.starts_with("golden.")) {
        let (read, expected) = (other.tensor(module, &CPU).unwrap(), usual.tensor(module, &CPU).unwrap());
        assert_eq!(bits(&read), bits(&expected), "{module}");
    }
    // Beside a weight of another dtype it is no scale of it.
    let plain = File::open("fp8").with("layer.q_proj.scale", Dtype::F32, &[1], 2f32.to_le_bytes().to_vec());
    says(&plain, &["`layer.q_proj.scale`"]);
}

/// Scales of activations and of a cache in 8 bits are not listed: nothing here computes in them.
#[test]
fn scales_of_activations_are_left_out() {
    let scalar = 2f32.to_le_bytes().to_vec();
    let mut file = File::open("compressed_float");
    for name in ["k_scale", "v_scale", "k_proj.output_scale", "o_proj.input_scale"] {
        file = file.with(&format!("layer.{name}"), Dtype::F32, &[1], scalar.clone());
    }
    let expected = file.golden().attention_with("layer", &file.config, DType::F32, &CPU).unwrap();
    let read = file.checkpoint().attention_with("layer", &file.config, DType::F32, &CPU).unwrap();
    let xs = Tensor::randn(0f32, 1.0, (1, 3, 64), &CPU).unwrap();
    assert_eq!(bits(&read.forward(&xs).unwrap()), bits(&expected.forward(&xs).unwrap()));
}

/// What a damaged file or a wrong setting says when the query projection is read.
fn message(file: &File) -> String {
    let checkpoint = file.checkpoint();
    let read = checkpoint.tensor("layer.q_proj.weight", &CPU).unwrap_err().to_string();
    // Everything above says the same, before or when the data is read.
    let loaded = ModelAttention::load(&file.config, checkpoint.at("layer", DType::F32, &CPU)).map(drop);
    assert!(loaded.is_err(), "{read}");
    read
}

fn says(file: &File, expected: &[&str]) {
    let message = message(file);
    for part in expected {
        assert!(message.contains(part), "{message}\nlacks {part:?}");
    }
}

#[test]
fn damaged_scales_are_refused() {
    let scale = |format: &str| match format {
        "mlx" | "metal4" | "metal8" | "gptq" | "gptq_v2" | "awq" => "scales",
        "fp8" => "weight_scale_inv",
        _ => "weight_scale",
    };
    for (name, ..) in FORMATS {
        let file = File::open(name);
        let scales = format!("layer.q_proj.{}", scale(name));
        // bf16, f16 and f32 of the fixtures, from the lowest byte up.
        let (nan, infinity): (&[u8], &[u8]) = match file.tensors[&scales].0 {
            Dtype::F32 => (&[0, 0, 0xc0, 0x7f], &[0, 0, 0x80, 0xff]),
            Dtype::BF16 => (&[0xc0, 0x7f], &[0x80, 0xff]),
            _ => (&[0, 0x7e], &[0, 0xfc]),
        };
        let zero = vec![0; nan.len()];
        says(&file.clone().with_start(&scales, nan), &["`layer.q_proj.weight`", "the scale NaN at [0, 0]", "damaged"]);
        says(&file.clone().with_start(&scales, infinity), &["the scale -inf at [0, 0]"]);
        says(&file.clone().with_start(&scales, &zero), &["the scale 0 at [0, 0], whose numbers are not zero"]);
    }
    let biases = File::open("mlx").with_start("layer.q_proj.biases", &[0x80, 0x7f]);
    says(&biases, &["the bias inf at [0, 0]"]);
}

/// A row of zeros may have the scale 0.
#[test]
fn rows_of_zeros_with_the_scale_0_are_zeros() {
    let file = File::open("compressed_int");
    let file = file.with_start("layer.q_proj.weight", &[0; 64]).with_start("layer.q_proj.weight_scale", &[0; 2]);
    let weight = file.checkpoint().tensor("layer.q_proj.weight", &CPU).unwrap();
    assert_eq!(bits(&weight.narrow(0, 0, 1).unwrap()), [0; 64]);
    assert_ne!(bits(&weight.narrow(0, 1, 1).unwrap()), [0; 64]);
}

#[test]
fn missing_tensors_are_named() {
    for (name, part) in [
        ("mlx", "biases"),
        ("metal4", "scales"),
        ("fp8", "weight"),
        ("compressed_packed", "weight_scale"),
        ("compressed_packed", "weight_shape"),
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("awq", "qzeros"),
        ("awq", "scales"),
    ] {
        let missing = format!("layer.q_proj.{part}");
        says(&File::open(name).without(&missing), &[&format!("tensor `{missing}` is missing beside `"), "all tensors"]);
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let i32s = |numbers: &[i32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let q = |part: &str| format!("layer.q_proj.{part}");
    for (name, part, shape, expected) in [
        ("mlx", "scales", &[16, 2][..], "[32, 1]"),
        ("mlx", "weight", &[256], "two dimensions"),
        ("metal4", "qbiases", &[2, 32], "[32, 2]"),
        ("fp8", "weight_scale_inv", &[1, 4], "[2, 2]"),
        ("compressed_int", "weight_scale", &[1, 32], "a scale for each block [128, 128]"),
        ("compressed_packed", "weight_packed", &[16, 16], "`weight_shape`"),
        ("gptq", "scales", &[32, 4], "`qzeros`"),
        ("gptq", "g_idx", &[32, 2], "[64]"),
        ("awq", "qzeros", &[1, 16], "[4, 4]"),
    ] {
        let file = File::open(name).with_shape(&q(part), shape);
        says(&file, &[&format!("has shape {shape:?}"), expected]);
    }
    let fewer = File::open("awq").with_shape(&q("scales"), &[8, 16]);
    says(&fewer, &["`layer.q_proj.qweight` has shape [64, 4]", "[64, 2]", "the 16 columns of `scales`"]);
    let none: [(&str, usize, [usize; 2]); 3] = [("qweight", 4, [0, 1]), ("qzeros", 4, [1, 1]), ("scales", 2, [1, 8])];
    let none = none.iter().fold(File::open("awq"), |mut file, (part, bytes, shape)| {
        file.tensors.get_mut(&q(part)).unwrap().2.truncate(shape[0] * shape[1] * bytes);
        file.with_shape(&q(part), shape)
    });
    says(&none, &["`layer.q_proj.scales` has shape [1, 8]", "inputs, 0, and neither 0"]);
    // What no shape shows.
    let shape = |rows: i64| [rows, 64].iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    says(&File::open("compressed_packed").with_start(&q("weight_shape"), &shape(-1)), &["is [-1, 64]", "two sizes"]);
    says(&File::open("compressed_packed").with_start(&q("weight_shape"), &shape(i64::MAX)), &["has shape [32, 8]"]);
    says(&File::open("gptq").with_start(&q("g_idx"), &i32s(&[4])), &["g_idx", "has 4 at 0", "below 4"]);
    says(&File::open("gptq").with_start(&q("g_idx"), &i32s(&[-1])), &["has -1 at 0"]);
}

#[test]
fn wrong_settings_are_refused() {
    let no_config = |name| {
        let mut file = File::open(name);
        for section in ["quantization", "quantization_config"] {
            file.config.as_object_mut().unwrap().remove(section);
        }
        file
    };
    for name in ["mlx", "metal4", "gptq"] {
        says(&no_config(name), &["`layer.q_proj.", "no config.json with a `quantization_config`"]);
    }
    for (name, settings, expected) in [
        ("mlx", json!({"bits": 7}), "7 `bits`"),
        ("mlx", json!({"bits": "4"}), "\"4\" as `bits`"),
        ("mlx", json!({"bits": null}), "no `bits`"),
        ("mlx", json!({"group_size": 0}), "0 as `group_size`"),
        ("mlx", json!({"group_size": 48}), "whole groups of 48"),
        ("mlx", json!({"group_size": 32}), "expected [32, 2]"),
        ("mlx", json!({"bits": 8}), "whole groups of 64"),
        ("mlx", json!({"mode": "mxfp4"}), "MLX in mode \"mxfp4\""),
        ("metal4", json!({"bits": 3}), "3 `bits`"),
        ("fp8", json!({"weight_block_size": [128, 128]}), "expected [1, 1]"),
        ("fp8", json!({"weight_block_size": [0, 40]}), "blocks of [0,40]"),
        ("gptq", json!({"group_size": 32}), "groups of 32"),
        ("gptq", json!({"checkpoint_format": "marlin"}), "`checkpoint_format` marlin"),
        ("gptq", json!({"quant_method": "auto-round"}), "the `quant_method` auto-round"),
        ("awq", json!({"version": "gemv"}), "the `version` gemv"),
        ("awq", json!({"quant_method": "gptq"}), "the `quant_method` gptq"),
    ] {
        says(&File::open(name).with_settings(&settings), &["tensor `layer.q_proj.", expected]);
    }
}

/// Whatever else a module computes of its inputs or outputs than a product with its weight.
#[test]
fn transforms_of_inputs_are_refused() {
    let scales = 2f32.to_le_bytes().repeat(64);
    for part in ["pre_quant_scale", "R4_input.weight"] {
        let name = format!("layer.q_proj.{part}");
        let file = File::open("compressed_int").with(&name, Dtype::F32, &[64], scales.clone());
        says(&file, &[&format!("tensor `{name}` stands beside compressed-tensors"), "a weight and a bias"]);
    }
    let file = File::open("compressed_int");
    let read = |config: Value| file.clone().with_settings(&json!({"transform_config": config}));
    let apply = |location: &str| json!({"targets": ["re:.*q_proj$"], "location": location, "inverse": false});
    let scheme = |locations: &[&str]| {
        let all: Vec<Value> = locations.iter().map(|location| apply(location)).collect();
        json!({"config_groups": {"R4": {"type": "hadamard", "apply": all}}})
    };
    for locations in [&["input", "weight_input"][..], &["weight_output", "output"], &["k_cache"]] {
        says(&read(scheme(locations)), &["`layer.q_proj.weight` has the transform `R4`", "transform_config"]);
    }
    // What is in the stored weights already, and nothing.
    for config in [scheme(&["weight_input", "weight_output"]), json!({"config_groups": {}}), json!({}), json!(null)] {
        let weight = read(config).checkpoint().tensor("layer.q_proj.weight", &CPU).unwrap();
        assert_eq!(bits(&weight), bits(&file.golden().tensor("layer.q_proj.weight", &CPU).unwrap()));
    }
}

/// Files that contradict themselves in any way are an error or a weight of the stated shape.
#[test]
fn changed_files_never_panic() {
    let dtypes = [Dtype::U8, Dtype::I8, Dtype::F16, Dtype::BF16, Dtype::I32, Dtype::U32, Dtype::F32, Dtype::I64];
    let mut random = Random::new(34);
    let mut below = move |n: usize| (random.uniform() * n as f64) as usize;
    let (mut read, mut refused) = (0, 0);
    for (format, ..) in FORMATS {
        let whole = File::open(format);
        let parts: Vec<String> =
            whole.tensors.keys().filter(|name| name.starts_with("layer.q_proj")).cloned().collect();
        for _ in 0..200 {
            let mut file = whole.clone();
            for _ in 0..=below(2) {
                let name = &parts[below(parts.len())];
                let Some((dtype, shape, data)) = file.tensors.get_mut(name) else { continue };
                match below(4) {
                    0 => _ = file.tensors.remove(name),
                    1 => {
                        *dtype = dtypes[below(dtypes.len())];
                        *shape = vec![data.len() * 8 / dtype.bitsize()];
                        data.truncate(shape[0] * dtype.bitsize() / 8);
                    }
                    2 => {
                        let divisor = 1 + below(9);
                        let all = shape.iter().product::<usize>();
                        *shape =
                            [vec![1, all], vec![0, all], vec![all, 0], vec![all / divisor, divisor]][below(4)].clone();
                        data.resize(shape.iter().product::<usize>() * dtype.bitsize() / 8, 7);
                    }
                    _ => data.iter_mut().for_each(|byte| *byte = below(256) as u8),
                }
            }
            let checkpoint = file.checkpoint();
            _ = checkpoint.attention_layers(Some(ModelConfig::new(&file.config)));
            match checkpoint.tensor("layer.q_proj.weight", &CPU) {
                Ok(weight) => {
                    assert_eq!(weight.dims(), checkpoint.tensor_info("layer.q_proj.weight").unwrap().1);
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(read > 100 && refused > 500, "{read} {refused}");
}

/// Formats that are not read say what they are, wherever they are met.
#[test]
fn other_formats_are_named() {
    let module = |parts: &[(&str, Dtype, &[usize])]| {
        let mut file = File::open("compressed_int");
        file.tensors.retain(|name, _| !name.starts_with("layer.q_proj"));
        for (part, dtype, shape) in parts {
            let bytes = vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8];
            file = file.with(&format!("layer.q_proj.{part}"), *dtype, shape, bytes);
        }
        file
    };
    use Dtype::{BF16, F8_E4M3, F32, I8, U8, U32};
    type Part = (&'static str, Dtype, &'static [usize]);
    let cases: [(&str, &[Part]); 9] = [
        (
            "bitsandbytes in 4 bits",
            &[
                ("weight", U8, &[1024, 1]),
                ("weight.absmax", F32, &[32]),
                ("weight.quant_map", F32, &[16]),
                ("weight.quant_state.bitsandbytes__nf4", U8, &[80]),
            ],
        ),
        ("bitsandbytes in 8 bits", &[("weight", I8, &[32, 64]), ("SCB", F32, &[32])]),
        (
            "NVFP4",
            &[
                ("weight_packed", U8, &[32, 32]),
                ("weight_scale", F8_E4M3, &[32, 4]),
                ("weight_global_scale", F32, &[1]),
            ],
        ),
        ("MXFP4", &[("weight_packed", U8, &[32, 32]), ("weight_scale", U8, &[32, 2])]),
        ("EETQ", &[("weight", I8, &[32, 64]), ("weight_scales", BF16, &[32])]),
        ("HQQ", &[("W_q", U8, &[32, 32]), ("meta", U8, &[8])]),
        ("quanto", &[("weight._data", I8, &[32, 64]), ("weight._scale", BF16, &[32, 1])]),
        ("torchao", &[("_weight_qdata", I8, &[32, 64]), ("_weight_scale", BF16, &[32, 1])]),
        ("MLX in floating point (mxfp8", &[("weight", U32, &[32, 16]), ("scales", U8, &[32, 2])]),
    ];
    for (name, parts) in cases {
        let file = module(parts);
        says(&file, &["tensor `layer.q_proj.weight` is quantized by", name, "expected "]);
        let layers = file.checkpoint().attention_layers(Some(ModelConfig::new(&file.config)));
        let problem = layers[0].problem.clone().unwrap_or_default();
        assert!(problem.contains(name), "{name}: {problem}");
    }
}

/// candle's own `VarBuilder` has the stored tensors: a layer would be made of integers.
#[test]
fn stored_tensors_of_other_sources_are_refused() {
    for (name, part) in [("mlx", "scales"), ("compressed_int", "weight_scale"), ("fp8", "weight_scale_inv")] {
        let file = File::open(name);
        let tensors: HashMap<String, Tensor> = file
            .tensors
            .keys()
            .filter(|tensor| tensor.starts_with("layer."))
            .map(|tensor| (tensor.clone(), Tensor::zeros((32, 64), DType::F32, &CPU).unwrap()))
            .collect();
        let vb = candle_nn::VarBuilder::from_tensors(tensors, DType::F32, &CPU);
        let error = MultiHeadAttention::load(&AttentionConfig::new(64, 1), vb.pp("layer")).unwrap_err().to_string();
        assert!(error.contains(&format!("layer.q_proj.{part}")) && error.contains("quantized"), "{error}");
    }
}
