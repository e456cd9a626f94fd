//! The examples that compose a model around the layer, against transformers (`tests/golden/compose.py`).

// Each example compiles `examples/shared` as a module of its own.
#![allow(clippy::duplicate_mod)]

#[path = "../../examples/decoder.rs"]
#[allow(dead_code)]
mod decoder;
#[path = "../../examples/vit_block.rs"]
#[allow(dead_code)]
mod vit_block;

use candle_attention::KvCache;
use candle_core::{DType, Tensor};

use crate::common::{Golden, LAYER, assert_close, fixture};
use crate::programs::{example, fails, succeeds};
use decoder::Decoder;

fn ids(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_dtype(DType::U32).unwrap().to_vec1().unwrap()
}

#[test]
fn decoder_equals_llama_of_transformers() {
    let golden = Golden::open("compose/llama/golden.safetensors");
    let decoder = Decoder::load(&fixture("compose/llama")).unwrap();
    let caches = || decoder.layers.iter().map(|_| KvCache::growing()).collect::<Vec<_>>();
    let prompt = ids(&golden.get("prompt"));
    let logits = decoder.forward(&prompt, &mut caches()).unwrap();
    assert_close("logits", &logits, &golden.get("logits"), LAYER);

    let generated = ids(&golden.get("generated"));
    let said = succeeds(example("decoder").arg(fixture("compose/llama")).args(prompt.iter().map(u32::to_string)));
    assert_eq!(said.lines().map(|line| line.parse().unwrap()).collect::<Vec<u32>>(), generated);

    // Each step with the cache equals a run over the whole text without it.
    let mut held = caches();
    let mut text = prompt.clone();
    let mut new = prompt;
    let last = |logits: Tensor| logits.squeeze(0).unwrap().narrow(0, logits.dim(1).unwrap() - 1, 1).unwrap();
    for (step, id) in generated.into_iter().enumerate() {
        let cached = last(decoder.forward(&new, &mut held).unwrap());
        let whole = last(decoder.forward(&text, &mut caches()).unwrap());
        assert_close(&format!("step {step}"), &cached, &whole, LAYER);
        if step == 15 {
            assert_close("last logits", &cached.squeeze(0).unwrap(), &golden.get("last_logits"), LAYER);
        }
        text.push(id);
        new = vec![id];
    }
}

#[test]
fn vit_block_equals_the_one_of_transformers() {
    let file = "compose/vit/golden.safetensors";
    let golden = Golden::open(file);
    let (embeddings, block) = vit_block::load(&fixture("compose/vit")).unwrap();
    let embedded = embeddings.forward(&golden.get("pixels")).unwrap();
    assert_close("embeddings", &embedded, &golden.get("embedded"), LAYER);
    assert_close("block", &block.forward(&embedded).unwrap(), &golden.get("output"), LAYER);

    let said = succeeds(example("vit_block").arg(fixture("compose/vit")).arg(fixture(file)));
    assert_eq!(said, "pixels [2, 3, 12, 12] → patches [2, 10, 24]\n");
}

#[test]
fn missing_files_and_keys_are_errors() {
    fails(example("decoder").args(["/no/such/folder", "1"]), "No such file");
    fails(example("decoder").arg(fixture("compose/llama")).arg("64"), "index");
    fails(example("decoder").arg(fixture("compose/vit")).arg("1"), "`rms_norm_eps` is not a number");
    fails(example("vit_block").arg(fixture("compose/llama")).arg("x"), "`layer_norm_eps` is not a number");
}
