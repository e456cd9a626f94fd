//! The command `encode`.

use crate::common::{Golden, LAYER, fixture};
use crate::programs::{fails, program, succeeds};

#[test]
fn encode_prints_embeddings_in_input_order() {
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap();
    let want = Golden::open("tiny_bert.safetensors").get("mean_norm").to_vec2::<f32>().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts.txt");
    std::fs::write(&file, texts.join("\n")).unwrap();
    let tiny = || {
        let mut command = program("encode");
        command.arg("--model").arg(fixture("tiny-bert"));
        command
    };
    let by_arguments = succeeds(tiny().args(["--json", "--batch-size", "3", "--"]).args(&texts));
    let by_file = succeeds(tiny().args(["--json", "--file"]).arg(&file));
    let all: Vec<(&String, &Vec<f32>)> = texts.iter().zip(&want).collect();
    // Blank lines of a file are no texts.
    let not_blank = all.iter().copied().filter(|(text, _)| !text.trim().is_empty()).collect();
    for (said, wanted) in [(by_arguments, all), (by_file, not_blank)] {
        let lines: Vec<serde_json::Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), wanted.len());
        for (line, (text, want)) in lines.iter().zip(wanted) {
            assert_eq!(line["text"], **text);
            let embedding = line["embedding"].as_array().unwrap();
            assert_eq!(embedding.len(), want.len());
            for (got, want) in embedding.iter().zip(want) {
                assert!((got.as_f64().unwrap() - f64::from(*want)).abs() < LAYER);
            }
        }
    }
    let table = succeeds(tiny().args(["hello world", "the cat"]));
    assert!(table.contains("2 texts, 24 numbers each") && table.contains("1.000"), "{table}");
    let nearest = succeeds(tiny().args((0..12).map(|i| format!("text {i}"))));
    assert_eq!(nearest.lines().count(), 13);

    let embedded = succeeds(program("encode").args(["a cat", "a kitten"]));
    assert!(embedded.contains("2 texts, 128 numbers each by the embedded model"), "{embedded}");
    fails(program("encode").args(["--revision", "main", "a cat"]), "--model");

    fails(&mut tiny(), "no text");
    fails(tiny().args(["--file", "no.txt"]), "no.txt: No such file");
    fails(tiny().args(["--batch-size", "0", "a"]), "at least 1");
    fails(tiny().args(["--device", "tpu", "a"]), "expected cpu");
    fails(program("encode").args(["--model", "/no/such/folder", "a"]), "a folder that exists, or a hub id");
}

/// Weights in few bits: other numbers, near those of f32.
#[test]
fn a_compute_type_is_a_dtype_or_a_format_of_few_bits() {
    let embedding = |name: &str| {
        let said = succeeds(program("encode").args(["--json", "--dtype", name, "a cat sleeps"]));
        let line: serde_json::Value = serde_json::from_str(&said).unwrap();
        line["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let exact = embedding("f32");
    for (name, least) in [("bf16", 0.999), ("int8", 0.99), ("q8_0", 0.99), ("q4_0", 0.8)] {
        let rounded = embedding(name);
        let cosine: f64 = rounded.iter().zip(&exact).map(|(a, b)| a * b).sum();
        assert!(rounded != exact && cosine > least, "{name}: {cosine}");
    }
    fails(program("encode").args(["--dtype", "int4", "a"]), "f32, f64, f16, bf16, int8, q8_0, q4_0");
    for shell in ["bash", "zsh", "fish"] {
        assert!(succeeds(program("completions").arg(shell)).contains("q8_0"), "{shell}");
    }
}
