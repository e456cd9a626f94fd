//! GGUF files: values against gguf-py, and files that lie (`tests/golden/gguf_files.py`).

use candle_attention::checkpoint::{Checkpoint, ModelAttention};
use candle_core::{DType, Device, Tensor};
use serde_json::json;

use crate::common::{Golden, fixture, numbers, says};

const CPU: Device = Device::Cpu;

const TYPES: [&str; 11] = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"];

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn values_of_every_type_are_those_of_gguf_py_to_the_bit() {
    let (file, golden) =
        (Checkpoint::open(fixture("gguf/types.gguf")).unwrap(), Golden::open("gguf/types.safetensors"));
    for name in TYPES {
        let got = file.tensor(name, &CPU).unwrap();
        assert_eq!(got.dims(), [3, 512], "{name}");
        assert_eq!(bits(&got.to_dtype(DType::F32).unwrap()), bits(&golden.get(name)), "{name}");
        let half = file.at("", DType::BF16, &CPU);
        let half = candle_attention::checkpoint::WeightSource::get(&half, name, &[3, 512]).unwrap();
        assert_eq!(numbers(&half), numbers(&golden.get(name).to_dtype(DType::BF16).unwrap()), "{name}");
    }
    assert!(file.non_finite("").unwrap_err().to_string().contains("IQ4_NL"));
}

#[test]
fn a_type_that_is_not_read_is_an_error_of_its_tensor() {
    let file = Checkpoint::open(fixture("gguf/types.gguf")).unwrap();
    says(file.tensor("iq4_nl", &CPU), &["`iq4_nl`", "GGUF type IQ4_NL", "Q8_0", "Q6_K"]);
    let vb = file.var_builder(DType::F32, &CPU);
    says(vb.get((3, 512), "iq4_nl"), &["`iq4_nl`", "IQ4_NL"]);
}

/// A layer by the configuration that the metadata stands for, the rows of Llama's heads included.
#[test]
fn layers_have_the_names_and_the_configuration_of_hugging_face() {
    let file = Checkpoint::open(fixture("gguf/bert-q8_0.gguf")).unwrap();
    let config = file.config().unwrap().unwrap();
    assert_eq!(config["model_type"], "bert");
    assert_eq!(config["layer_norm_eps"], json!(1e-4));
    let layer = ModelAttention::load(&config, file.at("encoder.layer.1.attention", DType::F32, &CPU)).unwrap();
    assert_eq!(layer.layer.config().num_attention_heads, 4);
    let layers = file.attention_layers(Some(candle_attention::checkpoint::ModelConfig::new(&config)));
    assert_eq!(layers.len(), 2);
    assert!(layers[0].problem.is_none() && layers[0].dtype.contains("Q8_0"), "{:?}", layers[0].problem);
    assert_eq!(file.metadata()["general.architecture"], "bert");
    assert!(Checkpoint::open(fixture("tiny-bert")).unwrap().gguf().is_none());

    let llama = Checkpoint::open(fixture("gguf/llama.gguf")).unwrap();
    let config = llama.config().unwrap().unwrap();
    assert_eq!(config["rope_scaling"]["rope_type"], "longrope");
    assert!(ModelAttention::load(&config, llama.at("layers.0.self_attn", DType::F32, &CPU)).is_ok());
}

#[test]
fn a_folder_with_one_file_is_that_file() {
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str| std::fs::copy(fixture("gguf/bert.gguf"), folder.path().join(name)).unwrap();
    copy("a.gguf");
    assert!(Checkpoint::open(folder.path()).unwrap().contains("embeddings.LayerNorm.weight"));
    copy("b.gguf");
    says(Checkpoint::open(folder.path()), &["a.gguf", "b.gguf", "name one"]);
}

/// A header, by hand.
struct File(Vec<u8>);

impl File {
    fn new(version: u32, tensors: u64, values: u64) -> Self {
        Self([b"GGUF", &version.to_le_bytes()[..], &tensors.to_le_bytes(), &values.to_le_bytes()].concat())
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &[u8]) -> Self {
        self.bytes(&(text.len() as u64).to_le_bytes()).bytes(text)
    }

    fn number(self, number: u32) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn long(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    /// The metadata that every file has.
    fn architecture(self) -> Self {
        self.text(b"general.architecture").number(8).text(b"none")
    }

    fn tensor(self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        let start = self.text(name.as_bytes()).number(shape.len() as u32);
        shape.iter().rev().fold(start, |file, size| file.long(*size)).number(kind).long(offset)
    }

    /// Padding, and `data` zeros.
    fn data(mut self, data: usize) -> Vec<u8> {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + data, 0);
        self.0
    }

    #[track_caller]
    fn refused(self, parts: &[&str]) {
        let opened = Checkpoint::from_bytes(self.data(64)).map(drop);
        assert!(opened.as_ref().unwrap_err().to_string().chars().count() < 1000);
        says(opened, parts);
    }
}

