//! Attention weights.

use candle_attention::visualize::AttentionMaps;
use wasm_bindgen::prelude::*;

use crate::error::{Result, value};

/// The attention weights of all layers and heads for a text.
#[wasm_bindgen]
pub struct Attention {
    tokens: Vec<String>,
    layers: usize,
    heads: usize,
    weights: Vec<f32>,
}

impl Attention {
    /// Puts the weights of all heads one after another.
    pub fn new(maps: &AttentionMaps) -> Result<Self> {
        let (mut layers, mut heads, mut weights) = (0, 0, Vec::new());
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
        Ok(Self { tokens: maps.queries().to_vec(), layers, heads, weights })
    }
}

#[wasm_bindgen]
impl Attention {
    /// The tokens as they are in the text, and the special ones.
    #[wasm_bindgen(getter)]
    pub fn tokens(&self) -> Vec<String> {
        self.tokens.clone()
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

    /// `(layers, heads, tokens, tokens)`: how much each token attends to each.
    #[wasm_bindgen(getter)]
    pub fn weights(&self) -> Vec<f32> {
        self.weights.clone()
    }
}
