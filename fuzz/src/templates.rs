//! The published families, as the tests keep them.

use std::path::Path;
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::Entry;

/// One family: its configuration and the weights of its attention layers.
pub struct Template {
    pub config: Value,
    pub entries: Vec<Entry>,
}

static TEMPLATES: LazyLock<Vec<Template>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/families");
    let mut paths: Vec<_> = std::fs::read_dir(folder).expect("fixtures").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
});

fn read(path: &Path) -> Template {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().as_ref().unwrap();
    let config = serde_json::from_str(metadata.get("timm").unwrap_or(&metadata["config"])).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
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
    Template { config, entries }
}

/// The family that the next byte chooses.
pub fn template(u: &mut Unstructured) -> Result<&'static Template> {
    let which: u8 = u.arbitrary()?;
    Ok(&TEMPLATES[which as usize % TEMPLATES.len()])
}
