//! Gives tensors the names of Hugging Face.

use std::collections::BTreeMap;
use std::str::SplitAsciiWhitespace;

use crate::checkpoint::gguf::blocks::Change;
use crate::checkpoint::gguf::tables::{ARCHITECTURES, Architecture, Files, UNNAMED};
use crate::checkpoint::gguf::value::{GgufMetadata, absent};
use crate::checkpoint::header::Entry;
use crate::error::{Error, Result, cut};

/// The row of a file, whose tensors have llama.cpp's names; `None` if there is none.
pub(super) fn architecture_of(
    metadata: &GgufMetadata,
    holds: impl Fn(&str) -> bool,
) -> Result<Option<&'static Architecture>> {
    let name = metadata.architecture()?;
    let fits = |row: &&Architecture| {
        let files = match row.files {
            Files::All => true,
            Files::With(tensor) => holds(tensor),
            Files::Without(tensor) => !holds(tensor),
        };
        row.name == name && files
    };
    Ok(ARCHITECTURES.iter().find(fits))
}

/// The tensors with the names of Hugging Face, and the first whose name the architecture does not list. Such a
/// name stays as it is, and so do all of an architecture that is not in the table.
pub(super) fn rename(
    tensors: BTreeMap<String, Entry>,
    metadata: &GgufMetadata,
) -> Result<(BTreeMap<String, Entry>, Option<String>)> {
    let Some(row) = architecture_of(metadata, |name| tensors.contains_key(name))? else { return Ok((tensors, None)) };
    let key = format!("{}.block_count", row.name);
    let blocks = metadata.count(&key)?.ok_or_else(|| absent(&key))?;
    let (mut renamed, mut unlisted) = (BTreeMap::new(), None);
    for (name, mut entry) in tensors {
        let new = match new_name(row, &name) {
            None => {
                unlisted = unlisted.or_else(|| Some(name.clone()).filter(|name| !UNNAMED.contains(&name.as_str())));
                name.clone()
            }
            Some((new, block, changed)) => {
                if block.is_some_and(|block| block >= blocks) {
                    let expected = format!("one of {blocks} blocks, as `{key}` states");
                    return Err(Error::tensor(name, "is of another block", expected));
                }
                if let Some(stored) = &mut entry.gguf {
                    stored.change = change(row, changed, metadata, &name, &stored.shape)?;
                }
                new
            }
        };
        if renamed.insert(new.clone(), entry).is_some() {
            let what = format!("the name of `{}` at Hugging Face", cut(&name));
            return Err(Error::value(what, format!("`{}`", cut(&new)), "one that no other tensor has"));
        }
    }
    Ok((renamed, unlisted))
}

/// The lines of a section of `tensors.txt`, in words.
fn section(name: &str) -> impl Iterator<Item = SplitAsciiWhitespace<'static>> {
    let start = format!("[{name}]");
    let lines = include_str!("tensors.txt").lines().skip_while(move |line| *line != start).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.starts_with('#'));
    lines.map(str::split_ascii_whitespace)
}

/// The name at Hugging Face of a tensor, its block, and what the converter did to it.
fn new_name(row: &Architecture, name: &str) -> Option<(String, Option<usize>, &'static str)> {
    let (stem, end) = name.rsplit_once('.').filter(|(_, end)| ["weight", "bias"].contains(end))?;
    let block = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let block = block.and_then(|(number, rest)| Some((number, number.parse::<usize>().ok()?, rest)));
    let (theirs, number) = match block {
        Some((number, _, rest)) => (format!("blk.{{}}.{rest}"), number),
        None => (stem.to_string(), ""),
    };
    let mut lines = row.tensors.iter().flat_map(|name| section(name));
    let mut words = lines.find_map(|mut words| (words.next()? == theirs).then_some(words))?;
    let (ours, changed) = (words.next()?, words.next().unwrap_or_default());
    Some((format!("{}.{end}", ours.replace("{}", number)), block.map(|(_, block, _)| block), changed))
}

/// The change of a tensor of this shape that has to be undone.
fn change(
    row: &Architecture,
    changed: &str,
    metadata: &GgufMetadata,
    name: &str,
    shape: &[usize],
) -> Result<Option<Change>> {
    let key = |key: &str| format!("{}.{key}", row.name);
    let heads = || {
        let heads = metadata.count(&key("attention.head_count"))?;
        heads.ok_or_else(|| absent(&key("attention.head_count")))
    };
    let heads = match changed {
        "+1" => return Ok(Some(Change::PlusOne)),
        "query-rows" => heads()?,
        "key-rows" => metadata.count(&key("attention.head_count_kv"))?.map_or_else(heads, Ok)?,
        "" => return Ok(None),
        other => unreachable!("mark `{other}` in tensors.txt"),
    };
    match shape.first() {
        Some(rows) if heads > 0 && *rows > 0 && rows.is_multiple_of(heads.saturating_mul(2)) => {
            Ok(Some(Change::HeadRows(heads)))
        }
        _ => {
            let expected = format!("rows of {heads} heads of an even size");
            Err(Error::tensor(name, format!("has shape {shape:?}"), expected))
        }
    }
}
