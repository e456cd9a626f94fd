//! What is written first, from the crate's page alone: it works, or one line says what to write instead.

use std::collections::HashMap;

use candle_attention::checkpoint::{Checkpoint, WeightSource, infer_config};
use candle_attention::ops::Linear;
use candle_attention::position::Rotary;
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::weights::LinearWeights;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, MultiHeadAttention, ProjectionBias,
    ProjectionKind, Quantization,
};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::VarBuilder;
use serde_json::json;

use crate::common::{Random, assert_close, fixture, max_diff, numbers, random_layer, says};

const CPU: Device = Device::Cpu;

/// The tensors of a decoder's block, as Llama names them, without biases.
fn block(random: &mut Random, prefix: &str) -> HashMap<String, Tensor> {
    let mut tensors = HashMap::new();
    for (name, rows) in [("q_proj", 32), ("k_proj", 16), ("v_proj", 16), ("o_proj", 32)] {
        tensors.insert(format!("{prefix}.self_attn.{name}.weight"), random.tensor(&[rows, 32], DType::F32));
    }
    tensors.insert(format!("{prefix}.input_layernorm.weight"), Tensor::ones(32, DType::F32, &CPU).unwrap());
    tensors.insert(format!("{prefix}.mlp.up_proj.weight"), random.tensor(&[64, 32], DType::F32));
    tensors
}

/// A folder with a Llama of one layer.
fn llama(random: &mut Random) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tensors = block(random, "model.layers.0");
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let config = json!({"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn no_mask_is_none() {
    let mut random = Random::new(1);
    let layer = random_layer(&AttentionConfig::new(8, 2), 0.5, &mut random);
    let xs = random.tensor(&[2, 5, 8], DType::F32);
    let want = layer.forward(&xs).unwrap();
    let options = AttentionOptions::default();
    let attended = layer.attend_with(&AttentionInputs::self_attention(&xs, None), &options).unwrap().output;
    assert_eq!(numbers(&attended), numbers(&want));
    assert_eq!(numbers(&layer.attend(&xs, &xs, &xs, None).unwrap()), numbers(&want));
    let [q, k, v] = [0, 1, 2].map(|_| random.tensor(&[2, 5, 2, 4], DType::F32));
    let none = attend_bshd(&q, &k, &v, &SdpaOptions::default()).unwrap().output;
    let full = attend_bshd(&q, &k, &v, &SdpaOptions::new(AttentionMask::full())).unwrap().output;
    assert_eq!(numbers(&none), numbers(&full));
    let memory = layer.cross_cache(&xs, &xs).unwrap();
    assert_eq!(numbers(&layer.cross_step(&xs, &memory, None).unwrap()), numbers(&want));
}

#[test]
fn a_folder_has_its_config() {
    let folder = llama(&mut Random::new(2));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let json = checkpoint.config().unwrap().unwrap();
    let prefix = "model.layers.0.self_attn";
    let given = checkpoint.attention_with(prefix, &json, DType::F32, &CPU).unwrap();
    let model = checkpoint.attention(prefix, DType::F32, &CPU).unwrap();
    let xs = Random::new(2).tensor(&[1, 5, 32], DType::F32);
    assert_eq!(numbers(&model.forward(&xs).unwrap()), numbers(&given.forward(&xs).unwrap()));
    assert_eq!(model.mask().to_string(), "causal");
    // The methods of the layer are those of the model's layer.
    assert_eq!(model.config().num_attention_heads, 4);
    assert!(model.frozen().is_ok());
    std::fs::write(folder.path().join("config.json"), "{").unwrap();
    says(checkpoint.config(), &["config.json", "EOF"]);
    std::fs::remove_file(folder.path().join("config.json")).unwrap();
    assert!(checkpoint.config().unwrap().is_none());
    let absent = checkpoint.attention(prefix, DType::F32, &CPU);
    says(
        absent,
        &["the config.json of", "model.safetensors", "absent", "`attention_with`", "MultiHeadAttention::load"],
    );
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    assert!(Checkpoint::from_bytes(bytes).unwrap().config().unwrap().is_none());
}

/// `MultiHeadAttention::new` on the builder of a checkpoint, candle's idiom: one line, whatever candle adds to it.
#[test]
fn new_on_a_checkpoint_says_what_reads_it() {
    let folder = llama(&mut Random::new(3));
    let config = AttentionConfig::new(32, 4).with_num_key_value_heads(2);
    let file = folder.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&file, &CPU).unwrap();
    let prefix = "model.layers.0.self_attn";
    let builders = [
        VarBuilder::from_buffered_safetensors(std::fs::read(&file).unwrap(), DType::F32, &CPU).unwrap(),
        VarBuilder::from_tensors(tensors, DType::F32, &CPU),
        Checkpoint::open(folder.path()).unwrap().var_builder(DType::F32, &CPU),
    ];
    for vb in &builders {
        let error = MultiHeadAttention::new(&config, vb.pp(prefix)).unwrap_err();
        let name = "`model.layers.0.self_attn.q_proj.bias`";
        assert!(matches!(error, Error::MissingTensor { .. }), "{error}");
        says::<()>(Err(error), &[name, "ModelAttention::load", "with_bias(ProjectionBias::NONE)"]);
        assert!(MultiHeadAttention::new(&config.clone().with_bias(ProjectionBias::NONE), vb.pp(prefix)).is_ok());
    }
    // What candle says has its backtrace in the source alone.
    let candle = candle_core::Error::Msg("first\nsecond".to_string());
    let inner = candle.context("while packing").with_path("a/b");
    let error = Error::Candle(candle_core::Error::WithBacktrace {
        inner: Box::new(inner),
        backtrace: Box::new(std::backtrace::Backtrace::force_capture()),
    });
    assert_eq!(error.to_string(), "a/b: while packing: first");
    assert!(std::error::Error::source(&error).unwrap().to_string().lines().count() > 1);
}

