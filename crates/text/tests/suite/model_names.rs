//! Models by name: a folder, or an id of the hub, which this build does not ask.
#![cfg(not(feature = "hub"))]

use std::path::Path;

use candle_attention::Error;
use candle_attention_text::locate_model;

#[test]
fn folder_is_returned_as_it_is() {
    assert_eq!(locate_model("src", None, false).unwrap(), Path::new("src"));
}

#[test]
fn file_is_not_taken_for_a_hub_id() {
    let error = locate_model("Cargo.toml", None, false).unwrap_err().to_string();
    assert!(error.contains("Cargo.toml: not a folder"), "{error}");
}

#[test]
fn hub_id_without_the_client_names_the_feature() {
    let error = locate_model("owner/name", None, false).unwrap_err().to_string();
    assert!(error.contains("owner/name") && error.contains("`--features hub`"), "{error}");
}

#[test]
fn ids_of_the_hub() {
    let longest = format!("{}/{}", "a".repeat(96), "b".repeat(96));
    for id in ["gpt2", "a", "a/b", "123", "owner/name", "O_w-n.er/N_a-m.e", "_a/__b__", "a.gits/x.git.y", &longest] {
        assert!(matches!(locate_model(id, None, false), Err(Error::Hub { .. })), "{id}");
    }
    let too_long = format!("{longest}b");
    let parts = ["", "a/", "/a", "a//b", "a/b/c", "datasets/a/b", "./a", "a/..", "../a", "a..b", "a/b..c"];
    let edges =
        ["-a", "a-", ".a", "a.", "a/-b", "a/b-", "a/.b", "a/b.", "-/a", "a--b", "a--b/c", "a/b--c", "a.git", "a/b.git"];
    let signs = ["a b", "a\\b", "a:b", "a@b", "a+b", "a=b", "a\nb", "a\0b", "é", "a/ö", "https://hf.co/a/b", &too_long];
    for id in parts.iter().chain(&edges).chain(&signs) {
        assert!(matches!(locate_model(id, None, false), Err(Error::Value { .. })), "{id}");
    }
    let error = locate_model("\u{1b}[31m", None, false).unwrap_err().to_string();
    assert!(!error.contains('\u{1b}'), "{error}");
}
