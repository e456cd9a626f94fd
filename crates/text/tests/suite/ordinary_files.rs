//! Models as trainers, converters and older libraries write them: each gives the numbers of the library that owns it,
//! or one error that names what is not read (`tests/golden/ordinary_files.py`).

use std::collections::BTreeMap;
use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::pruning::PrunedHeads;
use candle_attention::{AttentionMask, Result};
use candle_attention_text::{
    CrossEncoder, EncodeOptions, MaskedLm, PruneOptions, SentenceEncoder, SparseEncoder, TextModelConfig, int8_weights,
    write_int8, write_pruned, write_pruned_with,
};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::programs::copy_folder;
use crate::common::{fixture, says};

const CPU: Device = Device::Cpu;

/// The largest difference from the owning library: two layers, each to 1e-5, and a head.
const TOLERANCE: f32 = 3e-5;

/// A case of the fixture.
struct Case(Value);

impl Case {
    fn all() -> Vec<Self> {
        let text = std::fs::read_to_string(fixture("ordinary_files.json")).unwrap();
        let Value::Object(mut file) = serde_json::from_str(&text).unwrap() else { panic!("no object") };
        let (texts, Value::Array(cases)) = (file.remove("texts").unwrap(), file.remove("cases").unwrap()) else {
            panic!("no list")
        };
        let with_texts = |mut case: Value| {
            let keys = case.as_object_mut().unwrap();
            keys.entry("texts").or_insert(texts.clone());
            Self(case)
        };
        cases.into_iter().map(with_texts).collect()
    }

    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap()
    }

    fn texts(&self, key: &str) -> Vec<&str> {
        self.0[key].as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect()
    }

    fn want(&self) -> Vec<Vec<f32>> {
        serde_json::from_value(self.0["want"].clone()).unwrap()
    }

    /// The edited copy of the base.
    fn folder(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture(self.text("base")), folder.path());
        let of = |key: &str| self.0["edits"][key].as_object().cloned().unwrap_or_default();
        for (file, content) in of("write") {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            match content {
                Value::Null => drop(std::fs::remove_file(path)),
                content => std::fs::write(path, content.to_string()).unwrap(),
            }
        }
        for (file, keys) in of("set") {
            let path = folder.path().join(file);
            let stated = std::fs::read_to_string(&path).unwrap_or("{}".to_string());
            let Value::Object(mut stated) = serde_json::from_str(&stated).unwrap() else { panic!("no object") };
            stated.extend(keys.as_object().unwrap().clone());
            stated.retain(|_, value| !value.is_null());
            // As Python writes them.
            let text = Value::Object(stated).to_string();
            let text = ["-Infinity", "Infinity", "NaN"]
                .iter()
                .fold(text, |text, number| text.replace(&format!("\"~{number}\""), number));
            std::fs::write(path, text).unwrap();
        }
        self.edit_tensors(folder.path());
        folder
    }

    fn edit_tensors(&self, folder: &Path) {
        let edits = &self.0["edits"];
        let path = folder.join("model.safetensors");
        let checkpoint = Checkpoint::open(&path).unwrap();
        let names: Vec<String> = checkpoint.names().map(str::to_string).collect();
        let read = |name: &str| checkpoint.tensor(name, &CPU).unwrap();
        let mut tensors: BTreeMap<String, Tensor> = names.iter().map(|name| (name.clone(), read(name))).collect();
        for (new, made) in edits["reverse"].as_object().into_iter().flatten() {
            let old = &tensors[made[0].as_str().unwrap()];
            let tensor = (old.flip(&[0]).unwrap() * made[1].as_f64().unwrap()).unwrap();
            tensors.insert(new.clone(), tensor);
        }
        for name in edits["drop"].as_array().into_iter().flatten() {
            tensors.remove(name.as_str().unwrap()).unwrap();
        }
        let prefix = edits["prefix"].as_str().unwrap_or_default();
        let [old, new] = [0, 1].map(|i| edits["within"][i].as_str().unwrap_or_default());
        let rename = |name: String| format!("{prefix}{}", name.replacen(old, new, 1));
        let tensors: BTreeMap<String, Tensor> = tensors.into_iter().map(|(name, t)| (rename(name), t)).collect();
        let tensors = std::collections::HashMap::from_iter(tensors);
        drop(checkpoint);
        candle_core::safetensors::save(&tensors, path).unwrap();
    }

    /// What this crate makes of the model.
    fn run(&self, folder: &Path) -> Result<Vec<Vec<f32>>> {
        let (texts, options) = (self.texts("texts"), EncodeOptions::default());
        match self.text("run") {
            "logits" => logits(folder, &fixture(self.text("base"))),
            "pairs" => {
                let pairs: Vec<(&str, &str)> = texts[1..].iter().map(|document| (texts[0], *document)).collect();
                let scores = CrossEncoder::from_folder(folder, DType::F32, &CPU)?.scores(&pairs, &options)?;
                Ok(scores.into_iter().map(|score| vec![score]).collect())
            }
            "sparse" => {
                let encoder = SparseEncoder::from_folder(folder, DType::F32, &CPU)?;
                let sparse = encoder.encode(&texts, &options)?;
                let size = self.want().first().map_or(0, Vec::len);
                let dense = sparse.iter().map(|vector| {
                    let mut dense = vec![0.0; size];
                    vector.indices.iter().zip(&vector.values).for_each(|(at, x)| dense[*at as usize] = *x);
                    dense
                });
                Ok(dense.collect())
            }
            run => {
                let encoder = SentenceEncoder::from_folder(folder, DType::F32, &CPU)?;
                let embeddings = match run {
                    "query" => encoder.encode_query(&texts, &options)?,
                    "document" => encoder.encode_document(&texts, &options)?,
                    _ => encoder.encode(&texts, &options)?,
                };
                Ok(embeddings.to_vec2()?)
            }
        }
    }
}