/// What no weight shows is not left out in silence.
#[test]
fn a_layer_whose_positions_no_weight_shows_needs_its_configuration() {
    let mut random = Random::new(4);
    let source = |tensors: HashMap<String, Tensor>| VarBuilder::from_tensors(tensors, DType::F32, &CPU);
    let needs = |config: candle_attention::Result<AttentionConfig>, why: &str| {
        says(config, &[why, "Checkpoint::attention", "config.json"]);
    };
    let llama = source(block(&mut random, "model.layers.0"));
    needs(infer_config(&llama.pp("model.layers.0.self_attn"), 4), "`input_layernorm`, as in Llama");
    // The same projections alone are a layer of this crate's own.
    let mut alone = block(&mut random, "x");
    alone.remove("x.input_layernorm.weight");
    assert!(infer_config(&source(alone).pp("x.self_attn"), 4).unwrap().mask.is_full());
    let zeros = |all: &[(&str, &[usize])]| {
        let zeros = all.iter().map(|(name, dims)| (name.to_string(), Tensor::zeros(*dims, DType::F32, &CPU).unwrap()));
        source(zeros.collect())
    };
    let modernbert = zeros(&[("Wqkv.weight", &[24, 8]), ("Wo.weight", &[8, 8])]);
    needs(infer_config(&modernbert, 2), "`modernbert`");
    let neox = zeros(&[
        ("query_key_value.weight", &[24, 8]),
        ("query_key_value.bias", &[24]),
        ("dense.weight", &[8, 8]),
        ("dense.bias", &[8]),
    ]);
    needs(infer_config(&neox, 2), "layout `neox`");
    // nanoGPT has these names, too, with rows in another order; fewer key-value heads are those of GPT-BigCode alone.
    let c_attn = |rows: usize| {
        zeros(&[
            ("c_attn.weight", &[rows, 8]),
            ("c_attn.bias", &[rows]),
            ("c_proj.weight", &[8, 8]),
            ("c_proj.bias", &[8]),
        ])
    };
    needs(infer_config(&c_attn(24), 2), "names that GPT-BigCode, Qwen 1 and nanoGPT share");
    assert_eq!(infer_config(&c_attn(16), 2).unwrap().resolved_num_key_value_heads(), 1);
    let meta = zeros(&[("wq.weight", &[8, 8]), ("wk.weight", &[8, 8]), ("wv.weight", &[8, 8]), ("wo.weight", &[8, 8])]);
    needs(infer_config(&meta, 2), "Llama as Meta and Mistral publish it");
    // The U-Nets of diffusers have no rotation, and a bias of the output alone. Their keys may have another width.
    let mut unet: Vec<(&str, &[usize])> = vec![
        ("to_q.weight", &[8, 8]),
        ("to_k.weight", &[8, 6]),
        ("to_v.weight", &[8, 6]),
        ("to_out.0.weight", &[8, 8]),
        ("to_out.0.bias", &[8]),
    ];
    let cross = infer_config(&zeros(&unet), 2).unwrap();
    assert!(cross.mask.is_full() && cross.bias.o && !cross.bias.q, "{cross:?}");
    // With norms of queries and keys, which formula they have and whether there is a rotation is in no weight.
    unet.push(("norm_q.weight", &[4]));
    says(infer_config(&zeros(&unet), 2), &["norm_q"]);
    // All models with GPT-2's layout are causal, and have their positions in front of the first layer.
    let gpt2 = zeros(&[
        ("c_attn.weight", &[8, 24]),
        ("c_attn.bias", &[24]),
        ("c_proj.weight", &[8, 8]),
        ("c_proj.bias", &[8]),
    ]);
    assert_eq!(infer_config(&gpt2, 2).unwrap().mask.to_string(), "causal");
}

