//! Attention weights.

use candle_attention_text::visualize::AttentionMaps;
use wasm_bindgen::prelude::*;

use crate::error::{Result, value};

/// The attention weights of all layers and heads for a text.
#[wasm_bindgen]
pub struct Attention {
    tokens: Vec<String>,
    total_tokens: usize,
    layers: usize,
    heads: usize,
    weights: Vec<f32>,
}

impl Attention {
    /// Puts the weights of all heads one after another.
    pub fn new(maps: &AttentionMaps) -> Result<Self> {
        let tokens = maps.queries().to_vec();
        let size: usize = maps.layers().map(|(_, heads)| heads.len() * tokens.len() * tokens.len()).sum();
        // A vector that grows would be copied, and these may be large.
        let (mut layers, mut heads, mut weights) = (0, 0, Vec::with_capacity(size));
        for (layer, of_layer) in maps.layers() {
            if layers > 0 && of_layer.len() != heads {
                let found = of_layer.len().to_string();
                let expected = format!("{heads}, as in the layers before: some are pruned");
                return Err(value(&format!("the number of heads of layer {layer}"), &found, &expected));
            }
            (layers, heads) = (layers + 1, of_layer.len());
            for &head in of_layer {
                weights.extend_from_slice(maps.weights(layer, head)?);
            }
        }
        Ok(Self { total_tokens: maps.total_tokens().unwrap_or(tokens.len()), tokens, layers, heads, weights })
    }
}

#[wasm_bindgen]
impl Attention {
    /// The tokens as they are in the text, and the special ones.
    #[wasm_bindgen(getter)]
    pub fn tokens(&self) -> Vec<String> {
        self.tokens.clone()
    }

    /// The number of tokens of the whole text: more than those of `tokens` if it was cut.
    #[wasm_bindgen(getter, js_name = totalTokens)]
    pub fn total_tokens(&self) -> usize {
        self.total_tokens
    }

    /// The number of layers.
    #[wasm_bindgen(getter)]
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// The number of heads of each layer.
    #[wasm_bindgen(getter)]
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// `(layers, heads, tokens, tokens)`: how much each token attends to each. They are handed over, and there once.
    #[wasm_bindgen(js_name = takeWeights)]
    pub fn take_weights(&mut self) -> Vec<f32> {
        std::mem::take(&mut self.weights)
    }
}
