//! The head of a GGUF file: a classifier of texts, or the answers of a decoder that reranks.

use candle_attention::checkpoint::{Checkpoint, GgufMetadata};
use candle_attention::{Error, Result};
use serde_json::{Value, json};

/// The rows of the language head that answer, one per label.
pub(crate) const ANSWERS: &str = "cls.output.weight";

/// Where the rows of [`ANSWERS`] are those of a decoder's classifier, its name at Hugging Face.
pub(super) const SCORE: &str = "score.weight";

/// The last projection of an encoder's classifier.
const CLASSIFIER: &str = "classifier.weight";

/// The labels of a decoder that answers, as llama.cpp's converter writes them.
const YES_NO: [&str; 2] = ["yes", "no"];

/// The key of the text around the query and the document of a pair.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// The head that a file has on top of its model.
pub(super) enum Head {
    /// A classifier of texts or pairs.
    Classifier,
    /// The rows of the language head for `yes` and `no`, and the source of the chat template.
    Answers(String),
}

impl Head {
    /// The head of a file, `None` without one.
    pub fn read(checkpoint: &Checkpoint, metadata: &GgufMetadata) -> Result<Option<Self>> {
        if !checkpoint.contains(ANSWERS) {
            let is_classifier = checkpoint.contains(CLASSIFIER) || checkpoint.contains(SCORE);
            return Ok(is_classifier.then_some(Self::Classifier));
        }
        let answers = labels(metadata)?.is_some_and(|labels| labels == YES_NO);
        match (answers, metadata.text(TEMPLATE)?) {
            (true, Some(template)) => Ok(Some(Self::Answers(chat_template(template)?))),
            (false, None) => Ok(Some(Self::Classifier)),
            (true, None) => Err(Error::value(format!("metadata `{TEMPLATE}`"), "absent", "the text around a pair")),
            (false, Some(_)) => {
                let expected = format!("{}, as beside `{TEMPLATE}`", YES_NO.join(" and "));
                Err(Error::value("metadata `classifier.output_labels`", "others", expected))
            }
        }
    }

    /// Adds what `config.json` states of a head.
    pub fn configure(&self, config: &mut Value, metadata: &GgufMetadata) -> Result<()> {
        let architecture = metadata.architecture()?;
        let class = match self {
            Self::Answers(_) => "ForCausalLM",
            Self::Classifier => "ForSequenceClassification",
        };
        config["architectures"] = json!([format!("{architecture}{class}")]);
        if let Some(labels) = labels(metadata)?.filter(|labels| !labels.is_empty()) {
            let named = labels.iter().enumerate().map(|(i, label)| (i.to_string(), json!(label)));
            config["id2label"] = named.collect();
        }
        match architecture {
            // It reads the last token that does not pad.
            "qwen3" => {
                if let Some(id) = metadata.count("tokenizer.ggml.padding_token_id")? {
                    config["pad_token_id"] = id.into();
                }
            }
            "modern-bert" => config["classifier_pooling"] = classifier_pooling(metadata)?.unwrap_or("mean").into(),
            _ => {}
        }
        Ok(())
    }
}

/// The names of the labels, of a file that has them.
fn labels(metadata: &GgufMetadata) -> Result<Option<&[String]>> {
    metadata.texts(&format!("{}.classifier.output_labels", metadata.architecture()?))
}

/// The pooling before ModernBERT's classifier, if the file states it. llama.cpp takes the mean in others.
pub(super) fn classifier_pooling(metadata: &GgufMetadata) -> Result<Option<&'static str>> {
    for key in ["modern-bert.classifier.pooling_type", "modern-bert.classifier_pooling_type"] {
        match metadata.count(key)? {
            None => {}
            Some(1) => return Ok(Some("mean")),
            Some(2) => return Ok(Some("cls")),
            Some(other) => {
                return Err(Error::value(format!("metadata `{key}`"), other, "1 (mean) or 2 (first token)"));
            }
        }
    }
    Ok(None)
}

/// The template of llama.cpp, a text with `{query}` and `{document}`, as one of Jinja. The instruction behind
/// `<Instruct>: ` gives way to another one.
fn chat_template(theirs: &str) -> Result<String> {
    const INSTRUCTION: &str = "<Instruct>: ";
    if let Some(sign) = ["{{", "{%", "{#"].into_iter().find(|sign| theirs.contains(sign)) {
        let (found, expected) = (format!("a text with `{sign}`"), "one with `{query}` and `{document}`");
        return Err(Error::value(format!("metadata `{TEMPLATE}`"), found, expected));
    }
    let content = |role: &str| {
        format!(r#"{{{{ messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first"#)
    };
    let parts = theirs.split_once(INSTRUCTION).and_then(|(before, after)| Some((before, after.split_once('\n')?)));
    let mut ours = match parts {
        Some((before, (stated, after))) if !stated.contains(['"', '\\', '{']) => {
            let instruction = content("system");
            format!("{before}{INSTRUCTION}{instruction} | default(\"{stated}\") }}}}\n{after}")
        }
        _ => theirs.to_string(),
    };
    for role in ["query", "document"] {
        ours = ours.replace(&format!("{{{role}}}"), &format!("{} }}}}", content(role)));
    }
    // Jinja leaves out a line feed at the end of a template.
    Ok(format!("{ours}{{{{ \"\" }}}}"))
}

/// Checks that a GGUF file has a head that classifies texts. `kind` names such a model in the error.
pub(crate) fn check_classifier(file: &Checkpoint, kind: &str) -> Result<()> {
    let head = file.gguf().map_or(Ok(None), |metadata| Head::read(file, metadata));
    let has = |name: &str| file.contains(name);
    let reason = match head.map_err(|e| in_file(file, e))? {
        None => format!("it has no head (`cls.output.weight`): this is not a {kind}"),
        Some(Head::Answers(_)) => format!("it answers `yes` and `no` to pairs: this is not a {kind}"),
        // Only BERT, RoBERTa and Jina-BERT have segment types and a head.
        Some(Head::Classifier) if has("embeddings.token_type_embeddings.weight") && !has("pooler.dense.weight") => {
            "its head lacks the layer before the last one (the pooler), which llama.cpp's converter leaves out for this \
             model: scores without it are not those of the model"
                .to_string()
        }
        Some(Head::Classifier) => return Ok(()),
    };
    Err(in_file(file, reason))
}

/// Refuses a file that has no embeddings.
pub(crate) fn check_embeds(file: &Checkpoint) -> Result<()> {
    let Some(metadata) = file.gguf() else { return Ok(()) };
    if super::is_reranker(file, metadata)? {
        Err(in_file(file, "its `pooling_type` is 4 (rank): a reranker scores pairs and has no embeddings"))
    } else {
        Ok(())
    }
}

fn in_file(file: &Checkpoint, reason: impl ToString) -> Error {
    Error::file(file.path().unwrap_or(std::path::Path::new("<bytes>")), reason)
}
