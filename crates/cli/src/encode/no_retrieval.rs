//! The stand-in for [`Retrieval`] in a build without the feature `program`: models of these kinds are refused.

use candle_attention_text::EncoderKind;

use super::super::shared::Result;
use super::super::shared::model::{Batches, Model};
use super::adaptation::Adaptation;
use super::outputs::Outputs;

/// A model that makes sparse vectors or a vector per token: there is no such value in this build.
pub enum Retrieval<'a> {
    #[doc(hidden)]
    Never(std::convert::Infallible, std::marker::PhantomData<&'a ()>),
}

impl Retrieval<'_> {
    /// `None`, or an error for a model of one of these kinds.
    pub fn open(model: &Model, _: &Adaptation, _: &Batches, _: &Outputs, _: bool) -> Result<Option<Self>> {
        let Some(folder) = model.folder()? else { return Ok(None) };
        let what = match EncoderKind::of_folder(&folder)? {
            EncoderKind::Sparse => "sparse vectors",
            EncoderKind::MultiVector => "a vector per token",
            _ => return Ok(None),
        };
        let program = "cargo run --release -p candle-attention-cli -- encode";
        Err(format!(
            "{}: the model makes {what}, which the program encodes and this example does not: {program}",
            model.name()
        )
        .into())
    }

    /// Never called.
    pub fn stream<T>(self, _: T) -> Result<()> {
        match self {
            Self::Never(never, _) => match never {},
        }
    }
}