#[test]
fn every_beginning_of_a_file_is_an_error() {
    let file = File::new(3, 2, 2)
        .architecture()
        .text(b"tokens")
        .number(9)
        .number(8)
        .long(2)
        .text(b"a")
        .text(b"bc")
        .tensor("weight", &[2, 32], 8, 0)
        .tensor("bias", &[1, 2], 0, 96)
        .data(104);
    let opened = Checkpoint::from_bytes(file.clone()).unwrap();
    assert_eq!(opened.tensor("weight", &CPU).unwrap().dims(), [2, 32]);
    assert_eq!(opened.gguf().unwrap().texts("tokens").unwrap().unwrap(), ["a", "bc"]);
    for length in 0..file.len() {
        let cut = Checkpoint::from_bytes(file[..length].to_vec());
        assert!(cut.is_err(), "the first {length} bytes of {}", file.len());
    }
    // Each byte changed: an error or a file, but no panic.
    for at in 0..file.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut changed = file.clone();
            changed[at] = value;
            if let Ok(opened) = Checkpoint::from_bytes(changed) {
                opened.names().for_each(|name| drop(opened.tensor(name, &CPU)));
            }
        }
    }
}

#[test]
fn headers_that_lie_are_refused() {
    File::new(1, 0, 1).architecture().refused(&["version 1", "2 or 3"]);
    File::new(4, 0, 1).architecture().refused(&["version 4"]);
    File::new(3 << 24, 0, 1).refused(&["big-endian"]);
    File::new(3, 0, 0).refused(&["general.architecture", "absent"]);
    File::new(3, u64::MAX, 0).refused(&["states 18446744073709551615 tensors"]);
    File::new(3, 1 << 20, 0).refused(&["do not fit"]);
    File::new(3, 0, 1 << 16).refused(&["do not fit"]);
    File::new(3, 0, 1).long(1 << 40).refused(&["bytes of text in a key"]);
    File::new(3, 0, 1).text(b"a").number(8).long(1 << 20).refused(&["do not fit"]);
    File::new(3, 0, 1).text(b"a").number(9).number(8).long(1 << 25).refused(&["values in metadata `a`"]);
    File::new(3, 0, 1).text(b"a").number(13).refused(&["`a`", "unknown type 13"]);
    File::new(3, 0, 1).text(b"a").number(7).bytes(&[2]).refused(&["`a` is 2", "0 or 1"]);
    File::new(3, 0, 1).text(b"a").number(8).text(b"\xff\xfe").refused(&["a is not UTF-8"]);
    File::new(3, 0, 1).text(b"\xff").refused(&["not UTF-8"]);
    File::new(3, 0, 2).architecture().architecture().refused(&["`general.architecture` is listed twice"]);
    let nested = (0..6).fold(File::new(3, 0, 1).text(b"a").number(9), |file, _| file.number(9).long(1));
    nested.refused(&["`a` nests more than 4 arrays"]);
    let aligned = |stated: u32| File::new(3, 0, 2).architecture().text(b"general.alignment").number(4).number(stated);
    aligned(0).refused(&["alignment is 0"]);
    aligned(24).refused(&["alignment is 24", "power of two"]);
    let split = File::new(3, 0, 2).architecture().text(b"split.count").number(2).bytes(&[3, 0]);
    split.refused(&["3 parts", "llama-gguf-split"]);
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let one = || File::new(3, 1, 1).architecture();
    one().tensor("w", &[33], 8, 0).refused(&["`w`", "Q8_0 [33]", "multiple of 32"]);
    one().tensor("w", &[2, 128], 12, 0).refused(&["`w`", "Q4_K [2, 128]", "multiple of 256"]);
    one().tensor("w", &[32], 77, 0).refused(&["`w`", "unknown type 77"]);
    one().tensor("w", &[1 << 40], 8, 0).refused(&["`w`", "ends at"]);
    one().tensor("w", &[1 << 40, 1 << 40], 0, 0).refused(&["`w`", "larger than any memory"]);
    one().tensor("w", &[u64::MAX], 0, 0).refused(&["`w`", "larger than any memory"]);
    one().tensor("w", &[4], 0, 8).refused(&["`w`", "a multiple of 32"]);
    one().tensor("w", &[4], 0, 1 << 50).refused(&["`w`", "ends at"]);
    one().tensor("w", &[16], 0, u64::MAX - 31).refused(&["`w`", "starts at"]);
    one().tensor("w", &[4], 0, u64::MAX - 31).refused(&["`w`", "ends at"]);
    one().tensor("w", &[1, 1, 1, 1, 1], 0, 0).refused(&["5 dimensions"]);
    one().tensor("", &[4], 0, 0).refused(&["empty"]);
    let two = || File::new(3, 2, 1).architecture();
    two().tensor("w", &[4], 0, 0).tensor("w", &[4], 0, 32).refused(&["`w` is listed twice"]);
    two().tensor("v", &[16], 0, 0).tensor("w", &[4], 0, 32).refused(&["`w`", "starts at offset 32"]);
}

