//! Windows of texts: of a long one, which does not fit into a model; of many, which are tokenized some at a time.

use std::ops::Range;

use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device};

use crate::common::programs::copy_folder;
use crate::common::{numbers, repository};

fn embedded() -> SentenceEncoder {
    SentenceEncoder::embedded(DType::F32, &Device::Cpu).unwrap()
}

/// Every window fits, every word is in one, and neighbors overlap.
#[test]
fn windows_fit_overlap_and_leave_nothing_out() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&repository().join("weights"), folder.path());
    let lowers = r#"{"max_seq_length": 128, "do_lower_case": true}"#;
    std::fs::write(folder.path().join("sentence_bert_config.json"), lowers).unwrap();
    let lowering = SentenceEncoder::from_folder(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let words: Vec<String> = (0..700)
        .map(|i| ["Grüße", "cat", "ﬂow", "日本語", "İstanbul", "x"][i % 6].to_string() + &i.to_string())
        .collect();
    let text = words.join(" ");
    for (max_length, encoder, prompt) in [(16, &embedded(), ""), (64, &lowering, ""), (40, &lowering, "search for: ")] {
        let options = EncodeOptions::default().with_prompt(prompt);
        let windows = encoder.windows(&text, &options.with_max_length(max_length)).unwrap();
        assert!(windows.len() > 10);
        let parts: Vec<&str> = windows.iter().map(|window| &text[window.clone()]).collect();
        for (i, part) in parts.iter().enumerate() {
            let tokens = encoder.token_ids(&[part], &options).unwrap()[0].len();
            let is_full = tokens * 2 > max_length || i + 1 == parts.len();
            assert!(tokens <= max_length && is_full, "{part}: {tokens} tokens");
        }
        assert!(words.iter().all(|word| parts.iter().any(|part| part.split(' ').any(|other| other == word))));
        // Where the last quarter of a window has no two words, the next one begins after it.
        let gap = |pair: &[Range<usize>]| text.get(pair[0].end..pair[1].start).unwrap_or_default().trim().to_string();
        assert!(windows.windows(2).all(|pair| pair[0].start < pair[1].start && gap(pair).is_empty()));
        let overlaps = windows.windows(2).filter(|pair| pair[1].start < pair[0].end).count();
        assert!(max_length < 40 || overlaps * 2 > windows.len(), "{overlaps} of {}", windows.len());
    }
}

#[test]
fn a_text_that_fits_is_one_window_and_one_without_spaces_is_cut() {
    let (encoder, options) = (embedded(), EncodeOptions::default().with_max_length(16));
    let only = |text: &str| match &encoder.windows(text, &options).unwrap()[..] {
        [window] => text[window.clone()].to_string(),
        windows => panic!("{windows:?}"),
    };
    assert_eq!((only("  a cat sleeps ").as_str(), only("").as_str()), ("a cat sleeps", ""));
    let long = "ab日".repeat(2000);
    let windows = encoder.windows(&long, &options).unwrap();
    assert!(windows.len() > 10 && windows.last().unwrap().end == long.len());
    assert!(windows.windows(2).all(|pair| pair[1].start <= pair[0].end));
    let spaces = " ".repeat(100_000);
    assert!(encoder.windows(&spaces, &options).unwrap().iter().all(|window| window.is_empty()));
}

/// However many texts are tokenized at a time (here two, because of their bytes), the embeddings are the same bits in
/// the same order.
#[test]
fn texts_that_are_tokenized_together_do_not_change_embeddings() {
    let (encoder, long) = (embedded(), "a".repeat(1_060_000));
    let texts = ["A cat sleeps.", &long, "Stocks fell sharply today.", &long, "No"];
    let options = EncodeOptions::default();
    let alone = |text: &&str| numbers(&encoder.encode(&[text], &options).unwrap());
    let progress = std::sync::Mutex::new(Vec::new());
    let on_progress = |done: usize, of: usize| progress.lock().unwrap().push((done, of));
    let all = encoder.encode(&texts, &options.with_on_progress(&on_progress)).unwrap();
    let first: Vec<f64> = texts[..3].iter().flat_map(alone).collect();
    let of_long = &first[128..256];
    assert_eq!(numbers(&all), [&first, of_long, &alone(&texts[4])].concat());
    assert_eq!(*progress.lock().unwrap(), [(3, 5), (5, 5)]);
}
