//! Attention layers as their models run them: each published family's own module, in its published layout, with its
//! positions, norms, windows and caches, against the output that transformers or timm gave (`tests/golden/families.py`).

use candle_attention::checkpoint::{Checkpoint, ModelAttention};
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, KvCache};
use candle_core::{DType, Device, Tensor};

use crate::common::{LAYER, assert_close, fixture, max_diff};

const CPU: Device = Device::Cpu;

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    prefix: String,
    kind: String,
}

fn family(name: &str) {
    let path = fixture(&format!("families/{name}.safetensors"));
    let bytes = std::fs::read(&path).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    // timm's checkpoints have no config.json; what a user would have to say stands beside it.
    let json = serde_json::from_str(metadata.get("timm").unwrap_or(&metadata["config"])).unwrap();
    let cases: Vec<Case> = serde_json::from_str(&metadata["cases"]).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let what = format!("{name} {}", case.name);
        let get = |part: &str| {
            let full = format!("golden.{}.{part}", case.name);
            checkpoint.contains(&full).then(|| checkpoint.tensor(&full, &CPU).unwrap())
        };
        let model = checkpoint.attention(&case.prefix, &json, DType::F32, &CPU).unwrap();
        assert_eq!(model.not_applied, [], "{what}");
        let xs = get("input").unwrap();
        let key = get("key").unwrap_or_else(|| xs.clone());
        assert_eq!(case.kind == "cross", get("key").is_some(), "{what}");
        let mut mask = model.mask.clone();
        if let Some(keep) = get("mask") {
            mask = mask.and(AttentionMask::keep(&keep).unwrap());
        }
        let inputs = AttentionInputs { query: &xs, key: &key, value: &key, mask: &mask };
        let want = get("output").unwrap();
        let got = model.layer.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
        println!("{what} ({}): output differs by at most {:e}", model.layout.name, max_diff(&got, &want));
        assert_close(&what, &got, &want, LAYER);
        chunks(&what, &model, get("chunks"), get("chunk_input"), get("chunk_output"));
        let weighted = AttentionOptions::default().with_weights(true);
        let eager = model.layer.attend_with(&inputs, &weighted).unwrap();
        assert_close(&what, &eager.output, &want, LAYER);
    }
}

/// The same in the chunks in which transformers ran it with its cache.
fn chunks(what: &str, model: &ModelAttention, lengths: Option<Tensor>, xs: Option<Tensor>, want: Option<Tensor>) {
    let (Some(lengths), Some(xs), Some(want)) = (lengths, xs, want) else { return };
    let mut cache = KvCache::growing();
    let mut start = 0;
    let mut outputs = Vec::new();
    for length in lengths.to_vec1::<i64>().unwrap() {
        let xs = xs.narrow(1, start, length as usize).unwrap();
        let inputs = AttentionInputs::self_attention(&xs, &model.mask);
        outputs.push(model.layer.attend_cached(&inputs, &mut cache, &AttentionOptions::default()).unwrap().output);
        start += length as usize;
    }
    assert!(outputs.len() > 1, "{what}");
    assert_close(&format!("{what} in chunks"), &Tensor::cat(&outputs, 1).unwrap(), &want, LAYER);
}

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            family(stringify!($name));
        }
    )*};
}

families! {
    albert
    bart
    bert
    bloom
    bloom_6heads
    clip
    codegen
    cohere
    cohere_qknorm
    dinov2
    distilbert
    electra
    esm
    falcon
    falcon_alibi
    falcon_mq
    gemma
    gemma2
    gemma3
    gpt2
    gpt2_cross
    gpt_bigcode
    gpt_bigcode_mha
    gpt_neo
    gpt_neox
    gpt_oss
    gptj
    granite
    gte
    jina_embeddings_v3
    llama
    llama3
    llama_dynamic
    llama_linear
    llama_yarn
    llama_yarn_mscale
    marian
    mistral
    modernbert
    mpnet
    mpt
    nomic_bert
    olmo
    olmo2
    opt
    persimmon
    phi
    phi3
    phi3_longrope
    phi_qknorm
    qwen2
    qwen3
    roberta
    siglip
    stablelm
    stablelm_qknorm
    starcoder2
    t5
    timm_siglip_pool
    timm_vit
    timm_vit_qknorm
    umt5
    vit
    wav2vec2
    whisper
    xlm_roberta
}

/// What this version cannot run as its model does is said, not passed over.
#[test]
fn what_is_not_applied_is_named() {
    for (name, prefix) in [
        ("beit", "encoder.layer.0.attention"),
        ("deberta", "encoder.layer.0.attention"),
        ("deberta_v2", "encoder.layer.0.attention"),
        ("timm_beit", "blocks.0.attn"),
    ] {
        let path = fixture(&format!("families/{name}.safetensors"));
        let json = serde_json::json!({"num_attention_heads": 4});
        let loaded = Checkpoint::open(&path).unwrap().attention(prefix, &json, DType::F32, &CPU);
        assert!(loaded.is_err(), "{name}");
    }
    let path = fixture("families/dinov3_vit.safetensors");
    let json = serde_json::json!({"num_attention_heads": 4, "model_type": "dinov3_vit"});
    let loaded = Checkpoint::open(&path).unwrap().attention("layer.0.attention", &json, DType::F32, &CPU).unwrap();
    assert!(loaded.not_applied.iter().any(|(_, what)| what.contains("two dimensions")), "{:?}", loaded.not_applied);
}
