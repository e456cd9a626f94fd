//! Model folders with headers only and any config.json: the reports of `inspect` must be consistent.

use arbitrary::{Result, Unstructured};
use candle_attention::checkpoint::{Checkpoint, ModelConfig};
use serde_json::{Value, json};

use crate::config::config;
use crate::file::{Entry, entries, safetensors};
use crate::folder::Folder;
use crate::json::file_of;
use crate::templates::template;
use crate::{message_of, rarely};

/// The largest size that a header may state; the data is a hole in a sparse file, which Windows would fill.
const MAX_BYTES: usize = if cfg!(windows) { 1 << 20 } else { 1 << 40 };
/// The largest file that is also searched for NaN.
const READ: u64 = 1 << 20;

pub fn run(u: &mut Unstructured) -> Result<()> {
    let folder = Folder::new();
    let template = template(u)?;
    let json = config(u, &template.config)?;
    let json: Option<Value> = serde_json::from_str(&file_of(u, &json)?).ok();
    let mut all = entries(u, template)?;
    // Many copies of the same layers.
    if rarely(u, 32)? {
        let copies = u.int_in_range(1..=20)?;
        let again = |copy: usize| {
            let like = template.entries.iter().cloned();
            like.map(move |entry| Entry { name: format!("copy.{copy}.{}", entry.name), ..entry })
        };
        all.extend((0..copies).flat_map(again));
    }
    let shards = if rarely(u, 8)? { 3 } else { 1 };
    for (i, part) in all.chunks(all.len().div_ceil(shards).max(1)).enumerate() {
        let file = if shards == 1 { "model.safetensors".to_string() } else { format!("{i}.safetensors") };
        if !hole(&folder, &file, part) {
            return Ok(());
        }
    }
    if shards > 1 {
        let of = |i: usize| format!("{}.safetensors", i / all.len().div_ceil(shards));
        let map: Vec<String> =
            (all.iter().enumerate()).map(|(i, entry)| format!("{}:{}", json!(entry.name), json!(of(i)))).collect();
        let index = format!("{{\"weight_map\":{{{}}}}}", map.join(","));
        folder.write("model.safetensors.index.json", index.as_bytes());
    }
    let Ok(checkpoint) = Checkpoint::open(folder.path("")).map_err(message_of) else { return Ok(()) };
    inspect(&checkpoint, json.as_ref());
    Ok(())
}

/// Writes a sparse file with these headers; false if it cannot be written.
fn hole(folder: &Folder, file: &str, entries: &[Entry]) -> bool {
    let mut all = Vec::new();
    let mut offset = 0;
    for entry in entries {
        let end = usize::saturating_add(offset, entry.size().unwrap_or(0));
        if end > MAX_BYTES {
            return false;
        }
        let [from, to] = entry.offsets.unwrap_or([offset, end]);
        let info = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [from, to]});
        all.push(format!("{}:{info}", json!(entry.name)));
        offset = end;
    }
    let header = format!("{{{}}}", all.join(","));
    let bytes = safetensors(&header, &[], header.len() as u64);
    let path = folder.write(file, &bytes);
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("the file just written");
    file.set_len((bytes.len() + offset) as u64).is_ok()
}

fn inspect(checkpoint: &Checkpoint, json: Option<&Value>) {
    let layers = checkpoint.attention_layers(json.map(ModelConfig::new));
    let without = checkpoint.attention_layers(None);
    assert_eq!(layers.len(), without.len());
    let small = checkpoint.path().and_then(|path| std::fs::metadata(path).ok()).is_some_and(|file| file.len() <= READ);
    for (layer, bare) in layers.iter().zip(&without) {
        assert_eq!((&layer.prefix, layer.layout, layer.parameters), (&bare.prefix, bare.layout, bare.parameters));
        assert!(layer.problem.as_ref().is_none_or(|problem| problem.len() > 8));
        assert!(layer.num_attention_heads.is_none_or(|heads| heads > 0));
        assert!(layer.num_attention_heads.is_some() || layer.problem.is_some() || json.is_none());
        serde_json::to_string(layer).expect("a layer as JSON");
        if small && checkpoint.path().and_then(|path| path.extension()).is_none_or(|extension| extension != "json") {
            checkpoint.non_finite(&layer.prefix).err().map(message_of);
        }
    }
    for pair in layers.windows(2) {
        assert_ne!(pair[0].prefix, pair[1].prefix);
    }
}
