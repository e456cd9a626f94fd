//! The name of a model for titles of pictures and for model cards.

use candle_attention_text::model_card;

/// The name of the model that `--model` names: the title of its model card, or else the name of its folder or file.
/// What is no path is the id of a hub model.
pub fn model_name(model: &str) -> String {
    let Ok(path) = std::fs::canonicalize(model) else { return model.to_string() };
    let titled = model_card(&path).ok().and_then(|card| title(&card).map(str::to_string));
    titled.or_else(|| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_else(|| model.to_string())
}

/// The title of a model card: its first heading, if that is one of the first level.
fn title(card: &str) -> Option<&str> {
    let (_, text) = split_card(card);
    let heading = text.lines().take_while(|line| !line.starts_with("```")).find(|line| line.starts_with('#'))?;
    Some(heading.strip_prefix("# ")?.trim()).filter(|title| !title.is_empty())
}

/// The metadata at the start of a model card, between lines `---`, and the text after it.
pub fn split_card(card: &str) -> (&str, &str) {
    let end = card.strip_prefix("---\n").and_then(|rest| rest.find("\n---\n"));
    end.map_or(("", card), |end| card.split_at("---\n".len() + end + "\n---\n".len()))
}
