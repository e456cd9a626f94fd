//! Rotation of queries and keys by angles that the call gives.

use candle_core::Tensor;

use super::rotation::{RotaryStyle, rotate};
use super::scheme::{PositionScheme, SchemeTraits, TokenPositions};
use crate::error::{Error, Result};

/// Rotation by cosines and sines that each call gives ([`AttentionOptions::cos_sin`](crate::AttentionOptions)), because
/// the model computes them from its image or learns them outside its layers.
///
/// The first `2 · pairs` elements of each head are rotated. The queries are the last of the tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
pub struct GivenRotation {
    /// Which elements form a pair; default half-split.
    pub style: RotaryStyle,
}

impl GivenRotation {
    /// A rotation of these pairs.
    pub fn new(style: RotaryStyle) -> Self {
        Self { style }
    }
}

impl PositionScheme for GivenRotation {
    fn traits(&self) -> SchemeTraits {
        SchemeTraits { accepts_cos_sin: true, rotates: true, ..SchemeTraits::default() }
    }

    fn rotate(&self, q: Tensor, k: Tensor, tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        let Some(cos_sin) = tokens.cos_sin else {
            return Err(Error::config("cos_sin", "absent", "given by the call (`AttentionOptions::with_cos_sin`)"));
        };
        let (s_q, s_kv) = (q.dim(1)?, k.dim(1)?);
        if s_q > s_kv {
            let found = format!("{s_q} queries and {s_kv} keys");
            return Err(Error::value("a call with a rotation", found, "at least as many keys as queries"));
        }
        let [cos, sin] = cos_sin.map(|values| values.to_dtype(k.dtype())?.unsqueeze(2));
        let keys = [cos?, sin?];
        let [cos, sin] = keys.each_ref().map(|values| values.narrow(1, s_kv - s_q, s_q));
        Ok([rotate(&q, &[cos?, sin?], self.style)?, rotate(&k, &keys, self.style)?])
    }

    fn describe(&self) -> String {
        "a rotation that the call gives".to_string()
    }
}
