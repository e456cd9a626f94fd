//! Attention layers as their models run them: each published family's own module, in its published layout, with its
//! positions, norms, windows and caches, against the output that transformers or timm gave
//! (`tests/golden/families.py`).

use candle_attention::checkpoint::{ModelAttention, ModelConfig, infer_config};
use candle_attention::{AttentionInputs, AttentionMask, AttentionOptions, KvCache, MultiHeadAttention};
use candle_core::{DType, Device, Tensor};

use crate::common::{LAYER, assert_close, family, family_config, max_diff, says};

const CPU: Device = Device::Cpu;

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    prefix: String,
    kind: String,
    grid: Option<[usize; 2]>,
}

fn run(name: &str) {
    let checkpoint = family(name);
    let metadata = checkpoint.metadata();
    let json = family_config(&checkpoint);
    let cases: Vec<Case> = serde_json::from_str(&metadata["cases"]).unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let what = format!("{name} {}", case.name);
        let get = |part: &str| {
            let full = format!("golden.{}.{part}", case.name);
            checkpoint.contains(&full).then(|| checkpoint.tensor(&full, &CPU).unwrap())
        };
        let config = ModelConfig::new(&json).with_like(metadata.contains_key("timm").then_some("timm"));
        let model = checkpoint.attention_with(&case.prefix, config, DType::F32, &CPU).unwrap();
        let xs = get("input").unwrap();
        let key = get("key").unwrap_or_else(|| xs.clone());
        assert_eq!(case.kind == "cross", get("key").is_some(), "{what}");
        let mut mask = model.mask().clone();
        if let Some(keep) = get("mask") {
            mask = mask.and(AttentionMask::keep_keys(&keep).unwrap());
        }
        let inputs = AttentionInputs::new(&xs, &key, &key, &mask);
        let mut options = AttentionOptions::default();
        let positions = get("positions");
        if let Some(positions) = &positions {
            options = options.with_positions(positions);
        }
        if let Some(grid) = case.grid {
            options = options.with_grid(grid);
        }
        if name == "dinov3_vit" {
            // Its input is no square.
            let failed = model.layer.attend_with(&inputs, &options);
            says(failed, &["the number of tokens is 9", "3 and 2 x 2 patches", "AttentionOptions::grid"]);
            options = options.with_grid([3, 2]);
        }
        // DeBERTa lets padded queries see every key, ours see what others do; nobody reads either.
        let of_padding = |t: &Tensor| match get("mask").filter(|_| name.starts_with("deberta")) {
            Some(keep) => t.broadcast_mul(&keep.to_dtype(DType::F32).unwrap().unsqueeze(2).unwrap()).unwrap(),
            None => t.clone(),
        };
        let want = of_padding(&get("output").unwrap());
        let got = of_padding(&model.layer.attend_with(&inputs, &options).unwrap().output);
        println!("{what} ({}): output differs by at most {:e}", model.layout.name(), max_diff(&got, &want));
        assert_close(&what, &got, &want, LAYER);
        chunks(&what, &model, get("chunks"), get("chunk_input"), get("chunk_output"));
        let eager = model.layer.attend_with(&inputs, &options.with_return_attention_weights(true)).unwrap();
        assert_close(&what, &of_padding(&eager.output), &want, LAYER);
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
        let inputs = AttentionInputs::self_attention(&xs, model.mask());
        outputs.push(
            model.layer.attend_with(&inputs.with_cache(&mut cache), &AttentionOptions::default()).unwrap().output,
        );
        start += length as usize;
    }
    assert!(outputs.len() > 1, "{what}");
    assert_close(&format!("{what} in chunks"), &Tensor::cat(&outputs, 1).unwrap(), &want, LAYER);
}

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            run(stringify!($name));
        }
    )*};
}