#[test]
fn a_causal_layer_is_no_cross_attention() {
    let mut random = Random::new(5);
    let memory = random.tensor(&[1, 5, 8], DType::F32);
    for mask in [AttentionMask::causal(), AttentionMask::window(Some(2), Some(2))] {
        let layer = random_layer(&AttentionConfig::new(8, 2).with_mask(mask), 0.5, &mut random);
        says(layer.cross_cache(&memory, &memory), &["mask = ", "order of the tokens", "cross-attention"]);
        assert!(layer.with_mask(AttentionMask::full()).unwrap().cross_cache(&memory, &memory).is_ok());
    }
}

/// A rotation is a step of layers that rotate alone.
#[test]
fn a_layer_without_positions_lists_no_rotation() {
    let checkpoint = Checkpoint::open(fixture("tiny-bert")).unwrap();
    let json = checkpoint.config().unwrap().unwrap();
    let model = checkpoint.attention_with("encoder.layer.0.attention", &json, DType::F32, &CPU).unwrap();
    assert!(model.config().steps.queries.is_empty() && model.config().steps.keys.is_empty());
    assert_eq!(*model.config(), AttentionConfig::new(24, 4), "and is the layer that lists an idle one");
    assert_ne!(AttentionConfig::new(24, 4), AttentionConfig::new(24, 4).with_position(Rotary::default()));
}

