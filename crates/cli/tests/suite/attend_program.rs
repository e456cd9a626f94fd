//! The command `attend`: golden outputs, the masks of PyTorch and Hugging Face, and what it refuses.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use candle_attention::checkpoint::Checkpoint;
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::TensorView;

use crate::common::{Golden, LAYER, SEED, assert_close, assert_within, fixture};
use crate::programs::{fails, program, succeeds};

/// A golden case as the input and the checkpoint of `attend`, in a folder of their own.
struct Case {
    folder: tempfile::TempDir,
    file: &'static str,
    name: &'static str,
}

impl Case {
    fn new(file: &'static str, name: &'static str, renamed: &[(&str, &str)]) -> Self {
        let golden = Golden::open(file);
        let case = Self { folder: tempfile::tempdir().unwrap(), file, name };
        let names = [("query", "query"), ("key", "key"), ("value", "value"), ("lengths", "lengths")];
        let tensors = names
            .iter()
            .chain(renamed)
            .filter_map(|(from, to)| golden.try_get(&format!("{name}.{from}")).map(|tensor| (to.to_string(), tensor)));
        case.write(&tensors.collect());
        case
    }

    fn write(&self, tensors: &HashMap<String, Tensor>) {
        candle_core::safetensors::save(tensors, self.path("in.safetensors")).unwrap();
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_to("out.safetensors", arguments)
    }

    fn command_to(&self, output: &str, arguments: &[&str]) -> Command {
        let mut command = program("attend");
        command.arg("--model").arg(fixture(self.file)).args(["--prefix", &format!("{}.layer", self.name)]);
        command.arg("--input").arg(self.path("in.safetensors")).arg("--output").arg(self.path(output));
        command.args(arguments);
        command
    }

    fn output(&self, name: &str) -> Option<Tensor> {
        candle_core::safetensors::load(self.path("out.safetensors"), &Device::Cpu).unwrap().remove(name)
    }

    fn want(&self, name: &str) -> Tensor {
        Golden::open(self.file).get(&format!("{}.{name}", self.name))
    }
}

#[test]
fn attend_reproduces_the_golden_outputs() {
    let toy = Case::new("d2l_torch.safetensors", "toy", &[]);
    let said = succeeds(&mut toy.command(&["--heads", "5", "--weights"]));
    assert_eq!(
        said,
        "layout d2l, 5 heads of 20 elements, 5 key-value heads, mask lengths(2 rows): output [2, 4, 100]\n"
    );
    assert_within("toy", &toy.output("output").unwrap(), &toy.want("output"), SEED);
    assert_within("toy weights", &toy.output("weights").unwrap(), &toy.want("weights"), SEED);

    // A length for each query, in u32; without --weights there are none.
    let case = Case::new("d2l_jax.safetensors", "lens2d", &[]);
    let mut tensors = candle_core::safetensors::load(case.path("in.safetensors"), &Device::Cpu).unwrap();
    tensors.insert("lengths".to_string(), tensors["lengths"].to_dtype(DType::U32).unwrap());
    case.write(&tensors);
    succeeds(&mut case.command(&["--heads", "5"]));
    assert_within("lens2d", &case.output("output").unwrap(), &case.want("output"), SEED);
    assert!(case.output("weights").is_none());

    let causal = Case::new("torch_mha.safetensors", "causal", &[]);
    let said = succeeds(&mut causal.command(&["--heads", "4", "--causal", "--plan"]));
    assert!(said.starts_with("backend "), "{said}");
    assert_within("causal", &causal.output("output").unwrap(), &causal.want("output"), SEED);

    let additive = Case::new("torch_mha.safetensors", "additive", &[("additive", "additive")]);
    succeeds(&mut additive.command(&["--heads", "4"]));
    assert_within("additive", &additive.output("output").unwrap(), &additive.want("output"), SEED);

    let bart = Golden::open("layouts.safetensors");
    let folder = tempfile::tempdir().unwrap();
    let path = |file: &str| folder.path().join(file);
    let tensors = [("query", "bart.input"), ("attention_mask", "bart.mask")];
    let tensors = tensors.map(|(to, from)| (to, bart.get(from)));
    candle_core::safetensors::save(&HashMap::from(tensors), path("in.safetensors")).unwrap();
    std::fs::write(
        path("config.json"),
        r#"{"model_type": "bart", "encoder_attention_heads": 5, "decoder_attention_heads": 1}"#,
    )
    .unwrap();
    let mut command = program("attend");
    command.arg("--model").arg(fixture("layouts.safetensors")).args(["--prefix", "bart.encoder.layers.0.self_attn"]);
    command.arg("--config").arg(path("config.json")).arg("--input").arg(path("in.safetensors"));
    succeeds(command.arg("--output").arg(path("out.safetensors")));
    let got = candle_core::safetensors::load(path("out.safetensors"), &Device::Cpu).unwrap();
    assert_close("bart", &got["output"], &bart.get("bart.output"), LAYER);
}

