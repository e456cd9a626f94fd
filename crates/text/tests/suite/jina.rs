//! Jina-BERT v2 against golden values of candle-transformers (`benches/tests/candle_transformers.rs`), and its variant
//! for code against a plain computation of its rules.

use std::collections::HashMap;

use candle_attention::{AttentionMask, Error};
use candle_attention_text::{TextModel, TextModelConfig};
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use serde_json::{Value, json};

use crate::common::{Golden, Random, assert_close, says};

const CPU: Device = Device::Cpu;
const TOLERANCE: f64 = 2e-5;
/// No power of two of heads: its slopes are of two sequences.
const SIZES: [usize; 5] = [19, 24, 2, 6, 10];

fn config() -> Value {
    let [vocab, hidden, layers, heads, inner] = SIZES;
    json!({
        "model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu", "vocab_size": vocab,
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
        "hidden_act": "gelu", "max_position_embeddings": 16, "type_vocab_size": 2, "initializer_range": 0.02,
        "layer_norm_eps": 1e-3, "pad_token_id": 0, "auto_map": {"AutoModel": "modeling_bert.JinaBertModel"},
    })
}

type Tensors = HashMap<String, Tensor>;

/// Random weights: of everything below a layer, what `names` lists as (name, out, in).
fn weights(norms: &[&str], names: &[(&str, usize, usize, bool)]) -> Tensors {
    let [vocab, hidden, layers, ..] = SIZES;
    let mut random = Random::new(70);
    let mut tensors = Tensors::new();
    let mut put = |name: String, dims: &[usize], center: f64| {
        tensors.insert(name, ((random.tensor(dims, DType::F32) * 0.4).unwrap() + center).unwrap());
    };
    put("embeddings.word_embeddings.weight".into(), &[vocab, hidden], 0.0);
    put("embeddings.token_type_embeddings.weight".into(), &[2, hidden], 0.0);
    let layers: Vec<String> = (0..layers).map(|i| format!("encoder.layer.{i}.")).collect();
    let of_layers = layers.iter().flat_map(|layer| norms.iter().map(move |norm| format!("{layer}{norm}")));
    for norm in of_layers.chain(["embeddings.LayerNorm".to_string()]) {
        put(format!("{norm}.weight"), &[hidden], 1.0);
        put(format!("{norm}.bias"), &[hidden], 0.0);
    }
    for layer in layers {
        for (name, out, input, bias) in names {
            put(format!("{layer}{name}.weight"), &[*out, *input], 0.0);
            if *bias {
                put(format!("{layer}{name}.bias"), &[*out], 0.0);
            }
        }
    }
    tensors
}

