//! The layer against the systems it grew out of, each from its own weights.

use candle_attention::checkpoint::infer_config;
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, MultiHeadAttention, PaddedIds, Scoring, sdpa,
};
use candle_core::{DType, Device, IndexOp, Module, Tensor};

use crate::common::{Golden, SEED, assert_within, max_diff};

/// Runs a case of a golden file: the layer of its weights on its inputs, under `mask` and the case's own `lengths`.
fn run(file: &str, case: &str, config: Option<AttentionConfig>, heads: usize, mask: AttentionMask) {
    let golden = Golden::open(file);
    let source = golden.0.at(&format!("{case}.layer"), DType::F32, &Device::Cpu);
    let config = config.unwrap_or_else(|| infer_config(&source, heads).unwrap());
    let layer = MultiHeadAttention::load(&config, source).unwrap();
    let [query, key, value] = ["query", "key", "value"].map(|name| golden.get(&format!("{case}.{name}")));
    let mask = match golden.try_get(&format!("{case}.lengths")) {
        Some(lengths) => mask.and(AttentionMask::lengths_tensor(&lengths).unwrap()),
        None => mask,
    };
    let inputs = AttentionInputs::new(&query, &key, &value, &mask);
    let got = layer.attend_with(&inputs, &AttentionOptions::default().with_return_attention_weights(true)).unwrap();
    let want = golden.get(&format!("{case}.output"));
    println!("{file} {case}: output differs by at most {:e}", max_diff(&got.output, &want));
    assert_within(&format!("{file} {case} output"), &got.output, &want, SEED);
    // Without weights the fused kernel runs.
    let fused = layer.attend(&query, &key, &value, &mask).unwrap();
    println!("{file} {case}: fused output differs by at most {:e}", max_diff(&fused, &want));
    assert_within(&format!("{file} {case} fused output"), &fused, &want, SEED);
    let weights = got.attention_weights.unwrap();
    if let Some(want) = golden.try_get(&format!("{case}.weights")) {
        println!("{file} {case}: weights differ by at most {:e}", max_diff(&weights, &want));
        assert_within(&format!("{file} {case} weights"), &weights, &want, SEED);
    }
}

fn keep(file: &str, name: &str) -> AttentionMask {
    AttentionMask::keep(&Golden::open(file).get(name).unsqueeze(1).unwrap()).unwrap() // (b, s_q, s_kv)
}

#[test]
fn equals_d2l_torch() {
    run("d2l_torch.safetensors", "toy", None, 5, AttentionMask::full());
    run("d2l_torch.safetensors", "lens2d", None, 5, AttentionMask::full());
    run("d2l_torch.safetensors", "nolens", None, 4, AttentionMask::full());
}

#[test]
fn equals_d2l_torch_with_explicit_sizes() {
    run("d2l_torch_old.safetensors", "sizes", None, 5, AttentionMask::full());
    run("d2l_torch_old.safetensors", "sizes_bias", None, 5, AttentionMask::full());
}

#[test]
fn equals_d2l_jax() {
    for (case, heads) in [("toy", 5), ("lens2d", 5), ("nolens", 4)] {
        run("d2l_jax.safetensors", case, None, heads, AttentionMask::full());
    }
}

#[test]
fn equals_d2l_keras() {
    for (case, heads) in [("toy", 5), ("lens2d", 5), ("nolens", 4)] {
        run("d2l_keras.safetensors", case, None, heads, AttentionMask::full());
    }
}

#[test]
fn equals_d2l_mxnet() {
    for (case, heads) in [("toy", 5), ("lens2d", 5), ("nolens", 4)] {
        run("d2l_mxnet.safetensors", case, None, heads, AttentionMask::full());
    }
}

