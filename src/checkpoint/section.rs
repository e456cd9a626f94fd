//! Finds the section of a `config.json` that describes the model of a layer.
//!
//! A model of several parts has a section for each: `text_config`, `vision_config`, `decoder`, and sections in sections
//! (`thinker_config.text_config`). The first component of a tensor's prefix that names a section leads into it.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::families::heads::states_heads;
use crate::families::layer::CROSS;
use crate::families::table::{is_listed, masks_text, resolved_model_type};

/// First words of names that mean the same part of a model.
const PARTS: [&[&str]; 4] = [
    &["text", "language", "llm", "lm"],
    &["vision", "visual", "image", "img", "video", "vit"],
    &["audio", "speech", "sound"],
    &["backbone", "pixel"],
];

/// Components of a prefix that name no part. Layers of the text model may stand below them alone.
const NEUTRAL: [&str; 8] = ["model", "base_model", "transformer", "layers", "layer", "h", "blocks", "block"];

/// Keys of sections that the class of the whole model fills in or replaces, by values that are not those of the
/// section's own class: the whole, the section, the key, and the key of the whole that counts in its place, or nothing.
#[rustfmt::skip]
const FILLED: &[(&str, &str, &str, &str)] = &[
    ("blt", "encoder_config", "sliding_window", "local_attention_window_len"),
    ("cohere_asr", "encoder_config", "num_attention_heads", ""),
    ("glmasr", "text_config", "num_attention_heads", ""),
    ("glmasr", "text_config", "rope_parameters", ""),
    ("pe_audio", "text_config", "num_attention_heads", ""),
    ("pe_audio_video", "text_config", "num_attention_heads", ""),
    ("pe_video", "text_config", "num_attention_heads", ""),
    ("voxtral", "text_config", "rope_theta", ""),
    ("voxtral_realtime", "text_config", "rope_theta", ""),
    ("voxtral_realtime", "text_config", "sliding_window", ""),
];

/// Groups of keys, which describe no model.
const GROUPS: [&str; 3] = ["attn_config", "ffn_config", "quantization_config"];

/// The most sections at one level that are looked at: each is compared with each component of a prefix.
const MOST_SECTIONS: usize = 64;

/// A part of a `config.json`, and the family of the model that it describes.
pub(crate) struct Section<'a> {
    pub keys: &'a Value,
    pub model_type: Option<String>,
}

/// The section of the model that the layer at `prefix` belongs to: `json` itself unless it has sections.
///
/// # Errors
/// If the prefix does not tell which of several sections it is.
pub(crate) fn section<'a>(json: &'a Value, prefix: &str) -> Result<Section<'a>> {
    let mut section = Section { keys: json, model_type: model_type(json) };
    let mut path = String::new();
    let mut rest: Vec<&str> = prefix.split('.').collect();
    loop {
        if let Some((key, family)) = place(&section, prefix) {
            if key.is_empty() {
                return Ok(Section { model_type: family.map(str::to_string).or(section.model_type), ..section });
            }
            check_whole(&section, key)?;
            let model_type = family.map_or_else(|| type_of_child(&section, key), |family| Some(family.to_string()));
            section = Section { keys: &section.keys[key], model_type };
            path = format!("{path}{key}.");
            continue;
        }
        let children = children(section.keys);
        if children.len() > MOST_SECTIONS {
            let found = format!("{} sections", children.len());
            return Err(Error::value("the configuration", found, format!("at most {MOST_SECTIONS}")));
        }
        // Where the whole states its own heads, a component below a layer names a part of that layer.
        let is_number = |part: &&str| part.parse::<u64>().is_ok();
        let layer = rest.iter().position(is_number).filter(|_| states_heads(section.keys));
        let mut named = rest.iter().take(layer.unwrap_or(rest.len())).map(|part| named_by(&children, part)).enumerate();
        let key = match named.find(|(_, keys)| !keys.is_empty()) {
            Some((i, keys)) => {
                let &[key] = keys.as_slice() else { return Err(ambiguous(&keys, &path, prefix)) };
                rest.drain(..=i);
                key
            }
            None if children.is_empty() => return Ok(section),
            None if states_heads(section.keys) => return Ok(text_of_whole(section)),
            None => only_child(&children, &rest).ok_or_else(|| ambiguous(&children, &path, prefix))?,
        };
        check_whole(&section, key)?;
        section = Section { keys: &section.keys[key], model_type: type_of_child(&section, key) };
        path = format!("{path}{key}.");
    }
}

/// Checks that a section states what the whole model would fill in or replace in it. Some models hand their `is_causal`
/// on to the section of their text, others do not.
fn check_whole(whole: &Section, section: &str) -> Result<()> {
    let (outer, inner) = (whole.keys, &whole.keys[section]);
    let is_causal = |keys: &Value| keys.get("is_causal").filter(|value| !value.is_null()).cloned();
    let causal = is_causal(inner).unwrap_or(Value::Bool(true));
    if let Some(other) = is_causal(outer).filter(|other| *other != causal) {
        return Err(Error::config("is_causal", other, format!("absent, or {causal} as in `{section}`")));
    }
    for (name, place, key, beside) in FILLED {
        let stated = inner.get(key).or(inner.get("rope_parameters").and_then(|set| set.get(key)));
        let counts = if beside.is_empty() { stated } else { outer.get(beside) };
        if whole.model_type.as_deref() == Some(*name) && *place == section && (stated.is_none() || counts != stated) {
            let found = stated.map_or("absent".to_string(), Value::to_string);
            let expected = counts.map_or("stated".to_string(), Value::to_string);
            let why = format!("{expected}: `{name}` fills in what `{section}` leaves out, or replaces it");
            return Err(Error::config(key, found, why));
        }
    }
    Ok(())
}