#[test]
fn scales_that_are_not_finite_name_the_tensor() {
    let file = File::new(3, 1, 1).architecture().tensor("w", &[2, 64], 8, 0);
    let good = file.data(4 * 34);
    let start = good.len() - 4 * 34;
    for (scale, block) in [([0, 0x7c], 3), ([1, 0x7e], 0)] {
        let mut bad = good.clone();
        bad[start + block * 34..][..2].copy_from_slice(&scale);
        bad[start + block * 34 + 2] = 1;
        let opened = Checkpoint::from_bytes(bad).unwrap();
        says(opened.tensor("w", &CPU), &["`w`", &format!("block {block} of type Q8_0")]);
        assert_eq!(opened.non_finite("").unwrap(), ["w"]);
    }
    // Scales of zero are zeros.
    let zeros = Checkpoint::from_bytes(good).unwrap().tensor("w", &CPU).unwrap();
    assert!(numbers(&zeros).iter().all(|value| *value == 0.0));
}

#[test]
fn a_key_that_nothing_reads_is_refused() {
    let bytes = std::fs::read(fixture("gguf/bert.gguf")).unwrap();
    let rename = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        let mut changed = bytes.clone();
        changed[at..at + to.len()].copy_from_slice(to);
        Checkpoint::from_bytes(changed).unwrap().config()
    };
    says(rename(b"bert.attention.head_count", b"bert.attention.head_clamp"), &["head_clamp", "absent"]);
    says(rename(b"bert.pooling_type", b"bert.softcap_size"), &["bert.softcap_size"]);
    says(
        rename(b"architecture\x08\0\0\0\x04\0\0\0\0\0\0\0bert", b"architecture\x08\0\0\0\x04\0\0\0\0\0\0\0bart"),
        &["bart", "nomic-bert"],
    );
}

/// A file with more metadata: its values follow the two counts at the start, in whole lines of the alignment.
fn with_keys(name: &str, keys: &[(&str, u32, &[u8])]) -> Vec<u8> {
    let file = std::fs::read(fixture(name)).unwrap();
    let more = keys.iter().fold(File(Vec::new()), |more, (key, kind, bytes)| {
        let more = more.text(key.as_bytes()).number(*kind);
        if *kind == 8 { more.text(bytes) } else { more.bytes(bytes) }
    });
    let more = more.text(b"filler").number(8);
    let filler = vec![b' '; (more.0.len() + 8).next_multiple_of(32) - more.0.len() - 8];
    let values = u64::from_le_bytes(file[16..24].try_into().unwrap()) + keys.len() as u64 + 1;
    [&file[..16], &values.to_le_bytes(), &more.text(&filler).0, &file[24..]].concat()
}

#[test]
fn the_scaling_of_rotary_positions_is_read_or_refused() {
    let config = |keys: &[(&str, u32, &[u8])]| {
        let keys: Vec<_> =
            keys.iter().map(|(key, kind, bytes)| (format!("qwen3.rope.scaling.{key}"), *kind, *bytes)).collect();
        let keys: Vec<_> = keys.iter().map(|(key, kind, bytes)| (key.as_str(), *kind, *bytes)).collect();
        Checkpoint::from_bytes(with_keys("gguf/qwen3.gguf", &keys)).unwrap().config()
    };
    let factor: (&str, u32, &[u8]) = ("factor", 6, &4f32.to_le_bytes());
    let scaling = |keys: &[(&str, u32, &[u8])]| config(keys).unwrap().unwrap()["rope_scaling"].clone();
    assert_eq!(scaling(&[]), json!(null));
    assert_eq!(scaling(&[factor]), json!({"rope_type": "linear", "factor": 4.0}));
    assert_eq!(scaling(&[("type", 8, b"none"), factor]), json!(null));
    let length: (&str, u32, &[u8]) = ("original_context_length", 4, &64u32.to_le_bytes());
    let yarn = [("type", 8, &b"yarn"[..]), factor, length];
    let with = |key: &'static str| {
        let mut keys = yarn.to_vec();
        keys.push((key, 6, &[0, 0, 0x40, 0x3f]));
        keys
    };
    assert_eq!(scaling(&with("yarn_attn_factor"))["attention_factor"], json!(0.75));
    assert_eq!(scaling(&with("yarn_beta_slow"))["beta_slow"], json!(0.75));
    for key in ["yarn_ext_factor", "yarn_log_multiplier", "alpha"] {
        says(config(&with(key)), &[&format!("qwen3.rope.scaling.{key}"), "0.75", "absent"]);
    }
    // What only YaRN has.
    says(config(&[factor, ("yarn_attn_factor", 6, &[0, 0, 0x40, 0x3f])]), &["yarn_attn_factor", "absent"]);
}
