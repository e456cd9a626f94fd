//! Parts of a long text that each fit into the maximum length and share tokens with their neighbors, as the tokenizers
//! library makes them of a text that overflows.

use candle_attention::{Error, Result};
use tokenizers::OffsetType;
use tokenizers::parallelism::MaybeParallelRefIterator;

use crate::text::tokenizer::{Text, Tokenizer, Tokens, check_length, guarded, part, places};

impl Tokenizer {
    /// The same tokenizer that makes several parts of a text that is too long, each with the last `stride` tokens of
    /// the one before, instead of cutting it.
    ///
    /// # Errors
    /// If a part would hold no other tokens than these.
    pub(crate) fn with_stride(&self, stride: usize) -> Result<Self> {
        let room = guarded(|| self.room(false))?;
        if stride >= room {
            let expected =
                format!("less than {room}, the tokens of a text that fit into the model beside special ones");
            return Err(Error::config("stride", stride, expected));
        }
        Ok(Self { stride: Some(stride), ..self.clone() })
    }

    /// The tokens of each text after `prompt`, with its index: of a text once, unless the tokenizer has a
    /// [stride](Self::with_stride).
    pub(crate) fn encode_parts(&self, texts: &[Text], prompt: &str) -> Result<Vec<(usize, Tokens)>> {
        let Some(stride) = self.stride else {
            return Ok(self.encode(texts, prompt)?.into_iter().enumerate().collect());
        };
        let parts: Vec<Vec<Tokens>> =
            texts.maybe_par_iter().map(|text| self.parts(*text, prompt, stride)).collect::<Result<_>>()?;
        let parts = parts.into_iter().enumerate();
        Ok(parts.flat_map(|(text, parts)| parts.into_iter().map(move |tokens| (text, tokens))).collect())
    }

    /// The parts of one text, with the places of their tokens in all of it.
    fn parts(&self, text: Text, prompt: &str, stride: usize) -> Result<Vec<Tokens>> {
        let (text, _) = self.read(text, prompt);
        check_length(&text)?;
        guarded(|| {
            let room = self.room(false)?;
            let whole = self.sequence(&text, 0, OffsetType::Char, None)?;
            let (mut parts, mut start) = (Vec::new(), 0);
            loop {
                let end = whole.len().min(start + room);
                let encoding = self.process(part(&whole, start..end), None)?;
                parts.push(Tokens { places: places(&encoding), ..Tokens::new(&encoding, false) });
                if end == whole.len() {
                    return Ok(parts);
                }
                start += room - stride;
            }
        })
    }
}
