//! Where a model comes from: a folder, the hub, or this program itself.

use std::path::PathBuf;
use std::str::FromStr;

use candle_attention_text::{SentenceEncoder, fingerprint, locate_model};

use crate::error::{Error, Result};

/// The source of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The 3 MB model that is part of candle-attention.
    Embedded,
    /// A folder, or a hub id, as [`locate_model`] takes it.
    Located(String),
}

/// `embedded`, a folder, or a hub id. A folder named `embedded` is `./embedded`.
impl From<&str> for Source {
    fn from(text: &str) -> Self {
        if text == "embedded" { Self::Embedded } else { Self::Located(text.to_string()) }
    }
}

impl Source {
    /// The folder of the model, downloaded if it is not there; `None` for the embedded model.
    pub(crate) fn folder(&self) -> candle_attention::Result<Option<PathBuf>> {
        match self {
            Self::Embedded => Ok(None),
            Self::Located(name) => locate_model(name, None, false).map(Some),
        }
    }

    /// The fingerprint of the model in `folder`, or of the embedded model.
    pub(crate) fn fingerprint(folder: Option<&PathBuf>) -> candle_attention::Result<String> {
        folder.map_or_else(|| Ok(SentenceEncoder::embedded_fingerprint()), fingerprint)
    }
}

/// A source with the name that queries use for its model: `NAME=SOURCE`, or `SOURCE` alone, whose name is `default`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedSource {
    /// The name.
    pub name: String,
    /// The source.
    pub source: Source,
}

impl FromStr for NamedSource {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, source) = match text.split_once('=') {
            Some((name, source)) if is_name(name) => (name, source),
            _ => ("default", text),
        };
        if source.is_empty() {
            return Err(Error::value(
                "the model",
                format!("`{text}`"),
                "NAME=FOLDER_OR_ID, FOLDER_OR_ID or `embedded`",
            ));
        }
        Ok(Self { name: name.to_string(), source: source.into() })
    }
}

/// Whether a text before `=` is a name, rather than the beginning of a path.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_stands_before_the_source() {
        let named = |text: &str| text.parse::<NamedSource>().map(|named| (named.name, named.source));
        assert_eq!(named("small=embedded").unwrap(), ("small".to_string(), Source::Embedded));
        assert_eq!(named("a/b").unwrap(), ("default".to_string(), Source::Located("a/b".to_string())));
        assert_eq!(named("./x=y").unwrap(), ("default".to_string(), Source::Located("./x=y".to_string())));
        assert!(named("small=").unwrap_err().to_string().contains("expected NAME=FOLDER_OR_ID"));
    }
}