fn attention() -> [(&'static str, usize, usize, bool); 4] {
    let names = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"];
    names.map(|name| (name, SIZES[1], SIZES[1], true))
}

fn load(config: Value, tensors: &Tensors) -> Result<TextModel, Error> {
    let config: TextModelConfig = serde_json::from_value(config).unwrap();
    TextModel::load(&config, VarBuilder::from_tensors(tensors.clone(), DType::F32, &CPU))
}

#[test]
fn jina_bert_equals_candle_transformers() {
    let golden = Golden::open("jina_bert.safetensors");
    let (ids, want) = (golden.get("golden.ids"), golden.get("golden.output"));
    let config_read: TextModelConfig = serde_json::from_value(config()).unwrap();
    let ours = TextModel::load(&config_read, golden.0.at("", DType::F32, &CPU)).unwrap();
    let got = ours.forward(&ids, None, &AttentionMask::full()).unwrap();
    assert_close("jina", &got, &want, TOLERANCE);
    assert!(ours.supports_ragged());
    let flat = ids.flatten_all().unwrap().to_vec1::<u32>().unwrap();
    let got = ours.forward_ragged(&flat, &[0; 14], &[7, 7]).unwrap();
    assert_close("jina, ragged", &got, &want.flatten(0, 1).unwrap(), TOLERANCE);

    let mut original = config();
    original["feed_forward_type"] = json!("original");
    let error = serde_json::from_value::<TextModelConfig>(original);
    says(error, &["feed_forward_type = original", "geglu or reglu"]);
}

/// `jina-embeddings-v2-base-code`: norms of queries and keys over all heads, the second half of the gate activated.
#[test]
fn jina_bert_for_code_equals_its_formula() {
    let [_, hidden, layers, heads, inner] = SIZES;
    let mlp = [("mlp.up_gated_layer", 2 * inner, hidden, false), ("mlp.down_layer", hidden, inner, true)];
    let norms = ["attention.self.layer_norm_q", "attention.self.layer_norm_k", "layer_norm_1", "layer_norm_2"];
    // The input is added to attention twice, each time with a norm.
    let norms = [&norms[..], &["attention.output.LayerNorm"]].concat();
    let tensors = weights(&norms, &[&attention()[..], &mlp].concat());
    let ids = [2u32, 9, 5, 1, 18, 3, 7];

    let get = |name: &str| tensors[name].to_dtype(DType::F64).unwrap();
    let linear = |xs: &Tensor, name: &str| {
        let ys = xs.matmul(&get(&format!("{name}.weight")).t().unwrap()).unwrap();
        let bias = format!("{name}.bias");
        if tensors.contains_key(&bias) { ys.broadcast_add(&get(&bias)).unwrap() } else { ys }
    };
    let norm = |xs: &Tensor, name: &str| {
        let centered = xs.broadcast_sub(&xs.mean_keepdim(D::Minus1).unwrap()).unwrap();
        let deviation = (centered.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + 1e-3).unwrap().sqrt().unwrap();
        let xs = centered.broadcast_div(&deviation).unwrap().broadcast_mul(&get(&format!("{name}.weight"))).unwrap();
        xs.broadcast_add(&get(&format!("{name}.bias"))).unwrap()
    };
    // 2^-2, 2^-4, 2^-6, 2^-8 for four heads, then every other one of eight.
    let slopes = [2.0f64, 4.0, 6.0, 8.0, 1.0, 3.0].map(|power| (-power).exp2());
    let distances: Vec<f64> = slopes
        .iter()
        .flat_map(|slope| (0..7i32).flat_map(move |i| (0..7i32).map(move |j| -slope * f64::from((i - j).abs()))))
        .collect();
    let distances = Tensor::from_vec(distances, (heads, 7, 7), &CPU).unwrap();
    let by_head = |xs: Tensor| xs.reshape((7, heads, hidden / heads)).unwrap().transpose(0, 1).unwrap();
    let by_head = |xs: Tensor| by_head(xs).contiguous().unwrap();

    let words = get("embeddings.word_embeddings.weight").index_select(&Tensor::new(&ids, &CPU).unwrap(), 0).unwrap();
    let types = get("embeddings.token_type_embeddings.weight").get(0).unwrap();
    let mut xs = norm(&words.broadcast_add(&types).unwrap(), "embeddings.LayerNorm");
    for layer in (0..layers).map(|i| format!("encoder.layer.{i}")) {
        let own = |name: &str| format!("{layer}.attention.self.{name}");
        let q = by_head(norm(&linear(&xs, &own("query")), &own("layer_norm_q")));
        let k = by_head(norm(&linear(&xs, &own("key")), &own("layer_norm_k")));
        let v = by_head(linear(&xs, &own("value")));
        let scores = (q.matmul(&k.t().unwrap()).unwrap() / ((hidden / heads) as f64).sqrt()).unwrap();
        let weights = candle_nn::ops::softmax((scores + &distances).as_ref().unwrap(), D::Minus1).unwrap();
        let context = weights.matmul(&v).unwrap().transpose(0, 1).unwrap().reshape((7, hidden)).unwrap();
        let attended = linear(&context, &format!("{layer}.attention.output.dense"));
        let attended = norm(&(&xs + attended).unwrap(), &format!("{layer}.attention.output.LayerNorm"));
        xs = norm(&(&xs + attended).unwrap(), &format!("{layer}.layer_norm_1"));
        let both = linear(&xs, &format!("{layer}.mlp.up_gated_layer"));
        let half = |i: usize| both.narrow(1, i * inner, inner).unwrap();
        let inner = (half(0) * half(1).gelu_erf().unwrap()).unwrap();
        xs = norm(
            &(&xs + linear(&inner, &format!("{layer}.mlp.down_layer"))).unwrap(),
            &format!("{layer}.layer_norm_2"),
        );
    }

    let model = load(config(), &tensors).unwrap();
    let ids = Tensor::new(&[ids], &CPU).unwrap();
    let got = model.forward(&ids, None, &AttentionMask::full()).unwrap().squeeze(0).unwrap();
    assert_close("code", &got, &xs, TOLERANCE);
}
