//! A model under its name.

use std::fmt;
use std::sync::Arc;

use candle_attention_text::{QuantizationRanges, SentenceEncoder};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::precision::EmbeddingPrecision;

/// A model that was added to [`Models`](crate::Models) under a name.
pub struct Model<T = SentenceEncoder> {
    name: String,
    fingerprint: String,
    model: Arc<T>,
    ranges: Option<Arc<Ranges>>,
}

/// Name and fingerprints of a model and of its ranges.
pub(crate) type ModelKey<'a> = (&'a str, &'a str, Option<&'a str>);

/// Ranges for `int8` and `uint8`.
pub(crate) struct Ranges {
    pub values: QuantizationRanges,
    fingerprint: String,
}

impl Ranges {
    pub fn new(values: QuantizationRanges) -> Self {
        // The text of a float in `Debug` is exact.
        let hash = Sha256::digest(format!("{values:?}"));
        Self { values, fingerprint: hash.iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

impl<T> Clone for Model<T> {
    fn clone(&self) -> Self {
        let Self { name, fingerprint, model, ranges } = self;
        Self { name: name.clone(), fingerprint: fingerprint.clone(), model: model.clone(), ranges: ranges.clone() }
    }
}

impl<T> fmt::Debug for Model<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

impl<T> Model<T> {
    pub(crate) fn new(name: &str, fingerprint: String, model: Arc<T>) -> Self {
        Self { name: name.to_string(), fingerprint, model, ranges: None }
    }

    /// The name that queries use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// SHA-256 of the files that determine what the model computes, as
    /// [`fingerprint`](candle_attention_text::fingerprint) gives it.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The loaded model.
    pub fn model(&self) -> &Arc<T> {
        &self.model
    }

    /// What two models have in common if and only if they are equal.
    pub(crate) fn key(&self) -> ModelKey<'_> {
        (&self.name, &self.fingerprint, self.ranges.as_ref().map(|ranges| ranges.fingerprint.as_str()))
    }
}

impl Model {
    pub(crate) fn set_ranges(&mut self, ranges: QuantizationRanges) {
        self.ranges = Some(Arc::new(Ranges::new(ranges)));
    }

    /// The ranges that a precision needs, `None` if it needs none.
    ///
    /// # Errors
    /// If it needs them and the model has none.
    pub(crate) fn ranges(&self, precision: EmbeddingPrecision) -> Result<Option<&Ranges>> {
        if !precision.has_ranges() {
            return Ok(None);
        }
        self.ranges.as_deref().map(Some).ok_or_else(|| {
            let expected = "float32, float16, binary or ubinary: the model has no ranges, and without them the numbers \
                            would depend on the other texts of a batch";
            Error::value(format!("the precision of model `{}`", self.name), precision, expected)
        })
    }

    /// The fingerprint of what is computed in a precision: that of the model, with that of the ranges if they are used.
    ///
    /// # Errors
    /// If the precision needs ranges and the model has none.
    pub fn fingerprint_for(&self, precision: EmbeddingPrecision) -> Result<String> {
        Ok(match self.ranges(precision)? {
            Some(ranges) => format!("{}-{}", self.fingerprint, ranges.fingerprint),
            None => self.fingerprint.clone(),
        })
    }
}
