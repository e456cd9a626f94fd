//! Arbitrary bytes, inconsistent headers, shards and indexes: opens the file and reads every tensor, or gets an error.
#![no_main]

use std::collections::BTreeSet;

use arbitrary::{Result, Unstructured};
use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_attention_fuzz::{Folder, entries, header, message_of, safetensors, template};
use candle_core::{DType, Device};
use libfuzzer_sys::fuzz_target;
use serde_json::json;

const MAX_BYTES: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let _ = run(bytes);
});

fn run(bytes: &[u8]) -> Result<()> {
    let mut u = Unstructured::new(bytes);
    let folder = Folder::new();
    match u.int_in_range(0..=2)? {
        0 => {
            let extension = if u.arbitrary()? { "model.safetensors" } else { "model.safetensors.index.json" };
            let path = folder.write(extension, u.take_rest());
            read(Checkpoint::open(path), None);
        }
        1 => {
            let (file, names) = file(&mut u)?;
            let path = folder.write("model.safetensors", &file);
            read(Checkpoint::open(path), names);
        }
        _ => {
            let mut map = Vec::new();
            for shard in ["a.safetensors", "b.safetensors"] {
                let (file, names) = file(&mut u)?;
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
            read(Checkpoint::open(path), names);
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

/// Reads everything. `names` are the expected tensor names, `None` if they are unknown or not unique.
fn read(opened: candle_attention::Result<Checkpoint>, names: Option<Vec<String>>) {
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint,
        Err(error) => {
            assert!(message_of(error).contains(".safetensors"), "an error that does not name the file");
            return;
        }
    };
    let held: Vec<String> = checkpoint.names().map(str::to_string).collect();
    if let Some(names) = names {
        assert_eq!(held, names);
    }
    for name in &held {
        match checkpoint.tensor(name, &Device::Cpu) {
            Ok(tensor) => assert!(tensor.elem_count() <= 2 * MAX_BYTES),
            Err(error) => assert!(message_of(error).contains(name.as_str())),
        }
    }
    let source = checkpoint.at("", DType::F32, &Device::Cpu);
    assert_eq!(source.names().map(|names| names.len()), Some(held.len()));
    checkpoint.metadata();
    for outcome in [checkpoint.to_varmap("", DType::F32, &Device::Cpu).map(drop), checkpoint.non_finite("").map(drop)] {
        outcome.err().map(message_of);
    }
}