families! {
    albert
    apertus
    arcee
    bart
    beit
    beit_shared
    bert
    bert_decoder
    biogpt
    blip
    blip_2_qformer
    bloom
    bloom_6heads
    clip
    clipseg
    codegen
    cohere
    cohere2
    cohere_qknorm
    csm
    ctrl
    cwm
    deberta
    deberta_long
    deberta_v2
    deberta_v2_shared
    deepseek_ocr2
    dinov2
    dinov3_vit
    distilbert
    dots1
    electra
    embedding_gemma
    emu3
    ernie4_5
    ernie4_5_vl
    esm
    eurobert
    exaone4
    exaone4_full
    falcon
    falcon_alibi
    falcon_h1
    falcon_mq
    flex_olmo
    gemma
    gemma2
    gemma3
    glm
    glm4_moe
    glm4v
    glm4v_moe
    glm_ocr_vision
    glmasr_encoder
    gpt2
    gpt2_cross
    gpt_bigcode
    gpt_bigcode_mha
    gpt_neo
    gpt_neox
    gpt_neox_japanese
    gpt_oss
    gptj
    granite
    granite_docling
    granite_swa
    granitemoe
    granitemoehybrid
    gte
    helium
    higgs_audio_v2
    hy_v3
    hyperclovax
    imagegpt
    internvl_vision
    jamba
    jina_embeddings_v3
    lfm2
    llama
    llama3
    llama_both_ways
    llama_dynamic
    llama_linear
    llama_yarn
    llama_yarn_mscale
    marian
    mellum
    metaclip_2
    mimi
    minimax
    minimax_m2
    ministral
    mistral
    mistral_both_ways
    mixtral
    mllama
    modernbert
    modernbert_decoder
    moonshine
    mpnet
    mpt
    nemotron
    nomic_bert
    olmo
    olmo2
    olmo3
    olmo_hybrid
    olmoe
    openai_gpt
    opt
    paddleocr
    persimmon
    phi
    phi3
    phi3_longrope
    phi_qknorm
    phimoe
    pix2struct_vision
    pixtral
    qwen2
    qwen2_5_omni
    qwen2_audio_encoder
    qwen2_moe
    qwen2_vl
    qwen2_vl_vision
    qwen3
    qwen3_moe
    qwen3_omni
    qwen3_omni_code_predictor
    qwen3_omni_talker
    qwen3_vl
    roberta
    roberta_decoder
    seed_oss
    segformer
    siglip
    smollm3
    solar_open
    stablelm
    stablelm_qknorm
    starcoder2
    swin
    t5
    t5gemma
    timesformer
    timm_beit
    timm_beit_shared
    timm_eva
    timm_eva_split
    timm_siglip_pool
    timm_vit
    timm_vit_qknorm
    umt5
    vaultgemma
    videomae
    vit
    voxtral_realtime_encoder
    voxtral_realtime_text
    wav2vec2
    whisper
    xglm
    xlm_roberta
}

/// What a checkpoint holds and its configuration does not ask for, or the other way round, is an error.
#[test]
fn mismatch_of_checkpoint_and_configuration_is_an_error() {
    let load = |name: &str, prefix: &str, like: &str, json: serde_json::Value| {
        let checkpoint = family(name);
        checkpoint.attention_with(prefix, ModelConfig::new(&json).with_like(like), DType::F32, &CPU)
    };
    let heads = || serde_json::json!({"num_attention_heads": 4});
    let layer = "encoder.layer.0.attention";
    let plain = |name: &str, prefix: &str, heads: usize| {
        let source = family(name).at(prefix, DType::F32, &CPU);
        MultiHeadAttention::load(&infer_config(&source, heads).unwrap(), source)
    };
    says(plain("deberta", layer, 4), &["position = none", "disentangled", "self.pos_proj.weight"]);
    says(plain("deberta_v2", layer, 4), &["position = none", "disentangled", "self.pos_key_proj.weight"]);
    let t5 = plain("t5", "encoder.block.0.layer.0.SelfAttention", 3);
    says(t5, &["position = none", "a table of biases", "SelfAttention.relative_attention_bias.weight"]);
    // The table of all layers, in timm's place and in that of transformers.
    says(
        plain("timm_beit_shared", "blocks.0.attn", 4),
        &["position = none", "`rel_pos_bias.relative_position_bias_table`"],
    );
    says(plain("beit_shared", layer, 4), &["`encoder.relative_position_bias.relative_position_bias_table`"]);
    says(load("timm_beit", "blocks.0.attn", "timm", heads()), &["18 rows", "those of a square", "img_size"]);
    let stated = serde_json::json!({"num_heads": 4, "img_size": 12, "patch_size": 4});
    says(load("timm_beit", "blocks.0.attn", "timm", stated), &["18 rows", "(2 · 3 - 1)(2 · 3 - 1)"]);
    // A square tells itself.
    assert!(load("beit", layer, "beit", heads()).is_ok());
    let eva = load("timm_eva", "blocks.0.attn", "timm", serde_json::json!({"num_heads": 3}));
    says(eva, &["use_rot_pos_emb = absent", "true for timm's Eva that rotates, false for its Beit"]);
    let shared = serde_json::json!({
        "num_attention_heads": 4, "relative_attention": true, "pos_att_type": "p2c|c2p", "share_att_key": false,
        "position_buckets": 6, "max_relative_positions": 12,
    });
    says(load("deberta_v2_shared", layer, "deberta-v2", shared), &["self.pos_key_proj.weight"]);
}