/// d2l fills masked scores with -1e6, so a row that sees nothing comes out as the mean of all values. Here it is zero:
/// the one difference, and only in that row.
#[test]
fn d2l_fully_masked_row_is_zero_here() {
    let golden = Golden::open("d2l_torch.safetensors");
    let source = golden.0.at("fullymasked.layer", DType::F32, &Device::Cpu);
    let layer = MultiHeadAttention::load(&infer_config(&source, 5).unwrap(), source).unwrap();
    let [query, key, value, want] =
        ["query", "key", "value", "output"].map(|name| golden.get(&format!("fullymasked.{name}")));
    let mask = AttentionMask::lengths_tensor(&golden.get("fullymasked.lengths")).unwrap();
    let got = layer.attend(&query, &key, &value, &mask).unwrap();
    assert_within("the row with keys", &got.i(1).unwrap(), &want.i(1).unwrap(), SEED);
    assert!(max_diff(&got.i(0).unwrap(), &got.i(0).unwrap().zeros_like().unwrap()) == 0.0);
    assert!(max_diff(&want.i(0).unwrap(), &want.i(0).unwrap().zeros_like().unwrap()) > 0.1);
}

/// d2l's `AdditiveAttention` has no value or output projection: with identities there, one head is the same.
#[test]
fn equals_d2l_additive_attention() {
    let golden = Golden::open("d2l_torch.safetensors");
    let get = |name: &str| golden.get(&format!("additive.{name}"));
    let (query, key, value) = (get("query"), get("key"), get("value"));
    let eye = Tensor::eye(4, DType::F32, &Device::Cpu).unwrap();
    let tensors = [
        ("q_proj.weight", get("layer.W_q.weight")),
        ("k_proj.weight", get("layer.W_k.weight")),
        ("v_proj.weight", eye.clone()),
        ("o_proj.weight", eye),
        ("score.weight", get("layer.w_v.weight")),
    ];
    let tensors = tensors.into_iter().map(|(name, tensor)| (name.to_string(), tensor)).collect();
    let vb = candle_nn::VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let config = AttentionConfig::new(4, 1)
        .with_scoring(Scoring::Additive)
        .with_head_dim(8)
        .with_value_head_dim(4)
        .with_query_size(20)
        .with_key_size(2);
    let layer = MultiHeadAttention::load(&config, vb).unwrap();
    let mask = AttentionMask::lengths_tensor(&get("lengths")).unwrap();
    let inputs = AttentionInputs::new(&query, &key, &value, &mask);
    let got = layer.attend_with(&inputs, &AttentionOptions::default().with_return_attention_weights(true)).unwrap();
    println!("d2l additive: output differs by at most {:e}", max_diff(&got.output, &get("output")));
    assert_within("output", &got.output, &get("output"), SEED);
    assert_within("weights", &got.attention_weights.unwrap().squeeze(1).unwrap(), &get("weights"), SEED);
}

#[test]
fn equals_flax() {
    run("flax_mha.safetensors", "linen", None, 4, keep("flax_mha.safetensors", "linen.keep"));
    run("flax_mha.safetensors", "nnx", None, 4, keep("flax_mha.safetensors", "nnx.keep"));
}

#[test]
fn equals_keras() {
    let heads = Golden::open("keras_mha.safetensors").get("self.layer.query.kernel").dim(1).unwrap();
    run("keras_mha.safetensors", "self", None, heads, AttentionMask::full());
    let heads = Golden::open("keras_mha.safetensors").get("cross.layer.query.kernel").dim(1).unwrap();
    run("keras_mha.safetensors", "cross", None, heads, keep("keras_mha.safetensors", "cross.keep"));
}

#[test]
fn equals_torch_multihead_attention() {
    let file = "torch_mha.safetensors";
    let golden = Golden::open(file);
    let drop = |case: &str| AttentionMask::exclude_keys(&golden.get(&format!("{case}.drop"))).unwrap();
    let zero_attn = Some(AttentionConfig::new(24, 4).with_add_zero_attn(true));
    run(file, "packed", None, 4, AttentionMask::full());
    run(file, "packed_nobias", None, 4, AttentionMask::full());
    run(file, "cross", None, 4, drop("cross"));
    run(file, "split", None, 4, AttentionMask::full());
    run(file, "bias_kv", None, 4, drop("bias_kv"));
    run(file, "zero_attn", zero_attn.clone(), 4, drop("zero_attn"));
    let bias_kv_zero = golden.try_get("bias_kv_zero.drop").map(|drop| AttentionMask::exclude_keys(&drop).unwrap());
    run(file, "bias_kv_zero", zero_attn, 4, bias_kv_zero.unwrap_or_default());
    run(file, "additive", None, 4, AttentionMask::additive(&golden.get("additive.additive")).unwrap());
    run(file, "causal", None, 4, AttentionMask::causal());
}

