//! One published family at a time: its attention layer, loaded from the names that transformers or timm save, against
//! the output of its own module.

use candle_attention::checkpoint::detect;
use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
use candle_core::{DType, Device};

use crate::common::{Golden, LAYER, assert_close, fixture, max_diff};

#[derive(serde::Deserialize)]
struct Family {
    prefix: String,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    causal: u8,
}

fn family(name: &str, layout: &str) {
    let golden = Golden::open("layouts.safetensors");
    let bytes = std::fs::read(fixture("layouts.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let families: std::collections::HashMap<String, Family> =
        serde_json::from_str(&header.metadata().as_ref().unwrap()["families"]).unwrap();
    let family = &families[name];
    let source = golden.0.at(&format!("{name}.{}", family.prefix), DType::F32, &Device::Cpu);
    assert_eq!(detect(&source).unwrap().name(), layout);

    let input = golden.get(&format!("{name}.input"));
    let config = AttentionConfig::new(input.dim(2).unwrap(), family.heads)
        .with_num_key_value_heads(family.kv_heads)
        .with_head_dim(family.head_dim);
    let layer = MultiHeadAttention::load(&config, source).unwrap();
    let mut mask = if family.causal == 1 { AttentionMask::causal() } else { AttentionMask::full() };
    if let Some(keep) = golden.try_get(&format!("{name}.mask")) {
        mask = mask.and(AttentionMask::keep_keys(&keep).unwrap());
    }
    let key = golden.try_get(&format!("{name}.key")).unwrap_or_else(|| input.clone());
    let got = layer.attend(&input, &key, &key, &mask).unwrap();
    let want = golden.get(&format!("{name}.output"));
    println!("{name} ({layout}): output differs by at most {:e}", max_diff(&got, &want));
    assert_close(name, &got, &want, LAYER);
}

macro_rules! families {
    ($($name:ident: $layout:literal,)*) => {$(
        #[test]
        fn $name() {
            family(stringify!($name), $layout);
        }
    )*};
}

families! {
    bert: "bert",
    roberta: "bert",
    electra: "bert",
    distilbert: "distilbert",
    albert: "albert",
    mpnet: "mpnet",
    vit: "vit",
    dinov2: "vit",
    timm_vit: "timm",
    bart: "bart",
    bart_cross: "bart",
    whisper: "bart",
    clip_text: "bart",
    clip_vision: "bart",
    llama: "candle-attention",
    mistral: "candle-attention",
    flax_bert: "flax-bert",
    diffusers: "diffusers",
    diffusers_cross: "diffusers",
}
