//! The examples as programs: input, output, and errors.

use crate::common::{Golden, LAYER, fixture};
use crate::programs::{example, fails, succeeds};

#[test]
fn encode_prints_embeddings_in_input_order() {
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap();
    let want = Golden::open("tiny_bert.safetensors").get("mean_norm").to_vec2::<f32>().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("texts.txt");
    std::fs::write(&file, texts.join("\n")).unwrap();
    let tiny = || {
        let mut command = example("encode");
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

    let embedded = succeeds(example("encode").args(["a cat", "a kitten"]));
    assert!(embedded.contains("2 texts, 128 numbers each by the embedded model"), "{embedded}");
    fails(example("encode").args(["--revision", "main", "a cat"]), "--model");

    fails(&mut tiny(), "no text");
    fails(tiny().args(["--file", "no.txt"]), "no.txt: No such file");
    fails(tiny().args(["--batch-size", "0", "a"]), "batch_size = 0");
    fails(tiny().args(["--device", "tpu", "a"]), "expected cpu, cuda[:N] or metal[:N]");
    fails(example("encode").args(["--model", "/no/such/folder", "a"]), "a folder that exists, or a hub id");
    #[cfg(not(feature = "hub"))]
    fails(example("encode").args(["--model", "owner/name", "a"]), "`--features hub`");
}

/// The address, the cache and the token of the hub come from the environment; afterwards the model runs offline.
#[cfg(feature = "hub")]
#[test]
fn encode_downloads_from_the_hub_and_then_runs_offline() {
    let hub = crate::hub::Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let encode = || {
        let mut command = example("encode");
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", cache.path()).env("HF_TOKEN", "hf_word");
        command.args(["--model", "tiny/bert", "--json", "hello world"]);
        command
    };
    fails(encode().env("HF_HUB_OFFLINE", "1"), "is not in the cache, and offline mode is on");
    assert_eq!(hub.request_count(), 0);
    let online = succeeds(&mut encode());
    assert!(hub.saw_only_token("hf_word"));
    let before = hub.request_count();
    for variable in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        for on in ["1", "true", "ON", "Yes"] {
            assert_eq!(succeeds(encode().env(variable, on)), online);
        }
    }
    assert_eq!(hub.request_count(), before);
    assert_eq!(succeeds(encode().env("HF_HUB_OFFLINE", "0")), online);
    assert!(hub.request_count() > before);
    fails(encode().args(["--revision", "dev"]), "no revision `dev`");
}