/// The logits of the first row of ids of a base.
fn logits(folder: &Path, base: &Path) -> Result<Vec<Vec<f32>>> {
    let config = TextModelConfig::from_file(folder.join("config.json"))?;
    let model = MaskedLm::load(&config, Checkpoint::open(folder)?.at("", DType::F32, &CPU))?;
    let ids = Checkpoint::open(base.join("golden.safetensors"))?.tensor("ids", &CPU)?.to_dtype(DType::U32)?;
    Ok(model.forward(&ids.narrow(0, 0, 1)?, None, &AttentionMask::full())?.squeeze(0)?.to_vec2()?)
}

fn difference(got: &[Vec<f32>], want: &[Vec<f32>]) -> f32 {
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), want.iter().map(Vec::len).collect::<Vec<_>>());
    let pairs = got.iter().flatten().zip(want.iter().flatten());
    pairs.map(|(got, want)| (got - want).abs()).fold(0.0, |most, x| if x <= most { most } else { x })
}

#[test]
fn each_gives_the_numbers_of_its_library_or_an_error() {
    let mut failed = Vec::new();
    for case in Case::all() {
        let folder = case.folder();
        let (name, result) = (case.text("name"), case.run(folder.path()));
        match (result, case.0.get("error").is_some()) {
            (result, true) => says(result.map_err(|e| format!("{name}: {e}")), &case.texts("error")),
            (Ok(got), false) => match difference(&got, &case.want()) {
                found if found <= TOLERANCE => {}
                found => failed.push(format!("{name}: differs by {found}")),
            },
            (Err(error), false) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// A quantized copy rounds, and reads the same head; a pruned one has the answers of the model with the heads masked.
#[test]
fn copies_of_a_model_keep_its_own_decoder() {
    let has_logits = |case: &&Case| case.text("run") == "logits" && case.0.get("want").is_some();
    for case in Case::all().iter().filter(has_logits) {
        let (folder, target) = (case.folder(), tempfile::tempdir().unwrap());
        let (name, base, folder) = (case.text("name"), fixture(case.text("base")), folder.path());
        let [int8, pruned, masked] = ["int8", "pruned", "masked"].map(|name| target.path().join(name));
        let close = |what: &str, copy: &Path, want: &[Vec<f32>], most: f32| {
            let found = difference(&logits(copy, &base).unwrap(), want);
            assert!(found <= most, "{name}, {what}: differs by {found}");
        };
        match int8_weights(folder) {
            Ok(_) => {
                write_int8(folder, &int8, |_| true).unwrap();
                close("in int8", &int8, &case.want(), 0.15);
            }
            Err(error) => assert!(name.contains("words under"), "{name}: {error}"),
        }
        if name.starts_with("albert") {
            continue;
        }
        let heads: PrunedHeads = serde_json::from_value(json!({"0": [1]})).unwrap();
        if name.starts_with("deberta") {
            says(write_pruned(folder, &pruned, &heads), &["layer.0", "positions have no weights in its layers"]);
            continue;
        }
        write_pruned(folder, &pruned, &heads).unwrap();
        write_pruned_with(folder, &masked, &heads, &PruneOptions::default().with_masked(true)).unwrap();
        close("pruned", &pruned, &logits(&masked, &base).unwrap(), TOLERANCE);
        assert!(difference(&logits(&pruned, &base).unwrap(), &case.want()) > 1e-4, "{name}: nothing was pruned");
    }
}

/// What a text was cut at is said with the number that cut it.
#[test]
fn lengths_of_queries_and_documents_are_known() {
    let cases = Case::all();
    let case = cases.iter().find(|case| case.text("name") == "settings: lengths, query").unwrap();
    let encoder = SentenceEncoder::from_folder(case.folder().path(), DType::F32, &CPU).unwrap();
    let plain = EncodeOptions::default();
    let [query, document] = [encoder.query_options(plain), encoder.document_options(plain)];
    let lengths = [plain, query, document, query.with_max_length(5)].map(|o| encoder.max_seq_length_for(&o));
    assert_eq!(lengths, [12, 6, 9, 5]);
    let tokens = |options| encoder.token_ids(&case.texts("texts")[..1], options).unwrap()[0].len();
    assert_eq!([&plain, &query, &document].map(tokens), [12, 6, 9]);
}
