//! Damaged weights and configurations of families: detects, loads, runs three tokens, writes and reads again.

use std::collections::HashMap;

use arbitrary::{Result, Unstructured};
use candle_attention::checkpoint::{Checkpoint, LayerInfo, ModelAttention, ModelConfig, detect, write_layers};
use candle_attention::weights::AttentionWeights;
use candle_attention::{AttentionInputs, AttentionOptions, CallInput, Error, KvCache, MultiHeadAttention, Position};
use candle_core::{DType, Device, Tensor};
use serde_json::Value;

use crate::config::config;
use crate::file::{entries, header, safetensors};
use crate::folder::Folder;
use crate::message_of;
use crate::templates::template;

const MAX_BYTES: usize = 1 << 20;
const CPU: Device = Device::Cpu;

pub fn run(u: &mut Unstructured) -> Result<()> {
    let template = template(u)?;
    let json = config(u, &template.config)?;
    let entries = entries(u, template)?;
    let dtype = *u.choose(&[DType::F32, DType::F32, DType::BF16, DType::F64, DType::F16])?;
    let other: String = u.arbitrary::<&str>()?.chars().take(64).collect();
    let Some((text, data)) = header(&entries, MAX_BYTES) else { return Ok(()) };
    let file = safetensors(&text, &data, text.len() as u64);
    let Ok(checkpoint) = Checkpoint::from_bytes(file).map_err(message_of) else { return Ok(()) };
    let layers = checkpoint.attention_layers(Some(ModelConfig::new(&json)));
    // Only one layer, for speed.
    let which = if layers.is_empty() { 0 } else { u.choose_index(layers.len())? };
    if let Some(LayerInfo { prefix, problem, .. }) = layers.get(which) {
        match checkpoint.attention_with(prefix, &json, dtype, &CPU) {
            Ok(model) => {
                assert!(problem.is_none(), "{prefix} loads, but: {problem:?}");
                forward(&model, dtype, dtype == DType::F32 && is_plain(&checkpoint));
                write(&model, prefix, &json, dtype);
            }
            // Found only when the layer is built.
            Err(error) if error.to_string().contains("in fours") => {}
            Err(error) => assert!(problem.is_some(), "{prefix} is listed as loadable, but: {}", message_of(error)),
        }
    }
    // An arbitrary prefix.
    let source = checkpoint.at(&other, dtype, &CPU);
    detect(&source).err().map(message_of);
    checkpoint.attention_with(&other, &json, dtype, &CPU).err().map(message_of);
    Ok(())
}

/// Whether every weight has a magnitude that a real model may have.
pub(super) fn is_plain(checkpoint: &Checkpoint) -> bool {
    let largest = |name: &str| {
        let tensor = checkpoint.tensor(name, &CPU).ok()?.to_dtype(DType::F32).ok()?;
        if tensor.elem_count() == 0 {
            return Some(0.0);
        }
        tensor.abs().ok()?.max_all().ok()?.to_scalar::<f32>().ok()
    };
    checkpoint.non_finite("").is_ok_and(|names| names.is_empty())
        && checkpoint.names().all(|name| largest(name).is_some_and(|largest| largest < 100.0))
}

/// `plain`: the weights are such that the output must be finite.
fn forward(model: &ModelAttention, dtype: DType, plain: bool) {
    let config = model.layer.config();
    let Some(tokens) = tokens(&config.position).filter(|tokens| *tokens <= 64) else { return };
    let numbers = |size: usize, tokens: usize| {
        let numbers = (0..size * tokens).map(|i| ((i * 7 + 3) % 11) as f64 / 11.0 - 0.5);
        Tensor::from_iter(numbers, &CPU).unwrap().reshape((1, tokens, size)).unwrap().to_dtype(dtype).unwrap()
    };
    let (query, key) = (numbers(config.resolved_query_size(), tokens), numbers(config.resolved_key_size(), tokens));
    let value = numbers(config.resolved_value_size(), tokens);
    let inputs = AttentionInputs::new(&query, &key, &value, model.mask());
    let options = AttentionOptions::default();
    // All images are square.
    let is_image = config.requires.contains(&CallInput::Grid);
    let options = if is_image { options.with_grid([tokens.isqrt(); 2]) } else { options };
    let output = model.layer.attend_with(&inputs, &options).expect("a layer that was loaded runs").output;
    assert_eq!(output.dims(), [1, tokens, config.resolved_output_size()]);
    if plain && config.resolved_scale().abs() < 1e20 {
        let zero = (&output * 0.0).unwrap().sum_all().unwrap().to_dtype(DType::F32).unwrap();
        assert_eq!(zero.to_scalar::<f32>().unwrap(), 0.0, "NaN of plain weights: {config:?}");
    }
    let weighted = model
        .layer
        .attend_with(&inputs, &options.with_return_attention_weights(true))
        .expect("attention weights")
        .output;
    assert_eq!(weighted.dims(), output.dims());
    let one_input = [config.resolved_key_size(), config.resolved_value_size()] == [config.resolved_query_size(); 2];
    if !one_input || tokens != 3 || matches!(config.position, Position::Disentangled(_)) {
        return;
    }
    let mut cache = KvCache::growing();
    for (start, length) in [(0, 2), (2, 1)] {
        let chunk = query.narrow(1, start, length).unwrap();
        let inputs = AttentionInputs::self_attention(&chunk, model.mask());
        let output = match model.layer.attend_with(&inputs.with_cache(&mut cache), &options) {
            // The rotation may change with the third token.
            Err(Error::CachedRotation { .. }) => return,
            attended => attended.expect("decoding with a cache").output,
        };
        assert_eq!(output.dims(), [1, length, config.resolved_output_size()]);
    }
}

/// The number of tokens to run: 3, or for a grid of patches the patches and their prefix tokens.
fn tokens(position: &Position) -> Option<usize> {
    let (before, [rows, columns]) = match position {
        // An image is whole blocks.
        Position::Rotary2d(rotary) if rotary.grid.is_none() && !2usize.is_multiple_of(rotary.block) => return None,
        Position::Rotary2d(rotary) => (rotary.prefix_tokens, rotary.grid.unwrap_or([2, 2])),
        Position::RelativeBias2d(relative) => (usize::from(relative.class_token), relative.grid),
        _ => return Some(3),
    };
    rows.checked_mul(columns)?.checked_add(before)
}

/// Writes the layer in its layout, if the layout can hold it, and reads it again.
fn write(model: &ModelAttention, prefix: &str, json: &Value, dtype: DType) {
    let path = Folder::new().path("written.safetensors");
    let weights = model.layer.weights().expect("weights");
    let layers = [(prefix, &weights, model.layer.config())];
    let written = write_layers(&path, &layers, model.layout, HashMap::new());
    if let Err(error) = written {
        message_of(error);
        return;
    }
    let again = Checkpoint::open(&path).expect("what was written is opened");
    let source = again.at(prefix, dtype, &CPU);
    let (again, layout) = AttentionWeights::read(model.layer.config(), &source).expect("what was written is read");
    assert_eq!(layout.name(), model.layout.name(), "{json}");
    MultiHeadAttention::from_weights(model.layer.config(), again).expect("what was written is a layer");
}
