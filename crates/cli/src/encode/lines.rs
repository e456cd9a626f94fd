//! JSON lines of texts, printed as they arrive.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use candle_attention::ensure;
use candle_attention_text::EncodeOptions;
use candle_core::{DType, Device, Tensor};
use serde::Serialize;

use super::super::shared::model::{MAX_LENGTH, note_cut};
use super::super::shared::print::{self, Stdout};
use super::super::shared::read::{self, Lines};
use super::super::shared::{Result, count_cut};

/// At how many bytes of text a chunk ends: 64 MiB.
pub const CHUNK_BYTES: usize = 1 << 26;

/// The vectors of the tokens of a text.
#[derive(Serialize)]
struct TokensLine<'a> {
    text: &'a str,
    embeddings: Vec<Vec<f32>>,
}

/// Texts that arrive one after the other.
pub struct Arrivals {
    /// The texts of the command line, which are all there.
    pub given: std::vec::IntoIter<String>,
    /// Files, one after the other.
    pub files: VecDeque<Lines>,
}

impl Arrivals {
    /// The next texts, at least one: those that have arrived already, up to so many texts and bytes. With `usize::MAX`,
    /// all that there will be. None at the end.
    fn arrived(&mut self, (most, most_bytes): (usize, usize)) -> Result<Vec<String>> {
        let (waits, mut bytes) = (most == usize::MAX, 0);
        let mut texts: Vec<String> = self.given.by_ref().take(most).collect();
        while let Some(lines) = self.files.front_mut()
            && texts.len() < most
            && bytes < most_bytes
            && (waits || texts.is_empty() || lines.has_arrived())
        {
            match lines.next().transpose()? {
                Some(text) => {
                    bytes += text.len();
                    texts.push(text);
                }
                None => drop(self.files.pop_front()),
            }
        }
        Ok(texts)
    }
}

/// Prints texts by `print` with these options as soon as they arrive, up to so many texts and bytes at a time. `cut_at`
/// is the length at which they are cut, if it is known.
pub fn stream(
    mut texts: Arrivals,
    most: (usize, usize),
    options: &EncodeOptions,
    cut_at: Option<usize>,
    print: impl Fn(&[&str], &EncodeOptions, &mut Stdout) -> Result<()>,
) -> Result<()> {
    let (mut out, cut, mut count) = (print::stdout(), AtomicUsize::new(0), 0);
    let on_truncated = count_cut(&cut);
    loop {
        let chunk = texts.arrived(most)?;
        if chunk.is_empty() {
            break;
        }
        count += chunk.len();
        print(&read::borrowed(&chunk), &options.with_on_truncated(&on_truncated), &mut out)?;
        out.flush()?;
    }
    ensure!(count != 0, "no text: every line is blank, or there is none".into());
    note_cut(cut.load(Relaxed), count, cut_at, MAX_LENGTH);
    Ok(())
}

/// Prints the vectors of the tokens of each text.
pub fn print_tokens(texts: &[&str], vectors: Vec<Tensor>, out: &mut impl Write) -> Result<()> {
    for (text, vectors) in texts.iter().zip(vectors) {
        let embeddings = vectors.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2()?;
        print::json(out, &TokensLine { text, embeddings })?;
    }
    Ok(())
}