/// A whole model in few bits is as short to write as one in f32.
#[test]
fn a_linear_layer_is_loaded_in_few_bits() {
    let folder = llama(&mut Random::new(6));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let plain = Linear::load(&checkpoint.at("model.layers.0.mlp", DType::F32, &CPU), "up_proj", 64, 32).unwrap();
    let int8 = Linear::load(&checkpoint.at("model.layers.0", Quantization::Int8, &CPU), "mlp.up_proj", 64, 32).unwrap();
    assert_eq!((plain.quantization(), int8.quantization()), (None, Some(Quantization::Int8)));
    let xs = Random::new(7).tensor(&[2, 3, 5, 32], DType::F32);
    let (want, got) = (plain.forward(&xs).unwrap(), int8.forward(&xs).unwrap());
    assert_eq!(got.dims(), [2, 3, 5, 64]);
    let exact = xs.broadcast_matmul(&plain.weights().unwrap().weight.t().unwrap()).unwrap();
    assert_close("f32", &want, &exact, 1e-5);
    assert!((1e-4..0.2).contains(&max_diff(&got, &want)));
    // As candle's layers, on any number of dimensions but with these features.
    assert_eq!(plain.forward(&xs.flatten_to(2).unwrap()).unwrap().dims(), [30, 64]);
    says(plain.forward(&xs.transpose(2, 3).unwrap()).map_err(Error::from), &["[2, 3, 32, 5]", "(…, 32)"]);
    says(plain.forward(&Tensor::zeros((), DType::F32, &CPU).unwrap()).map_err(Error::from), &["[]", "(…, 32)"]);
    says(
        Linear::load(&checkpoint.at("model.layers.0.mlp", DType::F32, &CPU), "up_proj", 65, 32),
        &["model.layers.0.mlp.up_proj.weight", "[64, 32]", "[65, 32]"],
    );
    for dims in [&[0usize, 32][..], &[3, 0, 32]] {
        assert_eq!(int8.forward(&Tensor::zeros(dims, DType::F32, &CPU).unwrap()).unwrap().dims().last(), Some(&64));
    }
    for huge in [1usize << 40, 1 << 60] {
        let view = Tensor::zeros((1, 1, 32), DType::F32, &CPU).unwrap().broadcast_as((huge, 2, 32)).unwrap();
        says(int8.forward(&view).map_err(Error::from), &["the input"]);
    }
    // Variables stay variables.
    let map = checkpoint.to_varmap("model.layers.0.mlp", DType::F32, &CPU).unwrap();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &CPU).pp("model.layers.0.mlp");
    let learns = Linear::load(&vb, "up_proj", 64, 32).unwrap();
    let gradients = learns.forward(&xs).unwrap().sum_all().unwrap().backward().unwrap();
    assert!(gradients.get(&map.all_vars()[0]).is_some());
}

#[test]
fn a_weight_that_is_nan_is_named() {
    let mut tensors = block(&mut Random::new(8), "model.layers.0");
    for name in ["self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"] {
        let full = format!("model.layers.0.{name}.weight");
        let intact = tensors[&full].clone();
        let nan = (intact.clone() * f64::NAN).unwrap();
        tensors.insert(full.clone(), Tensor::cat(&[&intact.narrow(0, 0, 3).unwrap(), &nan], 0).unwrap());
        tensors
            .insert(full.clone(), tensors[&full].narrow(0, 0, intact.dim(0).unwrap()).unwrap().contiguous().unwrap());
        let bytes = safetensors::serialize(&tensors, None).unwrap();
        let checkpoint = Checkpoint::from_bytes(bytes).unwrap();
        let source = checkpoint.at("model.layers.0", Quantization::Int8, &CPU);
        let config = AttentionConfig::new(32, 4).with_num_key_value_heads(2).with_bias(ProjectionBias::NONE);
        let error = match name.strip_prefix("mlp.") {
            Some(_) => Linear::load(&source, name, 64, 32).map(|_| ()),
            None => MultiHeadAttention::load(&config, source.child("self_attn")).map(|_| ()),
        };
        let projection = name.rsplit('.').next().unwrap();
        says(error, &["a weight of output feature 3 of `", projection, "model.layers.0", "NaN"]);
        tensors.insert(full, intact);
    }
}