/// The section of the part that the layer at `prefix` is in, and its family, where its name does not tell it: by a line
/// of `places.txt`. The key of the whole is empty.
fn place(section: &Section, prefix: &str) -> Option<(&'static str, Option<&'static str>)> {
    let mut lines = include_str!("places.txt").lines().filter(|line| !line.starts_with('#'));
    let place = |line: &'static str| {
        let mut words = line.split_ascii_whitespace();
        let (whole, component, key) = (words.next()?, words.next()?, words.next()?.trim_start_matches('-'));
        let is_part = section.model_type.as_deref() == Some(whole)
            && (key.is_empty() || section.keys.get(key).is_some_and(Value::is_object))
            && prefix.split('.').any(|part| part == component);
        is_part.then(|| (key, words.next()))
    };
    lines.find_map(place)
}

fn model_type(section: &Value) -> Option<String> {
    resolved_model_type(section.as_object()?).map(str::to_string)
}

/// The keys of sections that describe models.
fn children(section: &Value) -> Vec<&str> {
    let keys = section.as_object().into_iter().flatten();
    let models = keys.filter(|(_, value)| value.is_object() && (model_type(value).is_some() || states_heads(value)));
    // Early files of CLIP have each section twice.
    let twice = |key: &&str| key.strip_suffix("_dict").is_some_and(|key| section.get(key).is_some());
    models.map(|(key, _)| key.as_str()).filter(|key| !GROUPS.contains(key) && !twice(key)).collect()
}

/// The text model whose keys stand at the top, beside the sections of other parts (Qwen2-VL): of the name that it has
/// since it has a section of its own.
fn text_of_whole(section: Section) -> Section {
    let text = |whole: &String| {
        [format!("{whole}_text"), format!("{whole}_text_model")].into_iter().find(|name| is_listed(name))
    };
    let model_type = match &section.model_type {
        Some(whole) if !is_listed(whole) => text(whole).or(section.model_type),
        _ => section.model_type,
    };
    Section { model_type, ..section }
}

/// The name of the part that a section describes.
fn name(key: &str) -> &str {
    let name = key.strip_suffix("_config").unwrap_or(key);
    name.strip_suffix("_model").unwrap_or(name)
}

/// The part of a model that a first word means.
fn part_of(name: &str) -> Option<usize> {
    let word = name.split('_').next().unwrap_or_default();
    PARTS.iter().position(|words| words.contains(&word))
}

/// The sections that a component of a prefix names: with the words of the section's name, the longest name of all, or
/// else with a first word that means the same part (`visual` and `vision_config`), the shortest name of all. More than
/// one section is none.
fn named_by<'a>(children: &[&'a str], part: &str) -> Vec<&'a str> {
    // Cross-attention to an encoder is a layer of the decoder.
    if CROSS.contains(&part) {
        return Vec::new();
    }
    let words = |name: &str| name.split('_').count();
    let holds = |key: &&&str| format!("_{part}_").contains(&format!("_{}_", name(key)));
    let named: Vec<&str> = children.iter().filter(holds).copied().collect();
    let longest = named.iter().map(|key| words(name(key))).max();
    if longest.is_some() {
        let named: Vec<&str> = named.into_iter().filter(|key| Some(words(name(key))) == longest).collect();
        // A `text_backbone` is the text's, and the backbone another part.
        let several = named.len() > 1;
        return named.into_iter().filter(|key| !several || name(key) != "backbone").collect();
    }
    let alike = |key: &&&str| part_of(part).is_some() && part_of(name(key)) == part_of(part);
    let alike: Vec<&str> = children.iter().filter(alike).copied().collect();
    let shortest = alike.iter().map(|key| words(name(key))).min();
    alike.into_iter().filter(|key| Some(words(name(key))) == shortest).collect()
}

/// The child of a prefix that names none: the only one, or that of the text model.
fn only_child<'a>(children: &[&'a str], rest: &[&str]) -> Option<&'a str> {
    let is_number = |part: &&&str| part.parse::<u64>().is_ok();
    let before = rest.iter().take_while(|part| !is_number(part));
    match children {
        [only] => Some(only),
        _ if before.clone().count() < rest.len() && before.clone().all(|part| NEUTRAL.contains(part)) => {
            let mut text = children.iter().filter(|key| part_of(name(key)) == Some(0));
            text.next().filter(|_| text.next().is_none()).copied()
        }
        _ => None,
    }
}

/// The family of a section: the one it states, unless that is the whole model's. Older files name no family there, or
/// the whole model's: then it is the name that transformers gives the part now, as `qwen2_vl_vision`. A text that the
/// whole model masks in its own way is of the whole model's family.
fn type_of_child(parent: &Section, key: &str) -> Option<String> {
    let own = model_type(&parent.keys[key]);
    if name(key) == "text" && parent.model_type.as_deref().is_some_and(masks_text) {
        return parent.model_type.clone();
    }
    let whole = match &parent.model_type {
        Some(whole) if own.as_ref().is_none_or(|own| own == whole) => whole,
        _ => return own,
    };
    let part = name(key);
    let names = [format!("{whole}_{part}"), format!("{whole}_{part}_model")];
    let listed = names.iter().find(|name| is_listed(name)).cloned();
    match part {
        "text" => listed.or(Some(whole.clone())),
        _ => listed.or(Some(names[0].clone())),
    }
}

fn ambiguous(children: &[&str], path: &str, prefix: &str) -> Error {
    let children = children.iter().map(|key| format!("`{path}{key}`")).collect::<Vec<_>>().join(", ");
    let expected =
        format!("one that names its section of the configuration, or the section itself as `json`: {children}");
    Error::value("the prefix", format!("`{prefix}`"), expected)
}
