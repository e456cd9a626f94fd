//! The pictures of commands in the documents are what the commands print.

use std::path::{Path, PathBuf};

use crate::programs::{program, succeeds};

const SENTENCE: &str = "The cat sat on the mat because it was warm.";

/// The path of a file of the repository.
fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn minilm() -> PathBuf {
    std::path::absolute(std::env::var("CANDLE_ATTENTION_MINILM").unwrap()).unwrap()
}

/// The texts of a picture without white space.
fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let texts = document.descendants().filter(|node| node.is_text() && !node.parent().unwrap().has_tag_name("style"));
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    texts.map(|node| bare(node.text().unwrap())).filter(|text| !text.is_empty()).collect()
}

/// But for the last digit of a similarity, which depends on the processor.
#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn search_picture_shows_the_hits_of_minilm() {
    let mut command = program("search");
    command.current_dir(root("")).arg("--model").arg(minilm());
    let said = succeeds(command.args(["-k", "2", "Who is liable for damage?", "LICENSE-APACHE", "LICENSE-MIT"]));
    let document = std::fs::read_to_string(root("docs/encoder.md")).unwrap();
    let shown = document.split("```sh\n").find(|block| block.starts_with("candle-attention search --model")).unwrap();
    let shown = format!("${} {said}", shown.split("```").next().unwrap());
    let similarity = |word: &str| word.starts_with("0.") && word.parse::<f32>().is_ok();
    let shown: String = shown.split_whitespace().filter(|word| !similarity(word)).collect();
    let drawn = texts(&std::fs::read_to_string(root("examples/search.svg")).unwrap());
    let drawn: String = drawn.into_iter().filter(|text| !similarity(text)).collect();
    assert_eq!(drawn, shown);
}

/// The colors have a few levels, and on another processor a weight may get the next one.
#[test]
#[ignore = "needs all-MiniLM-L6-v2: set CANDLE_ATTENTION_MINILM to its folder"]
fn attention_picture_shows_a_layer_of_minilm() {
    let map = |arguments: &[&str]| {
        succeeds(program("attention-map").arg("--model").arg(minilm()).args(arguments).arg(SENTENCE))
    };
    let picture = std::fs::read_to_string(root("examples/attention_map.svg")).unwrap();
    let svg = map(&["--layer", "1", "--svg", "-"]);
    assert_eq!(texts(&picture), texts(&svg));
    assert!(picture.len().abs_diff(svg.len()) < svg.len() / 50, "{} and {}", picture.len(), svg.len());
    // The page of the README opens on this head.
    let said = map(&[]);
    let row = said.lines().find(|line| line.trim_start().starts_with("it ")).unwrap();
    assert!(said.starts_with("layer 1, head 7: ") && row.contains("  0.80") && row.ends_with(" warm"), "{said}");
}
