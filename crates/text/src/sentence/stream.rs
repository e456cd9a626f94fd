//! Embeddings of texts that arrive one after the other.

use candle_attention::Result;
use candle_core::Tensor;

use crate::sentence::SentenceEncoder;
use crate::text::options::EncodeOptions;

/// How many texts are taken from the iterator at a time, and sorted by length.
const WINDOW: usize = 8192;

/// At how many bytes of text no more are taken: 64 MiB. Texts of all lengths then need about as much memory.
const WINDOW_BYTES: usize = 1 << 26;

impl SentenceEncoder {
    /// The embeddings `(embedding_size)` of texts from an iterator, in their order, as [`encode`](Self::encode) computes
    /// them.
    ///
    /// Texts are taken from the iterator when the embeddings before them have been given out: up to 8,192 at a time, or
    /// 64 MiB, which run in batches of similar length. So memory does not grow with the number of texts. The number of
    /// texts that [`EncodeOptions::on_progress`] is told is that of the texts taken so far.
    ///
    /// ```
    /// use candle_attention_text::{EncodeOptions, SentenceEncoder};
    /// use candle_core::{DType, Device};
    /// let encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
    /// let texts = (0..3).map(|i| format!("Text number {i}."));
    /// for embedding in encoder.encode_iter(texts, EncodeOptions::default()) {
    ///     assert_eq!(embedding?.dims(), [128]);
    /// }
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode), with the index of the text among all. The iterator ends after an error.
    pub fn encode_iter<'a, I>(&'a self, texts: I, options: EncodeOptions<'a>) -> EncodeIter<'a, I::IntoIter>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        EncodeIter { encoder: self, texts: texts.into_iter(), options, ready: None, failed: false }
    }
}

/// The iterator that [`SentenceEncoder::encode_iter`] returns.
pub struct EncodeIter<'a, I> {
    encoder: &'a SentenceEncoder,
    texts: I,
    options: EncodeOptions<'a>,
    /// Embeddings `(texts, size)` of the last window, and how many of them were given out.
    ready: Option<(Tensor, usize)>,
    failed: bool,
}

impl<I: Iterator<Item: AsRef<str>>> EncodeIter<'_, I> {
    /// The embeddings of the next texts; `None` at the end.
    fn window(&mut self) -> Option<Result<Tensor>> {
        let (mut window, mut bytes) = (Vec::new(), 0);
        while window.len() < WINDOW && bytes < WINDOW_BYTES {
            let Some(text) = self.texts.next() else { break };
            bytes += text.as_ref().len();
            window.push(text);
        }
        if window.is_empty() {
            return None;
        }
        let texts: Vec<&str> = window.iter().map(AsRef::as_ref).collect();
        let embeddings = self.encoder.encode(&texts, &self.options);
        self.options.first_text += texts.len();
        Some(embeddings)
    }
}

impl<I: Iterator<Item: AsRef<str>>> Iterator for EncodeIter<'_, I> {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Result<Tensor>> {
        loop {
            if let Some((embeddings, given)) =
                self.ready.as_mut().filter(|(embeddings, given)| *given < embeddings.dims()[0])
            {
                *given += 1;
                return Some(embeddings.get(*given - 1).map_err(Into::into));
            }
            if self.failed {
                return None;
            }
            match self.window()? {
                Ok(embeddings) => self.ready = Some((embeddings, 0)),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl<I> std::fmt::Debug for EncodeIter<'_, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncodeIter").field("encoder", self.encoder).finish_non_exhaustive()
    }
}
