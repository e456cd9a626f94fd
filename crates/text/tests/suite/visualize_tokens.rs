//! What pictures of attention show of tokens: names of many tokens, special ones, pieces of words, the second text, and
//! what was cut.

use candle_attention_text::visualize::{AttentionMaps, TerminalColor, TokenMarks};
use candle_attention_text::{MapOptions, SentenceEncoder};
use candle_core::{DType, Device};

use crate::common::{fixture, says};
use crate::models;
use crate::visualize::{data, softmax, tokens};

/// The marks of tokens: special ones first and last, and those that `continues` and `second` choose.
pub fn marks(n: usize, continues: &[usize], second: usize) -> Vec<TokenMarks> {
    let mark = |i: usize| {
        let marks = TokenMarks::default().with_special(i == 0 || i == n - 1);
        marks.with_continues(continues.contains(&i)).with_second(i >= second)
    };
    (0..n).map(mark).collect()
}

/// The text of each `text` element.
fn texts(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).unwrap();
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    texts.map(|node| node.descendants().filter_map(|node| node.text().filter(|_| node.is_text())).collect()).collect()
}

#[test]
fn svg_names_all_tokens_and_the_weights_of_colors() {
    // Tokens per label.
    for (n, step) in [(27, 1), (65, 1), (100, 2), (128, 3)] {
        let maps = AttentionMaps::new(&tokens(n), &tokens(n)).with_layer(0, &softmax(8, &[1, n, n])).unwrap();
        let texts = texts(&maps.svg(0).unwrap());
        for (i, name) in tokens(n).iter().enumerate().step_by(step) {
            let label = if step == 1 { name.clone() } else { format!("{i} {name}") };
            assert_eq!(texts.iter().filter(|&text| *text == label).count(), 2, "{label} of {n}");
        }
    }
    // Of more, the first of each block, with its number.
    let weights = softmax(9, &[1, 300, 300]);
    let maps = AttentionMaps::new(&tokens(300), &tokens(300)).with_layer(0, &weights).unwrap();
    let texts = texts(&maps.svg(0).unwrap());
    for i in (0..300).step_by(6) {
        assert_eq!(texts.iter().filter(|&text| *text == format!("{i} t{i}")).count(), 2, "{i}");
    }
    for part in ["one cell: the largest of 3 × 3 weights", "one name for 6 tokens"] {
        assert!(texts.iter().any(|text| text.contains(part)), "{part}: {texts:?}");
    }
    let largest = weights.max_all().unwrap().to_scalar::<f32>().unwrap();
    let legend: Vec<String> =
        [0.0, 0.0625, 0.25, 0.5625, 1.0].map(|ratio: f32| format!("{:.3}", ratio * largest)).into();
    assert!(texts.windows(5).any(|ticks| ticks == legend), "{texts:?}");
}

#[test]
fn pictures_show_model_marks_and_what_was_cut() {
    let names = ["[CLS]", "post", "pone", "[SEP]", "it", "[SEP]"];
    let mut both = marks(6, &[2], 4);
    both[3] = both[3].with_special(true);
    let maps = AttentionMaps::new(&names, &names).with_title("postpone … | it").with_model("a\u{202e}/model");
    let maps = maps.with_marks(&both, &both).unwrap().with_layer(0, &softmax(10, &[2, 6, 6])).unwrap();
    assert_eq!((maps.queries()[2].as_str(), maps.total_tokens()), ("pone", None));
    let data_of = |maps: &AttentionMaps| data(&maps.html().unwrap());
    assert_eq!(data_of(&maps)["query_marks"], serde_json::json!([1, 0, 2, 1, 4, 5]));
    assert_eq!((&data_of(&maps)["model"], &data_of(&maps)["truncation"]), (&"a\u{fffd}/model".into(), &().into()));
    let svg = texts(&maps.svg(0).unwrap());
    for text in ["a\u{fffd}/model", "##pone", "gray: special · violet: second text · ##: continues a word"] {
        assert!(svg.iter().any(|found| found == text), "{text}: {svg:?}");
    }
    assert!(maps.svg(0).unwrap().contains("stroke-dasharray"));
    let lines = maps.terminal(0, 1, TerminalColor::None, 100).unwrap();
    assert!(
        lines.contains("##pone") && lines.contains("───── second text\n") && lines.contains("\na\u{fffd}/model\n"),
        "{lines}"
    );
    assert!(lines.lines().filter(|line| line.contains('│')).count() >= 6, "{lines}");

    let cut = maps.clone().with_truncation(1014, &["rest\n", "</script>"]).unwrap();
    assert_eq!(cut.total_tokens(), Some(1014));
    let truncation = serde_json::json!({
        "note": "6 of 1,014 tokens", "rest": "1,008",
        "cut": [{"text": "rest⏎", "more": 0}, {"text": "</script>", "more": 0}],
    });
    assert_eq!(data_of(&cut)["truncation"], truncation);
    let note = "6 of 1,014 tokens · a\u{fffd}/model";
    assert!(texts(&cut.svg(0).unwrap()).iter().any(|text| text == note));
    assert!(cut.terminal(0, 1, TerminalColor::None, 100).unwrap().contains(note));
    let long = maps.clone().with_truncation(7, &["é".repeat(20_003)]).unwrap();
    assert_eq!(data_of(&long)["truncation"]["cut"][0]["more"], 3);

    says(maps.clone().with_marks(&both[1..], &both), &["the number of marks of the queries is 5", "6, one per label"]);
    says(maps.clone().with_marks(&both, &[]), &["the number of marks of the keys is 0", "6, one per label"]);
    says(maps.with_truncation(6, &["a"]), &["the number of tokens before the cut is 6", "more than the 6"]);
}

#[test]
fn maps_of_a_text_have_marks_and_what_was_cut() {
    let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &Device::Cpu).unwrap();
    let all = MapOptions::default();
    let maps = encoder.attention("The cats sat, dogs", &all).unwrap();
    let names: Vec<String> = data(&maps.html().unwrap())["query_marks"]
        .as_array()
        .unwrap()
        .iter()
        .zip(maps.queries())
        .map(|(bits, name)| format!("{bits}{name}"))
        .collect();
    assert_eq!(names, ["1[CLS]", "0The", "0cat", "2s", "0sat", "0,", "0dog", "2s", "1[SEP]"]);
    let maps = encoder.attention(("a cat", "dogs"), &all).unwrap();
    assert_eq!(data(&maps.html().unwrap())["query_marks"], serde_json::json!([1, 0, 0, 1, 4, 6, 5]));
    assert_eq!(maps.total_tokens(), None);

    let one = models::folder(1, serde_json::json!({"id2label": {"0": "LABEL_0"}}));
    let cross = models::cross(one.path()).unwrap();
    let second = "The cat sat on the mat and the dog sat on the mat and the bird sat";
    let maps = cross.attention("hello", second, &all).unwrap();
    // Of 16 tokens, 12 are of the second text, which has 17.
    assert_eq!((maps.queries().len(), maps.total_tokens()), (16, Some(21)));
    let truncation = &data(&maps.html().unwrap())["truncation"];
    assert_eq!(truncation["note"], "16 of 21 tokens");
    assert_eq!(
        truncation["cut"],
        serde_json::json!([{"text": "", "more": 0}, {"text": "mat and the bird sat", "more": 0}])
    );
    assert_eq!(data(&maps.html().unwrap())["title"], "hello | The cat sat on the mat and the dog sat on the …");
    assert!(maps.terminal(0, 0, TerminalColor::None, 100).unwrap().contains("\n16 of 21 tokens\n"));
}