#[test]
fn attend_rejects_wrong_input_and_writes_nothing() {
    let case = Case::new("d2l_torch.safetensors", "toy", &[]);
    fails(&mut case.command(&["--heads", "7"]), "--heads is 7, expected a divisor of 100");
    fails(&mut case.command(&[]), "--heads");
    let mut other_isa = case.command(&["--heads", "5"]);
    fails(other_isa.env("CANDLE_ATTENTION_ISA", "sse9"), "CANDLE_ATTENTION_ISA is sse9, expected ");
    #[cfg(unix)]
    {
        let no_text = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff");
        let mut other_isa = case.command(&["--heads", "5"]);
        fails(other_isa.env("CANDLE_ATTENTION_ISA", no_text), "CANDLE_ATTENTION_ISA is \u{fffd}, expected ");
    }
    fails(&mut case.command(&["--heads", "5", "--config", "config.json"]), "cannot be used with");
    fails(&mut case.command(&["--config", "no.json"]), "no.json: No such file");
    fails(&mut case.command(&["--heads", "5", "--like", "bert"]), "cannot be used with");
    fails(&mut case.command(&["--heads", "5", "--dtype", "i8"]), "int8");
    let good = candle_core::safetensors::load(case.path("in.safetensors"), &Device::Cpu).unwrap();
    let with = |name: &str, tensor: Option<Tensor>| {
        let mut tensors = good.clone();
        match tensor {
            Some(tensor) => drop(tensors.insert(name.to_string(), tensor)),
            None => drop(tensors.remove(name)),
        }
        case.write(&tensors);
        case.command(&["--heads", "5"])
    };
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, &Device::Cpu).unwrap();
    fails(&mut with("mask", Some(zeros(&[2, 6], DType::U8))), "unknown tensor `mask`");
    fails(&mut with("grid", Some(zeros(&[2], DType::U32))), "`grid` is 0 x 0, expected integers from 1");
    fails(&mut with("grid", Some(zeros(&[3, 2], DType::F32))), "`grid` has shape [3, 2], expected [2]");
    let grid = Tensor::new(&[2u32, 3], &Device::Cpu).unwrap();
    fails(&mut with("grid", Some(grid)), "grid = 2 x 3 is not allowed");
    fails(&mut with("query", None), "tensor `query` is missing");
    fails(&mut with("key", None), "tensor `key` is missing");
    fails(&mut with("query", Some(zeros(&[2, 4, 99], DType::F32))), "query has shape [2, 4, 99]");
    fails(&mut with("query", Some(zeros(&[2, 4, 100], DType::U8))), "`query` has dtype u8");
    fails(&mut with("lengths", Some(zeros(&[3], DType::I64))), "the number of rows in lengths is 3");
    fails(&mut with("attention_mask", Some(zeros(&[2, 1, 6], DType::U8))), "expected 2 dimensions (b, s_kv)");
    fails(&mut with("additive", Some(zeros(&[4, 6], DType::F32))), "`additive`: additive mask has shape [4, 6]");
    // The value may be left out: it is the key.
    succeeds(&mut with("value", None));
    std::fs::remove_file(case.path("out.safetensors")).unwrap();
    case.write(&good);
    fails(
        &mut case.command_to("no/out.safetensors", &["--heads", "5"]),
        "no/out.safetensors: its folder does not exist",
    );
    let left: Vec<_> = std::fs::read_dir(case.folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["in.safetensors"]);
}

