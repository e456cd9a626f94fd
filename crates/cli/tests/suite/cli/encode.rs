//! `encode`: streams, files of other programs, comparisons, texts that are cut, numbers that are none.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use candle_core::{DType, Device, Tensor};

use super::Scratch;
use crate::programs::{fails, succeeds};

/// A line that comes through a pipe is answered before the next one comes.
#[test]
fn json_lines_stream() {
    let scratch = Scratch::new();
    let mut command = scratch.run(&["encode", "--json", "--file", "-"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut all = Vec::new();
    for text in ["a cat", "a dog"] {
        stdin.write_all(format!("{text}\n\n").as_bytes()).unwrap();
        let line = answers.next().unwrap().unwrap();
        assert!(line.starts_with(&format!("{{\"text\":\"{text}\",\"embedding\":[")), "{line}");
        all.push(line);
    }
    drop(stdin);
    assert!(answers.next().is_none() && child.wait().unwrap().success());
    // Arguments give equal lines.
    let lines = succeeds(&mut scratch.run(&["encode", "--json", "a cat", "a dog"]));
    assert_eq!(lines.lines().collect::<Vec<_>>(), all);
}

/// Without texts, or with `-`, the lines of standard input are the texts; several files are one after the other.
#[test]
fn texts_come_from_pipes_and_files() {
    let scratch = Scratch::new();
    let want = succeeds(&mut scratch.run(&["encode", "--file", "notes.txt"]));
    for arguments in [&["encode"][..], &["encode", "-"], &["encode", "--file", "-"]] {
        let notes = std::fs::File::open(scratch.path("notes.txt")).unwrap();
        assert_eq!(succeeds(scratch.run(arguments).stdin(notes)), want, "{arguments:?}");
    }
    fails(&mut scratch.run(&["encode"]), "standard input: no text: every line is blank");
    fails(&mut scratch.run(&["encode", "a", "-"]), "`-` is standard input: expected no other text beside it");

    std::fs::write(scratch.path("blank.txt"), "\n").unwrap();
    let files = ["--file", "notes.txt", "--file", "texts.txt"];
    let lines = json(&scratch, &files);
    assert_eq!((lines.len(), &lines[1]["text"]), (62, &"A cat sat on the sofa.".into()));
    assert_eq!(lines, json(&scratch, &["--file", "notes.txt", "--file", "blank.txt", "--file", "texts.txt"]));
    // The ranges are those of all files.
    let int8 = json(&scratch, &[&["--precision", "int8"], &files[..]].concat());
    assert_ne!(int8[..2], json(&scratch, &[&["--precision", "int8"], &files[..2]].concat()));
    let table = succeeds(&mut scratch.run(&[&["encode"], &files[..]].concat()));
    assert!(table.starts_with("62 texts, 128 numbers each"), "{table}");
    fails(scratch.run(&["encode", "--json"]).args(files).args(["--file", "no.txt"]), "no.txt: No such file");
}

/// One text has no similarity to print. Where it is the name of a file, it may be a mistake.
#[test]
fn one_text_is_shown_as_numbers() {
    let scratch = Scratch::new();
    let output = scratch.run(&["encode", "notes.txt"]).output().unwrap();
    let note = "note: the name notes.txt is encoded, not the file; --file notes.txt encodes the file's lines\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), note);
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let (first, last) = lines[1].strip_prefix('[').unwrap().split_once(", …, ").unwrap();
    let numbers = &json(&scratch, &["notes.txt"])[0]["embedding"];
    let shown = |i: usize| format!("{:.4}", numbers[i].as_f64().unwrap());
    assert!(first.starts_with(&shown(0)) && last.ends_with(&format!("{}], of length 1.0000", shown(127))), "{said}");
    assert_eq!((lines[0], lines.len()), ("1 text, 128 numbers by the embedded model:", 3));
}

/// The model of the environment, unless --model names another.
#[test]
fn the_model_may_come_from_the_environment() {
    let scratch = Scratch::new();
    let encode = |more: &[&str], model: &str| {
        let mut command = scratch.run(&[&["encode", "--json", "a cat"], more].concat());
        command.env("CANDLE_ATTENTION_MODEL", model);
        command
    };
    let want = succeeds(&mut scratch.run(&["encode", "--json", "a cat", "--model", "all-MiniLM-L6-v2"]));
    assert_eq!(succeeds(&mut encode(&[], "all-MiniLM-L6-v2")), want);
    assert_eq!(succeeds(&mut encode(&["--model", "all-MiniLM-L6-v2"], "nope")), want);
    fails(&mut encode(&[], "nope"), "nope");
    fails(&mut encode(&[], ""), "a value is required for '--model");
}

/// The number of threads changes no bit of an embedding.
#[test]
fn threads_are_given() {
    let scratch = Scratch::new();
    let want = succeeds(&mut scratch.run(&["encode", "--json", "--file", "texts.txt"]));
    for threads in ["1", "3"] {
        assert_eq!(
            succeeds(&mut scratch.run(&["encode", "--json", "--file", "texts.txt", "--threads", threads])),
            want
        );
    }
    fails(
        &mut scratch.run(&["encode", "a", "--threads", "0"]),
        "'0' for '--threads <N>': expected a whole number from 1 to 1024",
    );
    // More threads than there is memory for.
    #[cfg(target_os = "linux")]
    {
        let program = scratch.run(&["encode"]).get_program().to_owned();
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", "ulimit -v 1000000; RAYON_NUM_THREADS=2000 exec \"$0\" encode a"]).arg(program);
        fails(&mut limited, "the threads of RAYON_NUM_THREADS, or one for each core: ");
    }
}