/// The notebook: ragged id lists, padded with 0 to the longest, embedded, then self-attention over 512 numbers in 8
/// heads, with and without the padding masked. The golden holds three of the ten sequences at ten positions.
#[test]
fn equals_the_d2l_notebook() {
    let golden = Golden::open("notebook.safetensors");
    let padded_ids = golden.get("ids").to_vec2::<i64>().unwrap();
    let lengths = golden.get("lengths").to_vec1::<i64>().unwrap();
    let ragged: Vec<Vec<u32>> = padded_ids
        .iter()
        .zip(&lengths)
        .map(|(ids, &n)| ids[..n as usize].iter().map(|&id| id as u32).collect())
        .collect();
    let padded = PaddedIds::new(&ragged, 0, &Device::Cpu).unwrap();
    assert_eq!(padded.ids.to_dtype(DType::I64).unwrap().to_vec2::<i64>().unwrap(), padded_ids);

    let table = golden.get("embedding.weight").to_dtype(DType::F32).unwrap();
    let xs = candle_nn::Embedding::new(table, 512).forward(&padded.ids).unwrap();
    let source = golden.0.at("layer", DType::F32, &Device::Cpu);
    let layer = MultiHeadAttention::load(&AttentionConfig::new(512, 8), source).unwrap();

    let positions = Tensor::new(&[0u32, 1, 2, 3, 4, 5, 6, 7, 18, 19], &Device::Cpu).unwrap();
    let shown = |ys: Tensor| ys.narrow(0, 0, 3).unwrap().index_select(&positions, 1).unwrap();
    let masked = shown(layer.attend(&xs, &xs, &xs, AttentionMask::lengths(&padded.lengths)).unwrap());
    println!("notebook: output differs by at most {:e}", max_diff(&masked, &golden.get("masked.output")));
    assert_within("masked", &masked, &golden.get("masked.output"), SEED);
    assert_within("unmasked", &shown(layer.forward(&xs).unwrap()), &golden.get("unmasked.output"), SEED);
}

/// f16 and bf16 against an f64 reference: no worse than PyTorch in the same type on the same numbers.
#[test]
fn half_types_are_no_worse_than_pytorch() {
    let golden = Golden::open("half.safetensors");
    for (dtype, name) in [(DType::F16, "f16"), (DType::BF16, "bf16")] {
        for (case, heads) in [("7", 4), ("64", 4), ("333", 2), ("uniform", 2)] {
            let case = format!("{name}_{case}");
            let source = golden.0.at(&format!("{case}.layer"), dtype, &Device::Cpu);
            let layer = MultiHeadAttention::load(&infer_config(&source, heads).unwrap(), source).unwrap();
            let got = layer.forward(&golden.get(&format!("{case}.query"))).unwrap();
            assert_eq!(got.dtype(), dtype);
            let reference = golden.get(&format!("{case}.reference"));
            let (ours, torch) =
                (max_diff(&got, &reference), max_diff(&golden.get(&format!("{case}.torch")), &reference));
            println!("{case}: ours {ours:e}, PyTorch {torch:e}");
            assert!(ours <= torch, "{case}: our error {ours:e} is above PyTorch's {torch:e}");
            // And close in absolute terms: an output of about 1 rounded once.
            assert!(ours < if dtype == DType::F16 { 2e-3 } else { 1.6e-2 });
        }
    }
    let want = sdpa::Backend::Eager;
    assert_eq!("eager".parse::<sdpa::Backend>().unwrap(), want);
}
