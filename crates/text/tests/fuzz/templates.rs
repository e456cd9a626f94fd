//! Real files: the published families as the tests keep them, and a small layer in every layout.

use std::path::Path;
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use candle_attention::checkpoint::layouts;
use candle_attention::{AttentionConfig, ProjectionBias};
use candle_core::{DType, Tensor};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::common::{Random, random_layer};
use crate::file::Entry;
use crate::repository;

/// One family: its configuration and the weights of its attention layers.
pub struct Template {
    pub config: Value,
    pub entries: Vec<Entry>,
}

static TEMPLATES: LazyLock<Vec<Template>> = LazyLock::new(|| {
    // A file of files, each a tensor of bytes.
    let bytes = std::fs::read(repository("tests/fixtures/families.safetensors")).expect("fixtures");
    let mut files = SafeTensors::deserialize(&bytes).expect("fixtures").tensors();
    files.sort_by(|(a, _), (b, _)| a.cmp(b));
    // Those of the layouts are last, so that the bytes of the corpus keep their meaning as families are added.
    let mut all: Vec<Template> = files.iter().map(|(_, file)| read(file.data())).collect();
    all.extend(layout_templates());
    all
});

/// The paths in a folder, sorted.
pub fn list(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut paths: Vec<_> = std::fs::read_dir(folder).expect("fixtures").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn read(bytes: &[u8]) -> Template {
    let (_, header) = SafeTensors::read_metadata(bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    let config = serde_json::from_str(metadata.get("timm").unwrap_or(&metadata["config"])).unwrap();
    Template { config, entries: entries_of(bytes) }
}

/// The tensors of a safetensors file, by name, without the golden values of a test.
pub fn entries_of(bytes: &[u8]) -> Vec<Entry> {
    let file = SafeTensors::deserialize(bytes).unwrap();
    let weights = file.tensors().into_iter().filter(|(name, _)| !name.starts_with("golden."));
    let entry = |(name, view): (String, safetensors::tensor::TensorView)| Entry {
        name,
        dtype: format!("{:?}", view.dtype()),
        shape: view.shape().to_vec(),
        data: Some(view.data().to_vec()),
        offsets: None,
    };
    let mut entries: Vec<Entry> = weights.map(entry).collect();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

/// A tensor as an entry of a file, in f32.
pub fn entry(name: String, tensor: &Tensor) -> Entry {
    let numbers: Vec<f32> = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let data = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Entry { name, dtype: "F32".to_string(), shape: tensor.dims().to_vec(), data: Some(data), offsets: None }
}

/// A layer in every layout that can hold it, with biases and without: some layouts no fixture of a family has.
fn layout_templates() -> Vec<Template> {
    let mut random = Random::new(1);
    let mut all = Vec::new();
    for bias in [ProjectionBias::ALL, ProjectionBias::NONE] {
        let config = AttentionConfig::new(8, 2).with_bias(bias);
        let weights = random_layer(&config, 0.5, &mut random).weights().unwrap();
        for layout in layouts() {
            let Ok(tensors) = weights.to_layout(&config, layout) else { continue };
            let tensors = tensors.into_iter();
            all.push(Template {
                config: json!({"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}),
                entries: tensors.map(|(name, tensor)| entry(format!("layers.0.attention.{name}"), &tensor)).collect(),
            });
        }
    }
    all
}

/// The family that the next bytes choose.
pub fn template(u: &mut Unstructured) -> Result<&'static Template> {
    let which: u16 = u.arbitrary()?;
    Ok(&TEMPLATES[usize::from(which) % TEMPLATES.len()])
}
