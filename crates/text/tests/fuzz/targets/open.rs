//! Arbitrary bytes, inconsistent headers, shards, indexes and GGUF files: opens the file and reads every tensor, or
//! gets an error.

use std::collections::BTreeSet;

use arbitrary::{Result, Unstructured};
use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_core::{DType, Device};
use serde_json::json;

use crate::file::{entries, header, safetensors};
use crate::folder::Folder;
use crate::gguf;
use crate::message_of;
use crate::templates::template;

const MAX_BYTES: usize = 1 << 20;

pub fn run(u: &mut Unstructured) -> Result<()> {
    match u.int_in_range(0..=15)? {
        0 => read(Checkpoint::from_bytes(u.bytes(u.len())?.to_vec()), "<bytes>", None),
        1 => {
            let path = Folder::new().write("model.safetensors.index.json", u.bytes(u.len())?);
            read(Checkpoint::open(path), ".safetensors", None);
        }
        2 => {
            let (file, names) = file(u)?;
            let path = Folder::new().write("model.safetensors", &file);
            read(Checkpoint::open(path), ".safetensors", names);
        }
        3 => {
            let folder = Folder::new();
            let mut map = Vec::new();
            for shard in ["a.safetensors", "b.safetensors"] {
                let (file, names) = file(u)?;
                folder.write(shard, &file);
                let names = names.unwrap_or_default();
                map.extend(names.into_iter().map(|name| (name, shard.to_string())));
            }
            for _ in 0..u.int_in_range(0..=3)? {
                if map.is_empty() {
                    break;
                }
                let at = u.choose_index(map.len())?;
                match u.int_in_range(0..=3)? {
                    0 => drop(map.remove(at)),
                    1 => map[at].1 = u.choose(&["..", "../a.safetensors", "/etc/passwd", "", "none"])?.to_string(),
                    2 => map[at].1 = u.arbitrary::<&str>()?.to_string(),
                    _ => map[at].0 = u.arbitrary::<&str>()?.to_string(),
                }
            }
            let pairs: Vec<String> =
                map.iter().map(|(name, file)| format!("{}:{}", json!(name), json!(file))).collect();
            let index = format!("{{\"metadata\":{{}},\"weight_map\":{{{}}}}}", pairs.join(","));
            let path = folder.write("model.safetensors.index.json", index.as_bytes());
            let unique: BTreeSet<&String> = map.iter().map(|(name, _)| name).collect();
            let names = (unique.len() == map.len()).then(|| unique.into_iter().cloned().collect());
            read(Checkpoint::open(path), ".safetensors", names);
        }
        4 => {
            let opened = Checkpoint::from_bytes(gguf::file(u)?);
            if let Ok(checkpoint) = &opened {
                let message = checkpoint.config().err().map(message_of);
                assert!(message.is_none_or(|message| message.contains("<bytes>")));
            }
            read(opened, "<bytes>", None);
        }
        _ => {
            let (file, names) = file(u)?;
            read(Checkpoint::from_bytes(file), "<bytes>", names);
        }
    }
    Ok(())
}

/// A file, and its tensor names unless one occurs twice.
fn file(u: &mut Unstructured) -> Result<(Vec<u8>, Option<Vec<String>>)> {
    let template = template(u)?;
    let entries = entries(u, template)?;
    let Some((text, mut data)) = header(&entries, MAX_BYTES) else { return Ok((Vec::new(), None)) };
    let length = match u.int_in_range(0..=15)? {
        1 => u.arbitrary()?,
        2 => text.len() as u64 - 1,
        3 => text.len() as u64 + 1,
        _ => text.len() as u64,
    };
    match u.int_in_range(0..=15)? {
        1 => data.truncate(data.len() / 2),
        2 => data.push(0),
        _ => {}
    }
    let names: BTreeSet<&String> = entries.iter().map(|entry| &entry.name).collect();
    let names = (names.len() == entries.len()).then(|| names.into_iter().cloned().collect());
    Ok((safetensors(&text, &data, length), names))
}

/// Reads everything. Errors name `file`. `names` are the expected tensor names, `None` if they are unknown or not
/// unique.
fn read(opened: candle_attention::Result<Checkpoint>, file: &str, names: Option<Vec<String>>) {
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            assert!(message_of(error).contains(file), "an error that does not name the file");
            return;
        }
    };
    let held: Vec<String> = checkpoint.names().map(str::to_string).collect();
    // A quantized module is one tensor.
    if let Some(names) = names.filter(|_| !checkpoint.is_quantized()) {
        assert_eq!(held, names);
    }
    for name in &held {
        match checkpoint.tensor(name, &Device::Cpu) {
            Ok(tensor) => assert!(tensor.elem_count() <= 2 * MAX_BYTES),
            // The fault of a quantized weight may be in another tensor of its module.
            Err(error) => {
                let module = name.strip_suffix("weight").filter(|_| checkpoint.is_quantized()).unwrap_or(name);
                assert!(message_of(error).contains(module) || !is_shown_whole(name));
            }
        }
    }
    let source = checkpoint.at("", DType::F32, &Device::Cpu);
    assert_eq!(source.names().map(|names| names.len()), Some(held.len()));
    checkpoint.metadata();
    for outcome in [checkpoint.to_varmap("", DType::F32, &Device::Cpu).map(drop), checkpoint.non_finite("").map(drop)] {
        outcome.err().map(message_of);
    }
}

/// Whether a message shows a name as it is: without escapes, and not cut.
fn is_shown_whole(name: &str) -> bool {
    name.len() <= 200 && name.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
}
