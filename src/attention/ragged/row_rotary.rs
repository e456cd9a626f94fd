//! Where tokens stand in rows that lie one after the other: rotations in place, on plain numbers.

use rayon::prelude::*;

use crate::attention::ragged::lengths;
use crate::attention::ragged::shared_positions::SharedBias;
use crate::position::{Rotary, RotaryStyle};

/// Tokens that one thread takes at a time.
const CHUNK: usize = 64;

/// What the layers of a model make once for all of them.
#[derive(Debug, Default)]
pub(crate) struct RowPositions {
    turns: Vec<Turns>,
    pub(crate) bias: SharedBias,
}

/// Cosines and sines of the positions from 0 on, `pairs` a position.
#[derive(Debug)]
struct Turns {
    rotary: Rotary,
    head_dim: usize,
    length: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RowPositions {
    /// Rotates queries and keys, each row from position 0: in `xs`, row after row of tokens of one width, each token
    /// begins with `heads` heads of `d` numbers.
    pub(crate) fn rotate(&mut self, rotary: &Rotary, starts: &[usize], xs: &mut [f32], heads: usize, d: usize) {
        let tokens = starts.last().copied().unwrap_or(0);
        let width = xs.len().checked_div(tokens).unwrap_or(0);
        let rows = lengths(starts);
        let longest = rows.clone().max().unwrap_or(0);
        let mut rest = xs;
        for length in rows.filter(|length| *length > 0) {
            let (row, after) = rest.split_at_mut(length * width);
            rest = after;
            // One table for all rows, unless a row's length changes it.
            let of = if rotary.goes_by_length() { length } else { longest };
            self.turns(rotary, d, of).rotate(row, width, heads);
        }
    }

    fn turns(&mut self, rotary: &Rotary, head_dim: usize, length: usize) -> &Turns {
        let fits = |turns: &Turns| (&turns.rotary, turns.head_dim, turns.length) == (rotary, head_dim, length);
        let place = self.turns.iter().position(fits).unwrap_or_else(|| {
            let waves = rotary.waves(0..length, head_dim, length);
            let [cos, sin] = waves.map(|wave| wave.into_iter().map(|x| x as f32).collect());
            self.turns.push(Turns { rotary: rotary.clone(), head_dim, length, cos, sin });
            self.turns.len() - 1
        });
        &self.turns[place]
    }
}

impl Turns {
    /// One row's tokens, of `width` numbers each.
    fn rotate(&self, row: &mut [f32], width: usize, heads: usize) {
        let pairs = self.rotary.dim.unwrap_or(self.head_dim) / 2;
        let part = |((row, cos), sin): ((&mut [f32], &[f32]), &[f32])| {
            let angles = cos.chunks_exact(pairs).zip(sin.chunks_exact(pairs));
            for (token, (cos, sin)) in row.chunks_exact_mut(width).zip(angles) {
                token[..heads * self.head_dim]
                    .chunks_exact_mut(self.head_dim)
                    .for_each(|head| self.turn(head, cos, sin));
            }
        };
        match row.len() > 4 * CHUNK * width && rayon::current_num_threads() > 1 {
            true => {
                let angles = (self.cos.par_chunks(CHUNK * pairs), self.sin.par_chunks(CHUNK * pairs));
                row.par_chunks_mut(CHUNK * width).zip(angles.0).zip(angles.1).for_each(part);
            }
            false => part(((row, &self.cos), &self.sin)),
        }
    }

    #[inline]
    fn turn(&self, head: &mut [f32], cos: &[f32], sin: &[f32]) {
        let turn = |x: &mut f32, y: &mut f32, cos: f32, sin: f32| (*x, *y) = (*x * cos - *y * sin, *y * cos + *x * sin);
        let angles = cos.iter().zip(sin);
        match self.rotary.style {
            RotaryStyle::HalfSplit => {
                let (first, second) = head.split_at_mut(cos.len());
                first.iter_mut().zip(second).zip(angles).for_each(|((x, y), (cos, sin))| turn(x, y, *cos, *sin));
            }
            RotaryStyle::Interleaved => {
                for ([x, y], (cos, sin)) in head.as_chunks_mut().0.iter_mut().zip(angles) {
                    turn(x, y, *cos, *sin);
                }
            }
        }
    }
}
