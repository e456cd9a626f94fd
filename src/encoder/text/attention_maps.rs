//! Attention maps of the layers of an encoder.

use tokenizers::Encoding;

use crate::attention::ObserveOptions;
use crate::encoder::model::bert::BertModel;
use crate::encoder::model::options::ForwardOptions;
use crate::encoder::text::batches::TextBatcher;
use crate::encoder::text::tokenizer::{Text, Tokens};
use crate::error::Result;
use crate::macros::setters;
use crate::mask::AttentionMask;
use crate::visualize::AttentionMaps;

/// Selects which attention weights [`SentenceEncoder::attention`](crate::encoder::SentenceEncoder::attention) and the
/// `attention` of the task models return. Default: all layers and heads.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MapOptions<'a> {
    /// The layers to return; `None` is all.
    pub layers: Option<Vec<usize>>,
    /// The heads to return per layer; `None` is all.
    pub heads: Option<Vec<usize>>,
    /// The name of the prompt to put before the text; `None` is the model's default. Only sentence encoders have prompts.
    pub prompt_name: Option<&'a str>,
}

impl<'a> MapOptions<'a> {
    setters! {
        /// Sets the layers.
        with_layers, layers: &[usize] = Some(layers.to_vec());
        /// Sets the heads to return per layer.
        with_heads, heads: &[usize] = Some(heads.to_vec());
        /// Sets the prompt.
        with_prompt_name, prompt_name: &'a str = Some(prompt_name);
    }
}

impl TextBatcher {
    /// The attention weights of `model` for a text or a pair of texts.
    pub(crate) fn attention(&self, model: &BertModel, text: Text, options: &MapOptions) -> Result<AttentionMaps> {
        let (encoding, read) = self.tokenizer.encode_with_offsets(text)?;
        let tokens =
            Tokens { ids: encoding.get_ids().to_vec(), types: encoding.get_type_ids().to_vec(), truncated: false };
        let (padded, types) = self.padded(model, &[&tokens])?;
        let layers = match &options.layers {
            Some(layers) => layers.clone(),
            None => (0..model.heads().len()).collect(),
        };
        let mut what = ObserveOptions::default().with_attention_weights(true);
        what.heads = options.heads.clone();
        let forward = ForwardOptions::default().with_observe(&layers, &what);
        let _permit = self.semaphore.acquire();
        // One text: nothing is padded.
        let forwarded = model.forward_with(&padded.ids, Some(&types), &AttentionMask::full(), &forward)?;

        let tokens: Vec<String> = (0..encoding.len()).map(|i| name(&encoding, &read, i)).collect();
        let title = match text {
            Text::One(text) => text.to_string(),
            Text::Pair(first, second) => format!("{first} | {second}"),
        };
        let mut maps = AttentionMaps::new(&tokens, &tokens).with_title(&title);
        for (layer, observed) in forwarded.observed {
            // A layer whose heads are all pruned has no attention weights.
            let Some(weights) = observed.attention_weights.filter(|weights| weights.elem_count() > 0) else { continue };
            maps = match &options.heads {
                Some(heads) => maps.with_heads(layer, heads, &weights)?,
                None => maps.with_layer(layer, &weights)?,
            };
        }
        Ok(maps)
    }
}

/// A token as it is written in its text; a special token by its own name.
fn name(encoding: &Encoding, texts: &[String], i: usize) -> String {
    let (start, end) = encoding.get_offsets()[i];
    let special = encoding.get_special_tokens_mask()[i] == 1;
    let text = encoding.token_to_sequence(i).filter(|_| !special).and_then(|of| texts.get(of));
    match text.and_then(|text| text.get(start..end)).filter(|part| !part.is_empty()) {
        Some(part) if part.trim().is_empty() => part.to_string(),
        Some(part) => part.trim().to_string(),
        None => encoding.get_tokens()[i].clone(),
    }
}
