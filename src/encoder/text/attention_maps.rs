use tokenizers::Encoding;

use crate::attention::ObserveOptions;
use crate::encoder::model::bert::BertModel;
use crate::encoder::model::options::ForwardOptions;
use crate::encoder::text::batches::TextBatcher;
use crate::encoder::text::tokenizer::Text;
use crate::error::Result;
use crate::macros::setters;
use crate::mask::AttentionMask;
use crate::visualize::AttentionMaps;

/// Of what [`SentenceEncoder::attention`](crate::encoder::SentenceEncoder::attention), and that of the heads, gives the weights. The
/// default: of all layers and heads.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MapOptions<'a> {
    /// The layers to return; `None` is all.
    pub layers: Option<Vec<usize>>,
    /// The heads to return of each layer; `None` is all.
    pub heads: Option<Vec<usize>>,
    /// As in [`EncodeOptions`](crate::encoder::EncodeOptions): only sentence encoders have prompts.
    pub prompt_name: Option<&'a str>,
}

impl<'a> MapOptions<'a> {
    setters! {
        /// Sets the layers.
        with_layers, layers: &[usize] = Some(layers.to_vec());
        /// Sets the heads of each.
        with_heads, heads: &[usize] = Some(heads.to_vec());
        /// Sets the prompt.
        with_prompt_name, prompt_name: &'a str = Some(prompt_name);
    }
}

impl TextBatcher {
    /// The attention weights of `model` for a text or a pair of texts.
    pub(crate) fn attention(&self, model: &BertModel, text: Text, options: &MapOptions) -> Result<AttentionMaps> {
        let (encoding, read) = self.tokenizer.encode_with_offsets(text)?;
        let (padded, types) = self.padded(model, &[&encoding])?;
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
