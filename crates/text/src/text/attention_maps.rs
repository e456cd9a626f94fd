//! Attention maps of the layers of an encoder.

use candle_attention::error::cut_to;
use candle_attention::{AttentionMask, Error, ObserveOptions, Result, setters};
use candle_core::D;
use tokenizers::Encoding;

use crate::model::hidden_states::first_not_finite;
use crate::model::options::ForwardOptions;
use crate::model::text_model::TextModel;
use crate::text::batches::TextBatcher;
use crate::text::in_flight::MOST_QUEUED;
use crate::text::tokenizer::{Located, Text, Tokens};
use crate::visualize::{AttentionMaps, TokenMarks};

/// Selects which attention weights [`SentenceEncoder::attention`](crate::SentenceEncoder::attention) and the
/// `attention` of the task models return. Default: all layers and heads.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MapOptions<'a> {
    /// The layers to return; `None` is all.
    pub layers: Option<Vec<usize>>,
    /// The heads to return per layer; `None` is all.
    pub heads: Option<Vec<usize>>,
    /// The name of the prompt to put before the text; `None` is the model's default. Only sentence encoders have
    /// prompts.
    pub prompt_name: Option<&'a str>,
    /// A prompt of its own, put before the text in place of the named one. Only sentence encoders have prompts.
    pub prompt: Option<&'a str>,
    /// The number of tokens at which a text is cut, special tokens included; `None` is the model's own maximum. At most
    /// the positions of the model. The weights of a layer take memory with its square.
    pub max_length: Option<usize>,
}

impl<'a> MapOptions<'a> {
    setters! {
        /// Sets the layers.
        with_layers, layers: &[usize] = Some(layers.to_vec());
        /// Sets the heads to return per layer.
        with_heads, heads: &[usize] = Some(heads.to_vec());
        /// Sets the prompt.
        with_prompt_name, prompt_name: &'a str = Some(prompt_name);
        /// Sets a prompt of its own.
        with_prompt, prompt: &'a str = Some(prompt);
        /// Sets the number of tokens at which a text is cut.
        with_max_length, max_length: usize = Some(max_length);
    }
}

impl TextBatcher {
    /// The attention weights of `model` for a text or a pair of texts.
    pub(crate) fn attention(&self, model: &TextModel, text: Text, options: &MapOptions) -> Result<AttentionMaps> {
        let located = self.tokenizer_for(options.max_length, model)?.encode_with_offsets(text)?;
        let encoding = &located.encoding;
        let (padded, types) = self.padded(model, &[Tokens::new(encoding, false)])?;
        let layers = match &options.layers {
            Some(layers) => layers.clone(),
            // A layer with a convolution has none.
            None => (0..).zip(model.heads()).filter(|(_, heads)| *heads > 0).map(|(layer, _)| layer).collect(),
        };
        let mut what = ObserveOptions::default().with_attention_weights(true);
        what.heads = options.heads.clone();
        let forward = ForwardOptions::default().with_observe(&layers, &what);
        // One text: nothing is padded.
        let permit = self.in_flight.begin(encoding.len(), MOST_QUEUED);
        let forwarded = model.forward_with(&padded.ids, Some(&types), &AttentionMask::full(), &forward)?;
        permit.finish()?;

        let names: Vec<String> = (0..encoding.len()).map(|i| name(&located, i)).collect();
        let marks = marks(&located);
        let mut maps =
            AttentionMaps::new(&names, &names).with_title(&title(text, &located)).with_marks(&marks, &marks)?;
        if located.rests.iter().any(Option::is_some) {
            let total = encoding.len() + located.rests.iter().flatten().map(|rest| rest.tokens).sum::<usize>();
            let cut: Vec<&str> = (0..located.texts.len()).map(|i| located.split(i).1).collect();
            maps = maps.with_truncation(total, &cut)?;
        }
        for (layer, observed) in forwarded.observed {
            // A layer whose heads are all pruned has no attention weights.
            let Some(weights) = observed.attention_weights.filter(|weights| weights.elem_count() > 0) else { continue };
            if first_not_finite(&weights.flatten_to(D::Minus2)?)?.is_some() {
                let text = cut_to(&located.texts[0], 80);
                let what = format_args!("the attention weights of layer {layer} for `{text}`");
                return Err(Error::not_finite(what, self.dtype));
            }
            maps = match &options.heads {
                Some(heads) => maps.with_heads(layer, heads, &weights)?,
                None => maps.with_layer(layer, &weights)?,
            };
        }
        Ok(maps)
    }
}

/// A token as it is written in its text; a special token by its own name.
fn name(located: &Located, i: usize) -> String {
    match located.part(i).filter(|part| !part.is_empty()) {
        Some(part) if part.trim().is_empty() => part.to_string(),
        Some(part) => part.trim().to_string(),
        None => located.encoding.get_tokens()[i].clone(),
    }
}

impl Located {
    /// The start of a text that was read, and the end that was cut.
    fn split(&self, i: usize) -> (&str, &str) {
        let text = &self.texts[i];
        text.split_at(self.rests[i].map_or(text.len(), |rest| text.floor_char_boundary(rest.start)))
    }

    fn is_special(&self, i: usize) -> bool {
        self.encoding.get_special_tokens_mask()[i] == 1
    }

    /// The part of a text that a token stands for.
    fn part(&self, i: usize) -> Option<&str> {
        let (start, end) = self.encoding.get_offsets()[i];
        let text = self.encoding.token_to_sequence(i).filter(|_| !self.is_special(i)).and_then(|i| self.texts.get(i));
        text.and_then(|text| text.get(start..end))
    }

    /// Whether a token continues the word of the token before it. What a tokenizer takes for one word may have spaces.
    fn continues(&self, i: usize) -> bool {
        let Some(before) = i.checked_sub(1).filter(|&before| !self.is_special(before) && !self.is_special(i)) else {
            return false;
        };
        let same = |get: fn(&Encoding, usize) -> Option<usize>| get(&self.encoding, i) == get(&self.encoding, before);
        let word = |encoding: &Encoding, i: usize| encoding.get_word_ids()[i].map(|word| word as usize);
        let ((_, end), (start, _)) = (self.encoding.get_offsets()[before], self.encoding.get_offsets()[i]);
        let spaced = self.part(i).is_some_and(|part| part.starts_with(char::is_whitespace));
        same(|encoding, i| encoding.token_to_sequence(i)) && same(word) && start <= end && !spaced
    }
}

/// The marks of the tokens. A special token is of the text before it.
fn marks(located: &Located) -> Vec<TokenMarks> {
    let mut second = false;
    let mark = |i: usize| {
        let special = located.is_special(i);
        if let Some(sequence) = located.encoding.token_to_sequence(i).filter(|_| !special) {
            second = sequence == 1;
        }
        let continues = located.continues(i);
        TokenMarks::default().with_special(special).with_continues(continues).with_second(second)
    };
    (0..located.encoding.len()).map(mark).collect()
}

/// The text or both texts. What was cut is left out.
fn title(text: Text, located: &Located) -> String {
    let (first, second) = text.parts();
    let read = |(i, text): (usize, &str)| match located.rests[i] {
        Some(_) => format!("{} …", located.split(i).0.trim_end()),
        None => text.to_string(),
    };
    [first].into_iter().chain(second).enumerate().map(read).collect::<Vec<_>>().join(" | ")
}
