//! Headers of safetensors files that lie or are out of proportion, and files that change while they are open.

use std::fs::{File, FileTimes};
use std::path::Path;
use std::time::{Duration, SystemTime};

use candle_attention::checkpoint::{Checkpoint, ModelConfig};
use candle_core::{DType, Device, Tensor};
use serde_json::json;

use crate::common::{Random, numbers, says};

const CPU: Device = Device::Cpu;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn entry(name: &str, dtype: &str, shape: &str, [from, to]: [u64; 2]) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
}

/// What is said about a file of this header and 4 bytes of data: one short line.
#[track_caller]
fn refused(header: &str, parts: &[&str]) {
    let opened = Checkpoint::from_bytes(file(header, &[0; 4])).map(drop);
    assert!(opened.as_ref().unwrap_err().to_string().chars().count() < 1000);
    says(opened, parts);
}

#[test]
fn each_limit_of_a_header_is_named() {
    let ones = format!("[{}1]", "1,".repeat(1_000_000));
    refused(&format!("{{{}}}", entry("a", "F32", &ones, [0, 4])), &["`a`", "more than 32 dimensions"]);
    let most = format!("[{}1]", "1,".repeat(31));
    let opened = Checkpoint::from_bytes(file(&format!("{{{}}}", entry("a", "F32", &most, [0, 4])), &[0; 4])).unwrap();
    assert_eq!(opened.tensor("a", &CPU).unwrap().rank(), 32);

    let name = |length| entry(&"n".repeat(length), "F32", "[1]", [0, 4]);
    assert!(Checkpoint::from_bytes(file(&format!("{{{}}}", name(1024)), &[0; 4])).is_ok());
    refused(&format!("{{{}}}", name(10_000_000)), &["has 10000000 bytes, expected at most 1024"]);

    let metadata = |entries: usize| (0..entries).map(|i| format!(r#""{i}":"""#)).collect::<Vec<_>>().join(",");
    let with =
        |entries| format!(r#"{{"__metadata__":{{{}}},{}}}"#, metadata(entries), entry("a", "F32", "[1]", [0, 4]));
    assert_eq!(Checkpoint::from_bytes(file(&with(65_536), &[0; 4])).unwrap().metadata().len(), 65_536);
    refused(&with(65_537), &["more than 65536 entries of metadata"]);
}

/// Each of them alone is within it.
#[test]
fn headers_of_shards_share_a_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["a", "b"] {
        let header = format!("{{{}}}{}", entry(name, "F32", "[1]", [0, 4]), " ".repeat(51_000_000));
        std::fs::write(path(&format!("{name}.safetensors")), file(&header, &[0; 4])).unwrap();
        Checkpoint::open(path(&format!("{name}.safetensors"))).unwrap();
    }
    let index = json!({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).to_string();
    std::fs::write(path("model.safetensors.index.json"), index).unwrap();
    says(Checkpoint::open(folder.path()), &["b.safetensors", "what the headers of other shards left"]);
}

#[test]
#[ignore = "a header of 60 MB takes some seconds"]
fn a_million_tensors_are_the_most() {
    let all = |count: usize| {
        let entries: Vec<String> = (0..count).map(|i| entry(&format!("{i:x}"), "U8", "[0]", [0, 0])).collect();
        Checkpoint::from_bytes(file(&format!("{{{}}}", entries.join(",")), &[]))
    };
    assert_eq!(all(1 << 20).unwrap().names().count(), 1 << 20);
    says(all((1 << 20) + 1), &["more than 1048576 tensors"]);
}

#[test]
fn long_texts_of_a_header_are_cut_in_errors() {
    let long = "x".repeat(1_000_000);
    refused(&format!("{{{}}}", entry("a", &long, "[1]", [0, 4])), &["`a`", "unknown variant `xxx", "more characters"]);
    let text = format!("\"{long}\"");
    refused(&format!("{{{}}}", entry("a", "F32", &text, [0, 4])), &["`a`", "invalid type"]);
    refused(&format!(r#"{{"__metadata__":"{long}"}}"#), &["invalid type", "more characters"]);
    refused(&format!(r#"{{"{}":3}}"#, "y".repeat(1000)), &["tensor `yyy", "more characters"]);
    refused(&format!("\"{long}\""), &["invalid type", "more characters"]);
}

#[test]
fn malformed_headers_are_errors() {
    let a = entry("a", "F32", "[1]", [0, 4]);
    refused(&format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{a}}}"#), &["__metadata__"]);
    refused(r#"{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, &["duplicate field `dtype`"]);
    refused(r#"{"a":{"dtype":"F32","shape":[1]}}"#, &["missing field `data_offsets`"]);
    refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#, &["tensor `a`"]);
    refused(&format!("{{{a},\"b\":{}{}}}", "[".repeat(1000), "]".repeat(1000)), &["tensor `b`"]);
    // Parts of a tensor that are not known are skipped, however deep.
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let known = format!(r#"{{"a":{{"dtype":"F32","later":{deep},"shape":[1],"data_offsets":[0,4]}}}}"#);
    assert!(Checkpoint::from_bytes(file(&known, &[0; 4])).is_ok());
    // Half a character in a part that is skipped.
    let mut bytes = file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":"~"}}"#, &[0; 4]);
    let at = bytes.iter().position(|byte| *byte == b'~').unwrap();
    bytes[at] = 0xff;
    says(Checkpoint::from_bytes(bytes), &["its header is not UTF-8"]);
    says(Checkpoint::from_bytes(file("{", &[])), &["<bytes>: not a valid safetensors file"]);
    says(Checkpoint::from_bytes(vec![9, 0, 0, 0, 0, 0, 0, 0, b'{']), &["a header of 9 bytes, expected at most 1"]);
    says(Checkpoint::from_bytes(vec![0; 7]), &["it has 7 bytes, expected at least 8"]);
}

/// Every header that this crate takes, the safetensors crate takes too; both agree on headers without zeros.
#[test]
fn no_header_is_taken_that_safetensors_refuses() {
    let mut random = Random::new(15);
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let mut below = |n: u64| (random.uniform() * n as f64) as u64;
        let data = 4 * below(5);
        let count = 1 + below(3);
        let mut at = 0;
        let mut entries = Vec::new();
        for i in 0..count {
            let (dtype, bits) = [("F32", 32), ("U8", 8), ("BF16", 16), ("F4", 4), ("F6_E2M3", 6)][below(5) as usize];
            let shape: Vec<u64> = (0..below(3)).map(|_| below(4)).collect();
            let bytes = shape.iter().product::<u64>() * bits / 8;
            let shifted = if below(8) == 0 { below(3) } else { 0 };
            entries.push(entry(&format!("t{i}"), dtype, &format!("{shape:?}"), [at + shifted, at + bytes]));
            at += bytes;
        }
        if below(2) == 0 {
            entries.reverse();
        }
        let data = if below(4) == 0 { data } else { at };
        let bytes = file(&format!("{{{}}}", entries.join(",")), &vec![0; data as usize]);
        let theirs = safetensors::SafeTensors::deserialize(&bytes).is_ok();
        let ours = Checkpoint::from_bytes(bytes.clone());
        assert_eq!(ours.is_ok(), theirs, "{} {:?}", entries.join(","), ours.err().map(|e| e.to_string()));
        if theirs { taken += 1 } else { refused += 1 }
    }
    assert!(taken > 1000 && refused > 1000, "{taken} {refused}");
}

/// A checkpoint of `count` shards, each with a tensor of its index, and its folder.
fn shards(count: usize) -> (tempfile::TempDir, Checkpoint) {
    let folder = tempfile::tempdir().unwrap();
    let mut map = serde_json::Map::new();
    for i in 0..count {
        save(&folder.path().join(format!("s{i}.safetensors")), i, i as f32);
        map.insert(format!("t{i:03}"), json!(format!("s{i}.safetensors")));
    }
    std::fs::write(folder.path().join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

fn save(path: &Path, index: usize, number: f32) {
    let tensor = Tensor::full(number, (3, 5), &CPU).unwrap();
    candle_core::safetensors::save(&[(format!("t{index:03}"), tensor)].into(), path).unwrap();
}

/// Sets the time of a file to later than now, as if it was written then.
fn later(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() + Duration::from_secs(10))).unwrap();
}

#[test]
fn a_file_that_changes_while_it_is_open_is_an_error() {
    // The first files stay open, the others are opened again for each tensor.
    let (folder, checkpoint) = shards(40);
    for index in [0, 39] {
        let (name, path) = (format!("t{index:03}"), folder.path().join(format!("s{index}.safetensors")));
        let read = || checkpoint.tensor(&name, &CPU);
        assert_eq!(numbers(&read().unwrap()), [index as f64; 15]);
        let bytes = std::fs::read(&path).unwrap();
        let changed = [&format!("s{index}.safetensors")[..], &name, "has changed since it was opened"];
        // Rewritten in place with other numbers.
        let mut other = bytes.clone();
        *other.last_mut().unwrap() ^= 1;
        std::fs::write(&path, other).unwrap();
        later(&path);
        says(read(), &changed);
        says(checkpoint.non_finite(""), &["has changed since it was opened"]);
        says(checkpoint.var_builder(DType::F32, &CPU).get((3, 5), &name), &changed);
        // Truncated inside the tensor, and to nothing.
        for length in [bytes.len() - 1, 0] {
            File::options().write(true).open(&path).unwrap().set_len(length as u64).unwrap();
            says(read(), &changed);
        }
        std::fs::write(&path, &bytes).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_is_replaced_is_read_on_or_an_error() {
    let (folder, checkpoint) = shards(40);
    for index in [0, 39] {
        let new = folder.path().join("new");
        save(&new, index, 7.5);
        std::fs::rename(&new, folder.path().join(format!("s{index}.safetensors"))).unwrap();
    }
    assert_eq!(numbers(&checkpoint.tensor("t000", &CPU).unwrap()), [0.0; 15]);
    says(checkpoint.tensor("t039", &CPU), &["s39.safetensors", "has changed since it was opened"]);
    std::fs::remove_file(folder.path().join("s38.safetensors")).unwrap();
    says(checkpoint.tensor("t038", &CPU), &["s38.safetensors", "No such file"]);
    assert_eq!(numbers(&checkpoint.tensor("t037", &CPU).unwrap()), [37.0; 15]);
}

#[test]
fn shards_are_read_by_many_threads_at_once() {
    let (_folder, checkpoint) = shards(40);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let checkpoint = &checkpoint;
            scope.spawn(move || {
                for i in (0..40).map(|i| (i * 7 + thread) % 40) {
                    assert_eq!(numbers(&checkpoint.tensor(&format!("t{i:03}"), &CPU).unwrap()), [i as f64; 15]);
                }
            });
        }
    });
}

/// A pipe would hang, a device never end.
#[cfg(unix)]
#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let link = |name: &str| {
        let path = folder.path().join(name);
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        path
    };
    says(Checkpoint::open(link("zero.safetensors")), &["zero.safetensors", "not a regular file"]);
    says(Checkpoint::open(link("zero.json")), &["zero.json", "not a regular file"]);
    let pipe = folder.path().join("model.safetensors");
    if std::process::Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()) {
        says(Checkpoint::open(&pipe), &["model.safetensors", "not a regular file"]);
        says(Checkpoint::open(folder.path()), &["model.safetensors", "not a regular file"]);
    }
    std::fs::write(folder.path().join("a.index.json"), r#"{"weight_map":{"a":"zero.safetensors"}}"#).unwrap();
    says(Checkpoint::open(folder.path().join("a.index.json")), &["zero.safetensors", "not a regular file"]);
}

/// A link of the cache that leads nowhere is no absent file.
#[cfg(unix)]
#[test]
fn a_link_to_missing_weights_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("gone", folder.path().join("model.safetensors")).unwrap();
    std::fs::write(folder.path().join("model.safetensors.index.json"), r#"{"weight_map":{}}"#).unwrap();
    says(Checkpoint::open(folder.path()), &["model.safetensors: No such file"]);
}

/// Names of one checkpoint are told apart by their layers, not by how far each is below the others.
#[test]
fn layers_inside_layers_are_listed_up_to_a_limit() {
    let names = ["q_proj", "k_proj", "v_proj", "o_proj"];
    let mut entries = Vec::new();
    for depth in 1..=400 {
        let prefix = vec!["a"; depth].join(".");
        for name in names {
            let from = 4 * entries.len() as u64;
            entries.push(entry(&format!("{prefix}.{name}.weight"), "F32", "[1,1]", [from, from + 4]));
        }
    }
    let data = vec![0; 4 * entries.len()];
    let checkpoint = Checkpoint::from_bytes(file(&format!("{{{}}}", entries.join(",")), &data)).unwrap();
    let layers = checkpoint.attention_layers(None);
    assert_eq!(layers.len(), 400);
    let refused =
        |problem: &Option<String>| problem.as_ref().is_some_and(|why| why.contains("inside more than 16 others"));
    assert!(layers.iter().all(|layer| refused(&layer.problem) == (layer.prefix.split('.').count() > 17)));
    assert_eq!(layers[0].parameters, 1600);
    assert!(layers[0].problem.as_ref().unwrap().contains("not part of the layout"));
}

/// Each layer looks through the configuration.
#[test]
fn large_configurations_of_many_layers_are_refused() {
    let mut entries = Vec::new();
    for (layer, name) in (0..100).flat_map(|layer| ["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| (layer, name))) {
        let from = 4 * entries.len() as u64;
        entries.push(entry(&format!("layers.{layer}.self_attn.{name}.weight"), "F32", "[1,1]", [from, from + 4]));
    }
    let data = vec![0; 4 * entries.len()];
    let checkpoint = Checkpoint::from_bytes(file(&format!("{{{}}}", entries.join(",")), &data)).unwrap();
    let mut json = json!({"model_type": "jamba", "num_attention_heads": 1, "text": "x".repeat(2_600_000)});
    assert!(checkpoint.attention_layers(Some(ModelConfig::new(&json))).iter().all(|layer| layer.problem.is_none()));
    json["text"] = json!("x".repeat(2_700_000));
    let layers = checkpoint.attention_layers(Some(ModelConfig::new(&json)));
    let problem = layers[99].problem.as_ref().unwrap();
    assert!(
        problem.starts_with("100 layers with a configuration of size 27000") && problem.contains("268435456"),
        "{problem}"
    );
}
