//! The hidden states of a batch, ragged or padded.

use candle_attention::ragged::offsets;
use candle_attention::{Error, Result};
use candle_core::{DType, Device, Tensor};

/// The hidden states of a batch of texts.
#[derive(Debug)]
pub(crate) struct HiddenStates {
    /// `(tokens, width)`, one text after another; or `(b, s, width)`, padded on the right.
    pub tokens: Tensor,
    pub lengths: Vec<usize>,
}

impl HiddenStates {
    /// Text `i`, `(tokens, width)`.
    pub fn text(&self, i: usize) -> Result<Tensor> {
        Ok(match self.tokens.rank() {
            2 => self.tokens.narrow(0, offsets(&self.lengths[..i])[i], self.lengths[i])?,
            _ => self.tokens.get(i)?.narrow(0, 0, self.lengths[i])?,
        })
    }

    /// All texts one after another, `(tokens, width)`.
    pub fn flat(&self) -> Result<Tensor> {
        if self.tokens.rank() == 2 {
            return Ok(self.tokens.clone());
        }
        let texts = (0..self.lengths.len()).map(|i| self.text(i)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::cat(&texts, 0)?)
    }

    /// All texts padded on the right, `(b, s, width)`.
    pub fn padded(&self) -> Result<Tensor> {
        if self.tokens.rank() == 3 {
            return Ok(self.tokens.clone());
        }
        let longest = self.lengths.iter().copied().max().unwrap_or(0);
        let starts = offsets(&self.lengths);
        // Past the end of a text its last token is repeated: any finite value will do.
        let place = |i: usize| (0..longest).map(move |j| (i, j));
        let places = (0..self.lengths.len()).flat_map(place).map(|(i, j)| match self.lengths[i] {
            0 => 0,
            length => (starts[i] + j.min(length - 1)) as u32,
        });
        let places = Tensor::from_iter(places, self.tokens.device())?;
        Ok(self.tokens.index_select(&places, 0)?.reshape((self.lengths.len(), longest, self.tokens.dim(1)?))?)
    }

    /// The mean over the tokens of each text, `(b, width)`.
    pub fn means(&self) -> Result<Tensor> {
        let means = (0..self.lengths.len()).map(|i| Ok(self.text(i)?.mean(0)?)).collect::<Result<Vec<_>>>()?;
        Ok(Tensor::stack(&means, 0)?)
    }

    /// Tokens `(text, place)`, each as a row.
    ///
    /// # Errors
    /// A text without such a token.
    pub fn tokens_at(&self, places: &[(usize, usize)]) -> Result<Tensor> {
        if let Some((text, place)) = places.iter().find(|(text, place)| *place >= self.lengths[*text]) {
            let expected = format!("at least {}", place + 1);
            return Err(Error::value(format!("the number of tokens of text {text}"), self.lengths[*text], expected));
        }
        let starts = offsets(&self.lengths);
        let (flat, row) = match self.tokens.rank() {
            2 => (self.tokens.clone(), None),
            _ => (self.tokens.flatten(0, 1)?, Some(self.tokens.dim(1)?)),
        };
        let place = |&(text, place): &(usize, usize)| (row.map_or(starts[text], |row| text * row) + place) as u32;
        let places: Vec<u32> = places.iter().map(place).collect();
        Ok(flat.index_select(&Tensor::new(places, self.tokens.device())?, 0)?)
    }
}

/// The first row of a matrix that holds NaN or an infinity: each row is summed after a product with 0.
pub(crate) fn first_not_finite(xs: &Tensor) -> Result<Option<usize>> {
    // candle compiles its Metal shaders for finite numbers by default. The copy is one of memory that both share.
    let xs = if xs.device().is_metal() { &xs.to_device(&Device::Cpu)? } else { xs };
    let sums = (xs * 0.0)?.sum(1)?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    Ok(sums.iter().position(|sum| sum.is_nan()))
}

/// Rows of numbers on the CPU, in f32.
pub(crate) fn rows(xs: &Tensor) -> Result<Vec<Vec<f32>>> {
    Ok(xs.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_padded_with_their_last_token() {
        let tokens = Tensor::new(&[[1f32], [2.], [3.], [4.]], &Device::Cpu).unwrap();
        let hidden = HiddenStates { tokens, lengths: vec![1, 0, 3] };
        let padded = hidden.padded().unwrap().squeeze(2).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(padded, [[1., 1., 1.], [1., 1., 1.], [2., 3., 4.]]);
    }

    #[test]
    fn tokens_are_found_in_ragged_and_in_padded_states() {
        let numbers = |tokens: &Tensor| tokens.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let ragged = Tensor::new(&[[1f32], [2.], [3.]], &Device::Cpu).unwrap();
        let padded = Tensor::new(&[[[1f32], [0.], [0.]], [[2.], [3.], [0.]]], &Device::Cpu).unwrap();
        for tokens in [ragged, padded] {
            let hidden = HiddenStates { tokens, lengths: vec![1, 2] };
            assert_eq!(numbers(&hidden.tokens_at(&[(1, 1), (0, 0), (1, 0)]).unwrap()), [3., 1., 2.]);
        }
    }
}
