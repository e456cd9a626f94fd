//! Text from outside in the messages of errors.

use candle_attention::Error;

fn message(name: &str) -> String {
    Error::MissingTensor { name: name.to_string(), why: "it is needed".to_string() }.to_string()
}

#[test]
fn characters_that_control_a_terminal_are_escaped() {
    assert_eq!(message("a\x1b]0;owned\x07b"), r"tensor `a\u{1b}]0;owned\u{7}b` is missing: it is needed");
    assert_eq!(message("a\u{202e}b\u{2066}\u{9b}2J"), r"tensor `a\u{202e}b\u{2066}\u{9b}2J` is missing: it is needed");
    assert_eq!(message("a\nb\r\t"), r"tensor `a\nb\r\t` is missing: it is needed");
}

#[test]
fn letters_and_quotes_stay() {
    let plain = r#"größe 大きさ हिन्दी e\ "x" 'y' 🙂"#;
    assert_eq!(message(plain), format!("tensor `{plain}` is missing: it is needed"));
}

#[test]
fn long_names_are_cut() {
    let long = message(&"ä".repeat(10_000_000));
    assert_eq!(long, format!("tensor `{}… (9999800 more characters)` is missing: it is needed", "ä".repeat(200)));
}

/// Every variant with text from outside in each of its fields.
#[test]
fn no_variant_prints_its_text_raw() {
    let bad = || format!("\x1b[2J\u{202e}\n{}", "x".repeat(100_000));
    let path = || std::path::PathBuf::from(bad());
    let errors = [
        Error::Config { field: "field", value: bad(), allowed: bad() },
        Error::Shape { tensor: bad(), found: vec![1], expected: bad() },
        Error::DType { tensor: bad(), found: bad(), expected: bad() },
        Error::Device { tensor: bad(), found: bad(), expected: bad() },
        Error::Value { what: bad(), found: bad(), expected: bad() },
        Error::CachedRotation { sequence: 0, cached: 1, rotated_for: 1, length: 2, position: bad() },
        Error::Backend { backend: bad(), reason: bad() },
        Error::Io { path: path(), source: std::io::Error::other(bad()) },
        Error::File { path: path(), reason: bad() },
        Error::MissingTensor { name: bad(), why: bad() },
        Error::Tensor { name: bad(), found: bad(), expected: bad() },
        Error::UnknownLayout { prefix: bad(), keys: bad(), nearest: "nearest", lacks: bad(), hint: bad() },
        Error::UnsupportedTensor { name: bad(), layout: "layout", why: bad() },
        Error::UnknownFamily { model_type: Some(bad()), near: bad() },
        Error::UnsupportedFamily { model_type: bad(), why: bad() },
        Error::UnsupportedKey { key: bad(), value: bad(), model_type: bad(), what: bad() },
        Error::Tokenizer(bad()),
        Error::TokenizerMismatch { what: bad(), found: 1, expected: bad() },
        Error::Hub { id: bad(), reason: bad() },
    ];
    for error in errors {
        let message = error.to_string();
        assert!(!message.contains(['\x1b', '\u{202e}', '\n']), "{message}");
        assert!(message.contains(r"\u{1b}[2J\u{202e}\n"), "{message}");
        assert!(message.chars().count() < 20_000, "{}", message.len());
    }
}