/// In a call in training all projections are those of the dequantized weights, whichever input or weight tracks.
#[test]
fn a_call_in_training_rounds_no_inputs() {
    let mut random = Random::new(9);
    let layer = random_layer(&AttentionConfig::new(32, 4).with_num_key_value_heads(2), 0.3, &mut random);
    let int8 = layer.quantized(Quantization::Int8).unwrap();
    let dequantized = MultiHeadAttention::from_weights(int8.config(), int8.weights().unwrap()).unwrap();
    let (xs, memory) = (random.tensor(&[2, 5, 32], DType::F32), random.tensor(&[2, 7, 32], DType::F32));
    let (want, served) = (dequantized.forward(&xs).unwrap(), int8.forward(&xs).unwrap());
    assert!(max_diff(&served, &want) > 1e-3);
    assert_close("train", &int8.forward_t(&xs, true).unwrap(), &want, 1e-5);
    assert_eq!(numbers(&int8.forward(&xs).unwrap()), numbers(&served), "the layer is as it was");
    let variable = |tensor: &Tensor| Var::from_tensor(tensor).unwrap();
    assert_close("inputs", &int8.forward(variable(&xs).as_tensor()).unwrap(), &want, 1e-5);
    // Of two inputs one is a variable.
    let cross = dequantized.attend(&xs, &memory, &memory, None).unwrap();
    let (queries, memories) = (variable(&xs), variable(&memory));
    assert_close("queries", &int8.attend(queries.as_tensor(), &memory, &memory, None).unwrap(), &cross, 1e-5);
    let memories = memories.as_tensor();
    assert_close("memory", &int8.attend(&xs, memories, memories, None).unwrap(), &cross, 1e-5);
    // What is added to the queries alone, a memory that is projected, and a factor of the heads.
    let vectors = variable(&random.tensor(&[1, 5, 32], DType::F32));
    let added = AttentionInputs::self_attention(&xs, None).with_position_vectors(vectors.as_tensor(), None);
    let options = AttentionOptions::default();
    let [got, want] = [&int8, &dequantized].map(|layer| layer.attend_with(&added, &options).unwrap().output);
    assert_close("position vectors", &got, &want, 1e-5);
    let cross_step = |layer: &MultiHeadAttention| {
        layer.cross_step(&xs, &layer.cross_cache(memories, memories).unwrap(), None).unwrap()
    };
    assert_close("projected memory", &cross_step(&int8), &cross_step(&dequantized), 1e-5);
    let factors = variable(&Tensor::ones(4, DType::F32, &CPU).unwrap());
    let options = options.with_head_mask(factors.as_tensor());
    let inputs = AttentionInputs::self_attention(&xs, None);
    let [got, want] = [&int8, &dequantized].map(|layer| layer.attend_with(&inputs, &options).unwrap().output);
    assert_close("head mask", &got, &want, 1e-5);
    // A change beside one projection.
    let (a, b) = (variable(&random.tensor(&[3, 32], DType::F32)), variable(&random.tensor(&[32, 3], DType::F32)));
    for kind in [ProjectionKind::Query, ProjectionKind::Output] {
        let beside = |layer: &MultiHeadAttention| {
            let projection = layer.projection(kind).unwrap().with_low_rank(&a, &b, 0.1).unwrap();
            layer.with_projection(kind, projection).unwrap()
        };
        let [learns, exact] = [&int8, &dequantized].map(beside);
        let want = exact.forward(&xs).unwrap();
        assert_close("beside", &learns.forward(&xs).unwrap(), &want, 1e-5);
        let [got, cross] = [&learns, &exact]
            .map(|layer| layer.cross_step(&xs, &layer.cross_cache(&memory, &memory).unwrap(), None).unwrap());
        assert_close("a projected memory that is fixed", &got, &cross, 1e-5);
        let inputs = AttentionInputs::self_attention(&xs, None);
        let options = AttentionOptions::default();
        assert_eq!(learns.plan(&inputs, &options).unwrap().quantization, None);
        assert_eq!(int8.plan(&inputs, &options).unwrap().quantization, Some(Quantization::Int8));
        assert!(max_diff(&learns.frozen().unwrap().forward(&xs).unwrap(), &want) > 1e-3, "served again");
        assert_eq!(learns.frozen().unwrap().quantization(), Some(Quantization::Int8));
    }
    // A projection alone.
    let weights = LinearWeights::new(random.tensor(&[6, 32], DType::F32), None);
    let mut linear = Linear::new("x", weights, 6, 32).unwrap();
    linear.quantize(Quantization::Int8).unwrap();
    let served = linear.forward(&xs).unwrap();
    linear.set_exact();
    let exact = xs.broadcast_matmul(&linear.weights().unwrap().weight.t().unwrap()).unwrap();
    assert_close("exact", &linear.forward(&xs).unwrap(), &exact, 1e-5);
    linear.pack().unwrap();
    assert_eq!(numbers(&linear.forward(&xs).unwrap()), numbers(&served));
}
