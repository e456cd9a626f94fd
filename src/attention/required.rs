//! The inputs that only the call has: position vectors, cosines and sines, a bias of the scores, token types.

use std::borrow::Cow;

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::options::{AttentionInputs, AttentionOptions, Tokens};
use crate::config::CallInput;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape, check_integers};
use crate::tensor::{check_float, same_dtype_and_device};

impl MultiHeadAttention {
    /// Checks that a call gives all that the layer requires.
    pub(super) fn check_required(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<()> {
        let given = |input: &CallInput| match input {
            CallInput::PositionVectors => inputs.has_position_vectors(),
            CallInput::CosSin => options.cos_sin.is_some(),
            CallInput::ScoreBias { .. } => options.score_bias.is_some() || inputs.mask.adds_to_scores(),
            CallInput::Positions => options.positions.is_some(),
            // Under one query, a mask of padding says all.
            CallInput::Mask if inputs.query.dims().iter().rev().nth(1) == Some(&1) => !inputs.mask.is_full(),
            CallInput::Mask => inputs.mask.depends_on_query(),
            CallInput::Grid => options.grid.is_some(),
        };
        match self.config.requires.iter().find(|input| !given(input)) {
            Some(input) => Err(self.missing(*input)),
            None => Ok(()),
        }
    }

    /// The error of a call without an input that the layer requires.
    pub(super) fn missing(&self, input: CallInput) -> Error {
        let (expected, model_type) = (input.expected(), self.config.model_type);
        Error::MissingInput { input: input.to_string(), expected, model_type }
    }

    /// Checks the position vectors, cosines and sines, the bias and the token types that a call gives.
    pub(super) fn check_given(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<()> {
        let is_ragged = matches!(inputs.tokens, Tokens::Ragged(_));
        let all = [("query_vectors", inputs.query), ("key_vectors", inputs.key)];
        for ((name, xs), vectors) in all.into_iter().zip(inputs.vectors) {
            let Some(vectors) = vectors else { continue };
            if matches!(inputs.tokens, Tokens::Memory(_)) && name == "key_vectors" {
                let expected =
                    "none: the keys of this memory are projected; `cross_cache` takes keys that include them";
                return Err(Error::value(name, format!("{:?}", vectors.dims()), expected));
            }
            let shared = |dims: &[usize]| !is_ragged && vectors.dims() == [&[1], &dims[1..]].concat();
            if vectors.dims() != xs.dims() && !shared(xs.dims()) {
                let one = if is_ragged { "" } else { ", or 1 in place of the batch size" };
                return Err(Error::shape(name, vectors.dims(), format!("{:?}{one}", xs.dims())));
            }
            same_dtype_and_device(name, vectors, xs)?;
        }
        let padded_inputs = [
            ("cos_sin", options.cos_sin.is_some()),
            ("score_bias", options.score_bias.is_some()),
            ("token_types", options.token_types.is_some()),
        ];
        if let Some((name, _)) = padded_inputs.into_iter().find(|(_, given)| is_ragged && *given) {
            let expected = "none: it has the dimensions of a padded batch, which `AttentionMask::padding` describes";
            return Err(Error::value(format!("`{name}` of a ragged batch"), "given by the call", expected));
        }
        let (b, s, d) = (inputs.query.dims()[0], inputs.key.dim(1)?, self.config.resolved_head_dim());
        for (name, values) in ["cos", "sin"].into_iter().zip(options.cos_sin.into_iter().flatten()) {
            if !self.config.position.scheme().traits().accepts_cos_sin {
                let allowed = format!("none: the layer's positions are {}", self.config.position);
                return Err(Error::config("cos_sin", "given by the call", allowed));
            }
            let fits =
                |dims: &[usize]| matches!(*dims, [n, len, pairs] if (n == 1 || n == b) && len == s && pairs <= d / 2);
            let same = |[cos, sin]: [&Tensor; 2]| cos.dims() == sin.dims();
            if !fits(values.dims()) || !options.cos_sin.is_some_and(same) {
                let expected = format!("({b} or 1, {s}, pairs), up to {} pairs, the same for both", d / 2);
                return Err(Error::shape(name, values.dims(), expected));
            }
            check_float(name, values)?;
        }
        if let Some(types) = options.token_types {
            if !self.config.position.scheme().traits().uses_token_types {
                let allowed = format!("none: the layer's positions are {}", self.config.position);
                return Err(Error::config("token_types", "given by the call", allowed));
            }
            check_integers("token_types", types)?;
            let queries = inputs.query.dim(1)?;
            if ![[1, s], [b, s]].iter().any(|dims| types.dims() == dims) || queries > s {
                let expected =
                    format!("({b} or 1, {s}), one for each key, of which the {queries} queries are the last");
                return Err(Error::shape("token_types", types.dims(), expected));
            }
        }
        Ok(())
    }

    /// `mask` with the bias that the call adds to the scores of this shape, scaled if the layer does so.
    pub(super) fn with_score_bias<'a>(
        &self,
        mask: Cow<'a, AttentionMask>,
        shape: AttnShape,
        options: &AttentionOptions,
    ) -> Result<Cow<'a, AttentionMask>> {
        let Some(bias) = options.score_bias else { return Ok(mask) };
        check_float("score_bias", bias)?;
        let wants = shape.dims();
        let fits = |dims: &[usize]| dims.len() == 4 && dims.iter().zip(wants).all(|(n, want)| *n == want || *n == 1);
        if !fits(bias.dims()) {
            let expected = format!("{wants:?}, or 1 in place of a size: (b, h, s_q, s_kv)");
            return Err(Error::shape("score_bias", bias.dims(), expected));
        }
        let is_scaled = self.config.requires.contains(&CallInput::ScoreBias { scaled: true });
        let bias = if is_scaled { &bias.affine(self.config.resolved_scale(), 0.0)? } else { bias };
        Ok(Cow::Owned(mask.into_owned().and(AttentionMask::additive(bias)?)))
    }
}

impl AttentionInputs<'_> {
    /// Whether the inputs of queries and keys include what those of values do not.
    fn has_position_vectors(&self) -> bool {
        let apart = matches!(self.tokens, Tokens::Padded) && self.key.id() != self.value.id();
        apart || self.vectors.iter().any(Option::is_some)
    }

    /// The inputs of queries and of keys with their position vectors. One tensor stays one if its vectors are one.
    pub(super) fn with_vectors(&self) -> Result<[Tensor; 2]> {
        let sum = |xs: &Tensor, vectors: Option<&Tensor>| match vectors {
            Some(vectors) => Ok::<_, Error>(xs.broadcast_add(vectors)?),
            None => Ok(xs.clone()),
        };
        let query = sum(self.query, self.vectors[0])?;
        let same =
            self.key.id() == self.query.id() && self.vectors[0].map(Tensor::id) == self.vectors[1].map(Tensor::id);
        let key = if same { query.clone() } else { sum(self.key, self.vectors[1])? };
        Ok([query, key])
    }
}