impl Case {
    /// Writes the input file with `mask` as the only mask.
    fn write_with(&self, name: &str, dtype: safetensors::Dtype, shape: &[usize], mask: &[u8]) {
        let golden = Golden::open(self.file);
        let given = |input: &str| golden.get(&format!("{}.{input}", self.name)).to_dtype(DType::F32).unwrap();
        let inputs = ["query", "key", "value"].map(|input| {
            let tensor = given(input);
            let numbers = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            (input, tensor.dims().to_vec(), bytes)
        });
        let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
        let mut views: Vec<(&str, TensorView)> =
            inputs.iter().map(|(input, shape, bytes)| (*input, view(safetensors::Dtype::F32, shape, bytes))).collect();
        views.push((name, view(dtype, shape, mask)));
        std::fs::write(self.path("in.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

fn f32s(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Each form of a mask that hides the keys after the lengths gives the golden output.
#[test]
fn attend_reads_the_masks_of_torch_and_of_transformers() {
    use safetensors::Dtype::{BOOL, F32, I32, I64};
    let case = Case::new("d2l_torch.safetensors", "toy", &[]);
    let lengths = case.want("lengths").to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
    let (b, s_q, s_kv) = (2, 4, case.want("key").dims()[1]);
    let keep: Vec<bool> = lengths.iter().flat_map(|length| (0..s_kv).map(move |j| (j as f64) < *length)).collect();
    let per_query: Vec<bool> = keep.chunks(s_kv).flat_map(|row| row.repeat(s_q)).collect();
    let bytes = |mask: &[bool]| mask.iter().map(|&keep| u8::from(keep)).collect::<Vec<u8>>();
    let added = |mask: &[bool]| f32s(mask.iter().map(|&keep| if keep { 0.0 } else { f32::NEG_INFINITY }));
    let hidden: Vec<bool> = keep.iter().map(|keep| !keep).collect();
    let ints: Vec<u8> = keep.iter().flat_map(|&keep| i64::from(keep).to_le_bytes()).collect();
    let short_ints: Vec<u8> = keep.iter().flat_map(|&keep| i32::from(keep).to_le_bytes()).collect();
    let floats = f32s(keep.iter().map(|&keep| f32::from(u8::from(keep))));
    for (name, dtype, shape, mask) in [
        ("attention_mask", BOOL, vec![b, s_kv], bytes(&keep)),
        ("attention_mask", I64, vec![b, s_kv], ints),
        ("attention_mask", I32, vec![b, s_kv], short_ints),
        ("attention_mask", F32, vec![b, s_kv], floats),
        ("attn_mask", BOOL, vec![b, s_q, s_kv], bytes(&per_query)),
        ("attn_mask", BOOL, vec![b, 1, 1, s_kv], bytes(&keep)),
        ("attn_mask", F32, vec![b, 1, s_q, s_kv], added(&per_query)),
        ("key_padding_mask", BOOL, vec![b, s_kv], bytes(&hidden)),
        ("key_padding_mask", F32, vec![b, s_kv], added(&keep)),
    ] {
        case.write_with(name, dtype, &shape, &mask);
        succeeds(&mut case.command(&["--heads", "5"]));
        let what = format!("{name} {dtype:?} {shape:?}");
        assert_within(&what, &case.output("output").unwrap(), &case.want("output"), SEED);
    }
    // One pattern for all sequences: of the first query alone, the first key alone.
    let pattern: Vec<bool> = (0..s_q * s_kv).map(|i| i == 0 || i >= s_kv).collect();
    case.write_with("attn_mask", BOOL, &[s_q, s_kv], &bytes(&pattern));
    succeeds(&mut case.command(&["--heads", "5", "--weights"]));
    let weights = case.output("weights").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(weights[..s_kv].iter().filter(|weight| **weight > 0.0).count(), 1);

    let half = f32s(keep.iter().map(|&keep| if keep { 1.0 } else { 0.5 }));
    case.write_with("attention_mask", F32, &[b, s_kv], &half);
    let first = keep.iter().position(|keep| !keep).unwrap();
    let said = format!("in.safetensors: `attention_mask` element {first} is 0.5, expected 0 or 1");
    fails(&mut case.command(&["--heads", "5"]), &said);
    case.write_with("attn_mask", BOOL, &[b * s_kv], &bytes(&keep));
    fails(&mut case.command(&["--heads", "5"]), "`attn_mask` has shape [12], expected (s_q, s_kv)");
    case.write_with("key_padding_mask", BOOL, &[1, b * s_kv], &bytes(&keep));
    fails(&mut case.command(&["--heads", "5"]), "key");
}

/// Neither files that the command reads, nor files that others wrote, nor devices.
#[cfg(unix)]
#[test]
fn attend_destroys_nothing() {
    use crate::programs::{fails_on_a_full_disk, reader_leaves};
    let case = Case::new("d2l_torch.safetensors", "toy", &[]);
    let before = std::fs::read(case.path("in.safetensors")).unwrap();
    fails(&mut case.command_to("in.safetensors", &["--heads", "5"]), "in.safetensors: exists and is not");
    std::os::unix::fs::symlink("in.safetensors", case.path("link.safetensors")).unwrap();
    fails(&mut case.command_to("link.safetensors", &["--heads", "5"]), "link.safetensors: exists and is not");
    assert_eq!(std::fs::read(case.path("in.safetensors")).unwrap(), before);

    // A checkpoint that is not read is no output of this command either.
    std::fs::copy(fixture("half.safetensors"), case.path("model.safetensors")).unwrap();
    fails(&mut case.command_to("model.safetensors", &["--heads", "5"]), "model.safetensors: exists and is not");
    std::fs::write(case.path("notes.txt"), "notes").unwrap();
    fails(&mut case.command_to("notes.txt", &["--heads", "5"]), "notes.txt: exists and is not");
    fails(&mut case.command_to(".", &["--heads", "5"]), "is a folder");
    succeeds(&mut case.command_to("notes.txt", &["--heads", "5", "--force"]));
    assert!(Checkpoint::open(case.path("notes.txt")).unwrap().contains("output"));

    // A link is followed and stays; an earlier output is replaced.
    std::os::unix::fs::symlink("out.safetensors", case.path("to.safetensors")).unwrap();
    for _ in 0..2 {
        succeeds(&mut case.command_to("to.safetensors", &["--heads", "5"]));
    }
    assert!(case.path("to.safetensors").symlink_metadata().unwrap().is_symlink());
    assert_within("output", &case.output("output").unwrap(), &case.want("output"), SEED);

    // The file is written although the reader of what is printed has left.
    std::fs::remove_file(case.path("out.safetensors")).unwrap();
    reader_leaves(&mut case.command(&["--heads", "5", "--plan"]));
    assert!(case.path("out.safetensors").exists());
    fails_on_a_full_disk(&mut case.command(&["--heads", "5"]));
    succeeds(&mut case.command_to("/dev/null", &["--heads", "5"]));
    fails(&mut case.command_to("/dev/full", &["--heads", "5"]), "/dev/full: No space left");
}

/// The command of examples/README.md, on the embedded model, against transformers.
#[test]
fn attend_runs_on_the_input_of_its_example() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.safetensors");
    let mut command = program("attend");
    command.arg("--model").arg(fixture("../../weights")).args(["--prefix", "encoder.layer.0.attention", "--weights"]);
    succeeds(command.arg("--input").arg(fixture("attend/in.safetensors")).arg("--output").arg(&out));
    let [ours, want] = [out, fixture("attend/want.safetensors")].map(|path| Checkpoint::open(path).unwrap());
    for name in ["output", "weights"] {
        let [ours, want] = [&ours, &want].map(|file| file.tensor(name, &Device::Cpu).unwrap());
        assert_within(name, &ours, &want, SEED);
    }
}

#[test]
fn attend_finds_the_configuration_beside_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let query = Tensor::ones((1, 5, 24), DType::F32, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&HashMap::from([("query", query)]), path("in.safetensors")).unwrap();
    let attend_at = |prefix: &str, checkpoint: PathBuf| {
        let mut command = program("attend");
        command.args(["--prefix", prefix]).arg("--model").arg(checkpoint);
        command.arg("--input").arg(path("in.safetensors")).arg("--output").arg(path("out.safetensors"));
        command
    };
    let attend = |checkpoint: PathBuf| attend_at("encoder.layer.0.attention", checkpoint);
    for checkpoint in [fixture("tiny-bert"), fixture("tiny-bert/model.safetensors")] {
        assert!(succeeds(&mut attend(checkpoint)).contains("layout bert, 4 heads of 6"));
    }
    // A prefix of no layer is not the fault of config.json.
    for beside in [&["--heads", "4"][..], &[]] {
        let layers = "model.safetensors: tensor `encoder.layer.9.attention` is missing: no tensor is below this prefix; \
            `encoder.layer` has `0`, `1`; the attention layers are `encoder.layer.0.attention`, `encoder.layer.1.attention`";
        fails(attend_at("encoder.layer.9.attention", fixture("tiny-bert")).args(beside), layers);
    }
    // A GGUF file holds its configuration.
    let query = Tensor::ones((1, 5, 32), DType::F32, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&HashMap::from([("query", query)]), path("in.safetensors")).unwrap();
    assert!(succeeds(&mut attend(fixture("gguf/bert.gguf"))).contains("layout bert, 4 heads of 8"));
    // An output that is not finite is written, with a word about it.
    let nan = Tensor::full(f32::NAN, (1, 5, 24), &Device::Cpu).unwrap();
    candle_core::safetensors::save(&HashMap::from([("query", nan)]), path("in.safetensors")).unwrap();
    let said = attend(fixture("tiny-bert")).output().unwrap().stderr;
    let want = "note: the output holds NaN or infinities, the weights of the layer are finite\n";
    assert_eq!(String::from_utf8(said).unwrap(), want);
    // Damaged weights are an error, and nothing is written.
    std::fs::remove_file(path("out.safetensors")).unwrap();
    std::fs::create_dir(path("damaged")).unwrap();
    std::fs::copy(fixture("tiny-bert/config.json"), path("damaged/config.json")).unwrap();
    let mut tensors = candle_core::safetensors::load(fixture("tiny-bert/model.safetensors"), &Device::Cpu).unwrap();
    let name = "encoder.layer.0.attention.self.value.bias";
    tensors.insert(name.to_string(), Tensor::full(f32::NAN, 24, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, path("damaged/model.safetensors")).unwrap();
    fails(&mut attend(path("damaged")), &format!("model.safetensors: NaN or an infinity in `{name}`"));
    assert!(!path("out.safetensors").exists());
    fails(&mut attend(PathBuf::from("/no/such/folder")), "/no/such/folder: No such file");
    fails(&mut attend(PathBuf::from("./nope")), "./nope: No such file");
}
