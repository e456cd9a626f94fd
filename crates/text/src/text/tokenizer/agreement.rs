//! Whether `tokenizer_config.json` states the tokenizer of `tokenizer.json`.

use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

use crate::folder::TokenizerConfig;
use crate::text::tokenizer::Tokenizer;

impl Tokenizer {
    /// The first key of `tokenizer_config.json` by which transformers makes another tokenizer than the one of
    /// `tokenizer.json`, which runs here, with what is stated and what that one does.
    pub(crate) fn disagreement(&self, stated: &TokenizerConfig) -> Option<String> {
        let tokenizer = &self.inner.tokenizer;
        if stated.split_special_tokens == Some(true) {
            return Some("split_special_tokens is true, expected false".to_string());
        }
        let added = tokenizer.get_added_vocabulary().get_vocab();
        if let Some(token) = stated.added_tokens().find(|token| !added.contains_key(*token)) {
            return Some(format!("`{token}` is an added token there, and none in `tokenizer.json`"));
        }
        if !stated.has_own_class() {
            return None;
        }
        let mut pairs = Vec::new();
        if let Some(NormalizerWrapper::BertNormalizer(bert)) = tokenizer.get_normalizer() {
            pairs.push(("do_lower_case", stated.do_lower_case, bert.lowercase));
            pairs.push(("strip_accents", stated.strip_accents, bert.strip_accents.unwrap_or(bert.lowercase)));
            pairs.push(("tokenize_chinese_chars", stated.tokenize_chinese_chars, bert.handle_chinese_chars));
        }
        if let Some(adds) = tokenizer.get_pre_tokenizer().and_then(adds_prefix_space) {
            pairs.push(("add_prefix_space", stated.add_prefix_space, adds));
        }
        let differs = pairs.into_iter().find(|(_, stated, own)| stated.is_some_and(|stated| stated != *own));
        differs.map(|(key, _, own)| format!("{key} is {}, and `tokenizer.json` has {own}", !own))
    }
}

/// Whether a pre-tokenizer puts a space before a text, if it is of a kind that can.
fn adds_prefix_space(pre_tokenizer: &PreTokenizerWrapper) -> Option<bool> {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(bytes) => Some(bytes.add_prefix_space),
        PreTokenizerWrapper::Metaspace(spaces) => Some(spaces.get_prepend_scheme() != PrependScheme::Never),
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().find_map(adds_prefix_space),
        _ => None,
    }
}