#[test]
fn embeddings_are_written_for_numpy_and_safetensors() {
    let scratch = Scratch::new();
    let json = succeeds(&mut scratch.run(&["encode", "--json", "--file", "notes.txt"]));
    let want: Vec<f32> = json
        .lines()
        .flat_map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["embedding"].as_array().unwrap().clone()
        })
        .map(|number| number.as_f64().unwrap() as f32)
        .collect();
    let said = succeeds(&mut scratch.run(&["encode", "--file", "notes.txt", "--output", "e.npy"]));
    assert_eq!(said, "e.npy: 2 texts, 128 numbers each by the embedded model\n");
    // Read by candle's own reader of the format.
    let numbers = |tensor: Tensor| {
        assert_eq!((tensor.dims(), tensor.dtype()), ([2, 128].as_slice(), DType::F32));
        tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert_eq!(numbers(Tensor::read_npy(scratch.path("e.npy")).unwrap()), want);
    succeeds(&mut scratch.run(&["encode", "--file", "notes.txt", "--output", "e.safetensors"]));
    let mut tensors = candle_core::safetensors::load(scratch.path("e.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(numbers(tensors.remove("embeddings").unwrap()), want);
    let stdout = scratch.run(&["encode", "--file", "notes.txt", "--output", "-"]).output().unwrap();
    assert_eq!(stdout.stdout, std::fs::read(scratch.path("e.npy")).unwrap());
    // Again over themselves.
    succeeds(&mut scratch.run(&["encode", "--file", "notes.txt", "--output", "e.safetensors"]));
    let output = scratch.run(&["encode", "--file", "notes.txt", "--output", "e.npy"]).output().unwrap();
    assert!(output.status.success());

    let encode = |output: &str| scratch.run(&["encode", "--file", "notes.txt", "--output", output]);
    std::fs::write(scratch.path("mine.npy"), "notes").unwrap();
    fails(&mut encode("mine.npy"), "mine.npy: exists and is not a NumPy array; --force replaces it");
    succeeds(encode("mine.npy").arg("--force"));
    assert_eq!(std::fs::read(scratch.path("mine.npy")).unwrap(), std::fs::read(scratch.path("e.npy")).unwrap());
    fails(&mut encode("e.txt"), "e.txt: expected a name that ends in .npy or .safetensors");
    fails(&mut encode("no/e.npy"), "no/e.npy: its folder does not exist");
    let weights = "all-MiniLM-L6-v2/model.safetensors";
    let before = std::fs::read(scratch.path(weights)).unwrap();
    fails(&mut encode(weights), "model.safetensors: exists and is not tensors of this command; --force replaces it");
    assert_eq!(std::fs::read(scratch.path(weights)).unwrap(), before);
    fails(&mut scratch.run(&["encode", "a", "--json", "--output", "f.npy"]), "cannot be used with");
}

#[test]
fn files_and_pairs_are_compared() {
    let scratch = Scratch::new();
    let nearest = succeeds(&mut scratch.run(&["encode", "--against", "notes.txt", "When is the rent due?", "a cat"]));
    let lines: Vec<&str> = nearest.lines().collect();
    assert!(
        lines[1].ends_with("The rent is due on Friday.") && lines[2].ends_with("A cat sat on the sofa."),
        "{nearest}"
    );
    std::fs::write(scratch.path("pairs.tsv"), "a cat\ta cat\n\nA kitten naps.\tStocks fell sharply.\n").unwrap();
    let pairs = succeeds(&mut scratch.run(&["encode", "--pairs", "pairs.tsv"]));
    assert!(pairs.starts_with(" 1.000  a cat ") && pairs.lines().count() == 2, "{pairs}");
    std::fs::write(scratch.path("spaced.tsv"), "\u{feff} a cat\ta cat \r\n").unwrap();
    let pairs = succeeds(&mut scratch.run(&["encode", "--pairs", "spaced.tsv"]));
    assert!(pairs.starts_with(" 1.000   a cat ") && pairs.ends_with("  a cat \n"), "white space stays: {pairs:?}");
    fails(&mut scratch.run(&["encode", "--pairs", "notes.txt"]), "notes.txt: line 1 has 0 tabs, expected two texts");
    fails(&mut scratch.run(&["encode", "--against", "no.txt", "a"]), "no.txt: No such file");
    fails(&mut scratch.run(&["encode", "--pairs", "pairs.tsv", "a"]), "cannot be used with");
}

#[test]
fn texts_that_are_cut_are_counted() {
    let scratch = Scratch::new();
    let long = "one two three four five six seven eight nine ten ".repeat(40);
    std::fs::write(scratch.path("long.txt"), format!("\u{feff}short\r\n\n{long}\n{long}x\n")).unwrap();
    let run = |more: &[&str]| {
        let output = scratch.run(&[&["encode", "--file", "long.txt", "--json"], more].concat()).output().unwrap();
        assert!(output.status.success());
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (lines, note) = run(&[]);
    assert_eq!(note, "note: 2 of 3 texts were cut at 128 tokens (--max-length)\n");
    assert!(lines.starts_with("{\"text\":\"short\","), "no byte order mark, no line break: {}", &lines[..40]);
    let (shorter, note) = run(&["--max-length", "8"]);
    assert_eq!(note, "note: 2 of 3 texts were cut at 8 tokens (--max-length)\n");
    assert_eq!(lines.lines().next(), shorter.lines().next());
    assert_ne!(lines.lines().nth(1), shorter.lines().nth(1));
    fails(&mut scratch.run(&["encode", "a", "--max-length", "1000"]), "--max-length is 1000, expected at most");
    fails(
        &mut scratch.run(&["encode", "a", "--max-length", "2"]),
        "--max-length is 2, expected more than the 2 special tokens",
    );
    std::fs::write(scratch.path("blank.txt"), "\u{feff}\n \n").unwrap();
    fails(&mut scratch.run(&["encode", "--file", "blank.txt"]), "blank.txt: no text: every line is blank");
    std::fs::write(scratch.path("latin.txt"), b"one\ntw\xf6\n").unwrap();
    fails(&mut scratch.run(&["encode", "--file", "latin.txt"]), "latin.txt: line 2 is not UTF-8");
}

#[test]
fn text_in_another_encoding_is_named() {
    let scratch = Scratch::new();
    let utf16: Vec<u8> = "\u{feff}one\tätwo\n".encode_utf16().flat_map(u16::to_be_bytes).collect();
    for (name, bytes, reason) in [
        ("marked", &utf16[..], "the text is in UTF-16, expected UTF-8"),
        ("unmarked", &utf16[2..], "the text is in UTF-16, expected UTF-8"),
        ("nul", b"one\ttwo\n\none\tt\0wo\n", "line 3 holds a NUL byte, expected text in UTF-8"),
    ] {
        std::fs::write(scratch.path(name), bytes).unwrap();
        let reason = format!("{name}: {reason}");
        for arguments in [
            &["encode", "--json", "--file", name][..],
            &["encode", "--file", name],
            &["encode", "--pairs", name],
            &["encode", "a", "--against", name],
            &["encode", "a", "--json", "--precision", "int8", "--calibration", name],
        ] {
            fails(&mut scratch.run(arguments), &reason);
        }
        let stdin = std::fs::File::open(scratch.path(name)).unwrap();
        fails(scratch.run(&["encode", "--json"]).stdin(stdin), &reason.replace(name, "standard input"));
    }
}

/// A wide character takes two columns.
#[test]
fn tables_are_aligned() {
    let scratch = Scratch::new();
    let table = succeeds(&mut scratch.run(&["encode", "猫が眠っている", "a cat", &"狗".repeat(40)]));
    let lines: Vec<&str> = table.lines().skip(1).collect();
    let width = |line: &str| unicode_width(line);
    assert!(lines.windows(2).all(|pair| width(pair[0]) == width(pair[1])), "{table}");
}

fn unicode_width(line: &str) -> usize {
    console::measure_text_width(line)
}

/// NaN in the weights is an error of every command, which names the tensor.
#[test]
fn damaged_weights_are_an_error_everywhere() {
    let scratch = Scratch::new();
    let path = scratch.path("all-MiniLM-L6-v2/model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let name = tensors.keys().find(|name| name.ends_with("layer.0.output.dense.bias")).unwrap().clone();
    let bias = tensors[&name].affine(0.0, f64::NAN).unwrap();
    tensors.insert(name.clone(), bias);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let with = |arguments: &[&str]| scratch.run(&[arguments, &["--model", "all-MiniLM-L6-v2"]].concat());
    let tensor = format!("all-MiniLM-L6-v2: NaN or an infinity in `{name}`");
    for arguments in
        [&["encode", "a cat"][..], &["encode", "--json", "a cat"], &["encode", "--output", "e.npy", "a cat"]]
    {
        fails(&mut with(arguments), &tensor);
    }
    fails(&mut with(&["search", "a", "notes.txt"]), &tensor);
    fails(&mut with(&["attention-map", "--layer", "1", "--html", "map.html", "a cat"]), &tensor);
    assert!(!scratch.names().iter().any(|name| name == "e.npy" || name == "map.html"));
}

/// The JSON lines of a run.
fn json(scratch: &Scratch, arguments: &[&str]) -> Vec<serde_json::Value> {
    let lines = succeeds(&mut scratch.run(&[&["encode", "--json"], arguments].concat()));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn embeddings_are_truncated_normalized_and_quantized() {
    let scratch = Scratch::new();
    let numbers = |line: &serde_json::Value| -> Vec<f64> {
        line["embedding"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
    };
    let whole = json(&scratch, &["a cat", "a dog"]);
    let short = json(&scratch, &["--truncate-dim", "20", "a cat", "a dog"]);
    assert_eq!(numbers(&short[1]), numbers(&whole[1])[..20]);
    let unit = json(&scratch, &["--truncate-dim", "20", "--normalize", "a cat"]);
    let length: f64 = numbers(&unit[0]).iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-6, "{length}");

    let bits = json(&scratch, &["--precision", "ubinary", "a cat", "a dog"]);
    let want = |line: &serde_json::Value| -> Vec<f64> {
        let byte = |xs: &[f64]| xs.iter().fold(0, |byte, x| byte * 2 + u32::from(*x > 0.0));
        numbers(line).chunks(8).map(byte).map(f64::from).collect()
    };
    assert_eq!((numbers(&bits[0]), numbers(&bits[1])), (want(&whole[0]), want(&whole[1])));
    // The ranges are those of all texts, or of a file, with which a text alone is the same.
    let int8 = json(&scratch, &["--precision", "int8", "--file", "texts.txt"]);
    let calibrated = ["--precision", "int8", "--calibration", "texts.txt"];
    assert_eq!(int8.len(), 60);
    let again = json(&scratch, &[&calibrated[..], &["--file", "texts.txt"]].concat());
    assert_eq!(again, int8);
    let alone = json(&scratch, &[&calibrated[..], &[int8[7]["text"].as_str().unwrap()]].concat());
    assert_eq!(alone[0], int8[7]);
    assert!(numbers(&int8[0]).iter().all(|x| x.fract() == 0.0 && (-128.0..128.0).contains(x)));

    // Files for other programs.
    let write = |precision: &str, file: &str| {
        scratch.run(&["encode", "--file", "notes.txt", "--precision", precision, "--output", file])
    };
    let said = succeeds(&mut write("ubinary", "e.npy"));
    assert_eq!(said, "e.npy: 2 texts, 128 bits in 16 bytes each by the embedded model\n");
    let array = Tensor::read_npy(scratch.path("e.npy")).unwrap();
    assert_eq!((array.dims(), array.dtype()), ([2, 16].as_slice(), DType::U8));
    succeeds(&mut write("uint8", "e.safetensors"));
    let tensors = candle_core::safetensors::load(scratch.path("e.safetensors"), &Device::Cpu).unwrap();
    assert_eq!((tensors["embeddings"].dims(), tensors["embeddings"].dtype()), ([2, 128].as_slice(), DType::U8));
    succeeds(&mut write("int8", "signed.npy"));
    let bytes = std::fs::read(scratch.path("signed.npy")).unwrap();
    assert!(String::from_utf8_lossy(&bytes[..60]).contains("'descr': '|i1'") && bytes.len().is_multiple_of(64));

    fails(&mut write("int8", "signed.safetensors"), "signed.safetensors: int8 needs signed bytes");
    let encode = |arguments: &[&str], reason: &str| {
        fails(&mut scratch.run(&[&["encode", "a"], arguments].concat()), reason);
    };
    encode(&["--precision", "int4", "--json"], "[possible values: float32, int8, uint8, binary, ubinary]");
    encode(&["--precision", "int8"], "--precision int8 needs --json or --output");
    encode(&["--precision", "int8", "--json"], "the number of embeddings to take ranges from is 1");
    encode(&["--precision", "binary", "--json", "--calibration", "texts.txt"], "--calibration is for --precision int8");
    encode(&["--precision", "int8", "--json", "--calibration", "no.txt"], "no.txt: No such file");
    encode(&["--truncate-dim", "0"], "--truncate-dim is 0, expected at least 1");
}

#[test]
fn prompts_kinds_and_tokens() {
    let scratch = Scratch::new();
    let config = r#"{"prompts": {"query": "the cat "}}"#;
    std::fs::write(scratch.path("all-MiniLM-L6-v2/config_sentence_transformers.json"), config).unwrap();
    let embedding = |arguments: &[&str]| {
        let mut line = json(&scratch, &[arguments, &["--model", "all-MiniLM-L6-v2"]].concat()).remove(0);
        line["embedding"].take()
    };
    let want = embedding(&["the cat sat"]);
    assert_eq!(embedding(&["--prompt", "the cat ", "sat"]), want);
    assert_eq!(embedding(&["--as", "query", "sat"]), want);
    assert_eq!(embedding(&["--as", "document", "sat"]), embedding(&["sat"]));
    assert_eq!(embedding(&["--as", "query", "--prompt", "", "sat"]), embedding(&["sat"]));

    let lines = json(&scratch, &["--token-embeddings", "--model", "all-MiniLM-L6-v2", "a cat", "sat"]);
    let shape = |line: &serde_json::Value| {
        let rows = line["embeddings"].as_array().unwrap();
        (line["text"].as_str().unwrap().to_string(), rows.len(), rows[0].as_array().unwrap().len())
    };
    assert_eq!(lines.iter().map(shape).collect::<Vec<_>>(), [("a cat".to_string(), 4, 24), ("sat".to_string(), 3, 24)]);

    fails(&mut scratch.run(&["encode", "a", "--token-embeddings"]), "--json");
    fails(&mut scratch.run(&["encode", "a", "--json", "--token-embeddings", "--normalize"]), "cannot be used with");
    fails(&mut scratch.run(&["encode", "a", "--prompt", "x", "--prompt-name", "query"]), "cannot be used with");
    fails(&mut scratch.run(&["encode", "a", "--as", "passage"]), "[possible values: query, document]");
}

/// Of a text of 15 MB as much is tokenized as the model takes. All of it took more than 4 GB.
#[cfg(target_os = "linux")]
#[test]
fn a_long_text_takes_little_memory() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path("long.txt"), "?!. ".repeat(3_900_000)).unwrap();
    let program = scratch.run(&["encode", "--json", "--file", "long.txt"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v 1000000 && exec \"$0\" \"$@\""]).arg(program.get_program()).args(program.get_args());
    limited.current_dir(scratch.path("."));
    assert!(succeeds(&mut limited).starts_with("{\"text\":\"?!. ?!. "));
}
