//! Pictures of attention: their numbers are the tensor's, their text is what it was, and they are well-formed.

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::checkpoint::Checkpoint;
use candle_attention::{AttentionMask, ObserveOptions};
use candle_attention_text::visualize::{AttentionMaps, TerminalColor, TokenMarks};
use candle_attention_text::{ForwardOptions, MapOptions, SentenceEncoder, TextModel, TextModelConfig};
use candle_core::{DType, Device, Tensor};

use crate::common::{Random, fixture, numbers, says};
use crate::models;

/// Tokens that break a page or picture which does not escape them.
pub const HOSTILE: [&str; 12] = [
    "</script><script>document.title='owned'</script>",
    "<!--",
    "\"'`",
    "&amp;",
    "\u{2028}",
    "a\u{202e}b",
    "😀👩‍👩‍👧",
    "שלום",
    "العربية",
    "\u{0}\u{1b}[31m",
    "\n",
    "\u{200b}",
];

/// Very unequal weights in rows that sum to 1.
pub fn softmax(seed: u64, dims: &[usize]) -> Tensor {
    let scores = (Random::new(seed).tensor(dims, DType::F32) * 4.0).unwrap();
    candle_nn::ops::softmax_last_dim(&scores).unwrap()
}

pub fn tokens(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("t{i}")).collect()
}

/// The data of a page.
pub fn data(page: &str) -> serde_json::Value {
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

/// The weights of a head as the page shows them.
fn shown(page: &str, layer: usize, head: usize) -> Vec<String> {
    let (_, rest) = page.split_once(&format!("id=\"w{layer}-{head}\">")).unwrap();
    let packed = STANDARD.decode(rest.split_once('<').unwrap().0).unwrap();
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let (low, high) = bytes.split_at(bytes.len() / 2);
    let units = low.iter().zip(high).map(|(low, high)| u16::from_le_bytes([*low, *high]));
    units.map(|units| format!("{}.{:04}", units / 10_000, units % 10_000)).collect()
}

#[test]
fn page_holds_the_weights_of_the_tensors() {
    let (first, second) = (softmax(1, &[3, 5, 7]), softmax(2, &[2, 5, 7]));
    let maps = AttentionMaps::new(&tokens(5), &tokens(7)).with_layer(4, &first).unwrap();
    let maps = maps.with_heads(9, &[6, 1], &second.unsqueeze(0).unwrap()).unwrap();
    assert_eq!(maps.layers().collect::<Vec<_>>(), [(4, &[0, 1, 2][..]), (9, &[6, 1][..])]);
    let page = maps.html().unwrap();
    for (at, weights) in [&first, &second].into_iter().enumerate() {
        for head in 0..weights.dims()[0] {
            let want = numbers(&weights.get(head).unwrap()).iter().map(|w| format!("{w:.4}")).collect::<Vec<_>>();
            assert_eq!(shown(&page, at, head), want);
        }
    }
    assert_eq!(maps.weights(9, 1).unwrap(), second.get(1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap());

    // Ties, the ends, and less than the last digit.
    let edges = [0.0, 1.0, 0.03125, 0.09375, 0.15625, 0.00005, 0.000049, 0.99995f32];
    let weights = Tensor::new(&edges, &Device::Cpu).unwrap().reshape((1, 1, 8)).unwrap();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let weights = weights.to_dtype(dtype).unwrap();
        let page = AttentionMaps::new(&tokens(1), &tokens(8)).with_layer(0, &weights).unwrap().html().unwrap();
        let want: Vec<_> = numbers(&weights.to_dtype(DType::F32).unwrap()).iter().map(|w| format!("{w:.4}")).collect();
        assert_eq!(shown(&page, 0, 0), want);
    }
}

#[test]
fn hostile_labels_are_escaped() {
    let n = HOSTILE.len();
    let weights = softmax(3, &[2, n, n]);
    let maps = AttentionMaps::new(&HOSTILE, &HOSTILE).with_title(HOSTILE[0]).with_layer(0, &weights).unwrap();
    assert_eq!(maps.queries()[4..], ["⏎", "a\u{fffd}b", HOSTILE[6], HOSTILE[7], HOSTILE[8], "␀␛[31m", "⏎", "U+200B"]);

    let page = maps.html().unwrap();
    assert_eq!(page.matches("<script").count(), page.matches("</script>").count());
    assert_eq!(page.matches("<script").count(), 4, "data, two heads, program");
    assert!(!page.contains("owned'</script>") && !page.contains("<!--"));
    let data = data(&page);
    assert_eq!(data["queries"][0], HOSTILE[0]);
    assert_eq!(data["keys"], serde_json::Value::Null);
    let page = page.replace("http://www.w3.org/2000/svg", "the name of SVG");
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("src="));

    let svg = maps.svg(0).unwrap();
    let document = roxmltree::Document::parse(&svg).unwrap();
    let texts: Vec<_> = document.descendants().filter(|node| node.has_tag_name("text")).collect();
    assert!(texts.iter().any(|node| node.text() == Some("&amp;")));
    assert!(document.descendants().all(|node| !node.has_tag_name("script")));
    let colored = maps.terminal(0, 0, TerminalColor::None, 80).unwrap();
    assert!(!colored.contains('\u{1b}') && !colored.contains('\u{202e}'), "{colored}");
}

#[test]
fn pictures_are_well_formed_and_small() {
    for (q, k) in [(1, 1), (3, 17), (40, 9), (64, 64), (65, 300), (90, 90), (128, 128), (213, 213)] {
        let maps = AttentionMaps::new(&tokens(q), &tokens(k)).with_layer(0, &softmax(4, &[5, q, k])).unwrap();
        let svg = maps.svg(0).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let root = document.root_element();
        let size = |name: &str| root.attribute(name).unwrap().parse::<f64>().unwrap();
        let (wide, high) = (size("width"), size("height"));
        let names = document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text());
        let names = names.filter(|text| text.starts_with("head "));
        assert_eq!(names.count(), 5);
        // Nothing is drawn outside.
        for frame in document.descendants().filter(|node| node.has_tag_name("rect")) {
            let number = |name: &str| frame.attribute(name).map_or(0.0, |value| value.parse().unwrap());
            assert!(number("x") + number("width") <= wide && number("y") + number("height") <= high, "{q} {k}");
        }
        // As wide as a page shows it, with labels as large as text.
        assert!(wide <= 1040.0, "{q} × {k}: {wide}");
        for group in document.descendants().filter(|node| node.has_tag_name("g") && node.has_attribute("text-anchor")) {
            let size = group.attribute("font-size").unwrap().parse::<f64>().unwrap();
            assert!((8.5..=11.0).contains(&size), "{q} × {k}: {size}");
        }
        assert!(svg.len() < 5 * 128 * 128 * 12, "{q} × {k}: {} bytes", svg.len());
    }
    let n = 512;
    let maps = AttentionMaps::new(&tokens(n), &tokens(n)).with_layer(0, &softmax(5, &[3, n, n])).unwrap();
    let page = maps.html().unwrap();
    assert!(page.len() < 64 * 1024 + 3 * n * n * 3 / 2, "{} bytes", page.len());
    assert!(maps.svg(0).unwrap().len() < 3 * 128 * 128 * 12);
}

#[test]
fn terminal_shows_weights_labels_and_the_largest_key() {
    let weights = Tensor::new(&[[[1.0f32, 0.0], [0.25, 0.5625]]], &Device::Cpu).unwrap();
    let maps = AttentionMaps::new(&["le", "猫"], &["the", "猫"]).with_layer(2, &weights).unwrap();
    let none = maps.terminal(2, 0, TerminalColor::None, 80).unwrap();
    let want = "layer 2, head 0: rows look at columns\n   t\n   h\n   e 猫\nle ██    1.0000 the\n猫 ▒▒▓▓  0.5625 猫\n      \
                0.0000 ░░ 0.0625 ▒▒ 0.2500 ▓▓ 0.5625 ██ 1.0000\n";
    assert_eq!(none, want);
    let rows = |color| {
        let text = maps.terminal(2, 0, color, 80).unwrap();
        text.lines().skip(4).take(2).map(str::to_string).collect::<Vec<_>>()
    };
    let want = [
        "le \u{1b}[48;2;250;245;180m  \u{1b}[48;2;22;27;34m  \u{1b}[0m  1.0000 the",
        "猫 \u{1b}[48;2;38;135;153m  \u{1b}[48;2;119;201;152m  \u{1b}[0m  0.5625 猫",
    ];
    assert_eq!(rows(TerminalColor::TrueColor), want);
    let want = [
        "le \u{1b}[48;5;229m  \u{1b}[48;5;234m  \u{1b}[0m  1.0000 the",
        "猫 \u{1b}[48;5;30m  \u{1b}[48;5;114m  \u{1b}[0m  0.5625 猫",
    ];
    assert_eq!(rows(TerminalColor::Ansi256), want);

    // A narrow terminal: keys below each other, no line too long.
    let maps = AttentionMaps::new(&tokens(30), &tokens(30)).with_layer(0, &softmax(6, &[1, 30, 30])).unwrap();
    let narrow = maps.terminal(0, 0, TerminalColor::None, 60).unwrap();
    assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    assert_eq!(narrow.lines().filter(|line| line.starts_with("t29 ")).count(), 2);
}

#[test]
fn invalid_weights_and_indices_are_errors() {
    let maps = || AttentionMaps::new(&tokens(2), &tokens(3));
    let of = |numbers: Vec<f32>, dims: &[usize]| Tensor::from_vec(numbers, dims, &Device::Cpu).unwrap();
    says(maps().with_layer(1, &of(vec![0.0; 6], &[2, 3])), &["the weights of layer 1", "[2, 3]"]);
    says(maps().with_layer(1, &of(vec![0.0; 6], &[1, 3, 2])), &["[1, 3, 2]", "(1, 2, 3)"]);
    says(maps().with_layer(1, &of(vec![0.0; 12], &[2, 1, 2, 3])), &["[2, 1, 2, 3]"]);
    says(maps().with_layer(1, &of(vec![], &[0, 2, 3])), &["at least one"]);
    says(maps().with_heads(1, &[0, 0], &of(vec![0.0; 12], &[2, 2, 3])), &["a head of layer 1 is 0"]);
    says(maps().with_layer(1, &Tensor::zeros((1, 2, 3), DType::U8, &Device::Cpu).unwrap()), &["dtype u8", "a float"]);
    let mut numbers = vec![0.5; 12];
    for bad in [f32::NAN, -0.1, 1.1, f32::INFINITY] {
        numbers[10] = bad;
        says(maps().with_layer(4, &of(numbers.clone(), &[2, 2, 3])), &["layer 4, head 1, query 1, key 1", "0 to 1"]);
    }
    let good = maps().with_layer(4, &of(vec![0.5; 12], &[2, 2, 3])).unwrap();
    says(good.weights(3, 0), &["a layer is 3", "one of 4"]);
    says(good.terminal(4, 2, TerminalColor::None, 80), &["a head of layer 4 is 2", "one of 0, 1"]);
    says(good.svg(5), &["a layer is 5"]);
    says(good.with_layer(4, &of(vec![0.5; 6], &[1, 2, 3])), &["a layer is 4"]);
    says(maps().html(), &["the number of layers to show is 0"]);
    // A repeated number has any shape and no size.
    let repeated = Tensor::zeros((1, 1, 1), DType::F32, &Device::Cpu).unwrap().broadcast_as((1 << 40, 2, 3)).unwrap();
    says(maps().with_layer(1, &repeated), &["the number of weights of layer 1 is 6597069766656", "at most 1073741824"]);
}

#[test]
fn sentence_encoder_makes_maps_of_a_text() {
    let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &Device::Cpu).unwrap();
    let maps = encoder.attention("The cat, sleeping", &MapOptions::default()).unwrap();
    let tokens = maps.queries().to_vec();
    assert_eq!((tokens.first().unwrap().as_str(), tokens.last().unwrap().as_str()), ("[CLS]", "[SEP]"));
    assert_eq!(tokens[1..tokens.len() - 1].concat(), "Thecat,sleeping");
    let layers: Vec<_> = maps.layers().map(|(layer, heads)| (layer, heads.len())).collect();
    assert_eq!(layers.len(), 2);
    for (layer, heads) in layers {
        for head in 0..heads {
            for row in maps.weights(layer, head).unwrap().chunks(tokens.len()) {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
        }
    }
    let one =
        encoder.attention("The cat, sleeping", &MapOptions::default().with_layers(&[1]).with_heads(&[1])).unwrap();
    assert_eq!(one.layers().collect::<Vec<_>>(), [(1, &[1][..])]);
    assert_eq!(one.weights(1, 1).unwrap(), maps.weights(1, 1).unwrap());
    says(encoder.attention("a", &MapOptions::default().with_layers(&[2])), &["layer", "2"]);
    says(encoder.attention("a", &MapOptions::default().with_heads(&[99])), &["head", "99"]);
    assert_eq!(encoder.attention("", &MapOptions::default()).unwrap().queries(), ["[CLS]", "[SEP]"]);
}

/// Both texts of a pair and the special tokens around them have labels, and the second text has the other segment type.
#[test]
fn models_make_maps_of_a_pair() {
    let options = MapOptions::default();
    let encoder = SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &Device::Cpu).unwrap();
    let maps = encoder.attention(("The cat", "a dog sat"), &options).unwrap();
    let names = ["[CLS]", "The", "cat", "[SEP]", "a", "dog", "sat", "[SEP]"];
    assert_eq!((maps.queries(), maps.keys()), (&names.map(String::from)[..], &names.map(String::from)[..]));
    assert!(maps.svg(0).unwrap().contains("The cat | a dog sat"));

    let tokenizer: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny-bert/tokenizer.json")).unwrap()).unwrap();
    let id = |name: &&str| tokenizer["model"]["vocab"][name.replace("The", "the")].as_u64().unwrap() as u32;
    let ids: Vec<u32> = names.iter().map(id).collect();
    let row = |numbers: Vec<u32>| Tensor::new(numbers, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let config = TextModelConfig::from_file(fixture("tiny-bert/config.json")).unwrap();
    let checkpoint = Checkpoint::open(fixture("tiny-bert")).unwrap();
    let model = TextModel::load(&config, checkpoint.at("", DType::F32, &Device::Cpu)).unwrap();
    let what = ObserveOptions::default().with_attention_weights(true);
    let forward = ForwardOptions::default().with_observe(&[0, 1], &what);
    let types = row(vec![0, 0, 0, 0, 1, 1, 1, 1]);
    let forwarded = model.forward_with(&row(ids), Some(&types), &AttentionMask::full(), &forward).unwrap();
    for (layer, observed) in forwarded.observed {
        let want = observed.attention_weights.unwrap().get(0).unwrap();
        for head in 0..want.dims()[0] {
            let want = want.get(head).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(maps.weights(layer, head).unwrap(), want);
        }
    }

    // A head on the same model looks alike.
    let one = models::folder(1, serde_json::json!({"id2label": {"0": "LABEL_0"}}));
    let cross = models::cross(one.path()).unwrap();
    let seen = cross.attention("The cat", "a dog sat", &options).unwrap();
    assert_eq!((seen.queries(), seen.weights(1, 0).unwrap()), (maps.queries(), maps.weights(1, 0).unwrap()));
    says(cross.attention("a", "b", &options.clone().with_prompt_name("query")), &["prompt_name is query", "none"]);
    // Cut at 16 tokens, the longer first; nothing is a text too.
    let cut = cross.attention("hello", models::FOX, &options).unwrap();
    assert_eq!(
        (cut.queries().len(), &cut.queries()[..4]),
        (16, &["[CLS]", "hello", "[SEP]", "the"].map(String::from)[..])
    );
    assert_eq!(cross.attention("a", "", &options).unwrap().queries(), ["[CLS]", "a", "[SEP]", "[SEP]"]);
}

/// What distance or the key alone explains does not count; nor do special tokens, punctuation and pieces of words.
#[test]
fn page_opens_on_the_head_with_the_sharpest_pattern() {
    let names = ["[CLS]", "one", "two", "three", ",", "five", "six", "ty", "[SEP]"];
    let n = names.len();
    let marks: Vec<_> =
        (0..n).map(|i| TokenMarks::default().with_special(i == 0 || i == n - 1).with_continues(i == 7)).collect();
    let view = |names: &[&str], heads: &[&dyn Fn(usize, usize) -> f32]| {
        let n = names.len();
        let weights = heads.iter().flat_map(|head| (0..n * n).map(move |i| head(i / n, i % n))).collect();
        let weights = Tensor::from_vec(weights, (heads.len(), n, n), &Device::Cpu).unwrap();
        let maps = AttentionMaps::new(names, names).with_marks(&marks[..n], &marks[..n]).unwrap();
        data(&maps.with_layer(4, &weights).unwrap().html().unwrap())["view"].clone()
    };
    let at = |pairs: &'static [(usize, usize)], weight: f32| {
        move |query: usize, key: usize| if pairs.contains(&(query, key)) { weight } else { 0.01 }
    };
    let distant = |query: usize, key: usize| if key == query + 2 { 0.9 } else { 0.01f32 };
    let same_key = |_: usize, key: usize| if key == 3 { 0.9 } else { 0.01f32 };
    let others = at(&[(0, 5), (5, 8), (1, 4), (4, 1), (7, 1), (1, 7), (2, 3), (3, 3)], 0.9);
    let words = at(&[(5, 1), (6, 3)], 0.5);
    let all: &[&dyn Fn(usize, usize) -> f32] = &[&distant, &same_key, &others, &words];
    assert_eq!(view(&names, all), serde_json::json!({"layer": 0, "head": 3, "token": 5}));
    // Of equal heads the first; neighbors, where there are no other words; nothing.
    assert_eq!(view(&names, &[&words, &words])["head"], 0);
    let neighbors = at(&[(2, 1)], 0.7);
    assert_eq!(view(&names[..3], &[&distant, &neighbors]), serde_json::json!({"layer": 0, "head": 1, "token": 2}));
    assert_eq!(view(&names[..2], &[&distant]), serde_json::Value::Null);
}

/// A few weights elsewhere do not make a head that looks at the next token the sharpest of a long text.
#[test]
fn heads_of_neighbors_are_discounted_in_long_texts() {
    let n = 100;
    let weight = |head: usize, query: usize, key: usize| match (head, query) {
        (0, 10 | 20 | 30) => {
            if key == query + 40 {
                0.95
            } else {
                0.0
            }
        }
        (0, _) => {
            if key == (query + 1).min(n - 1) {
                0.95
            } else {
                0.0
            }
        }
        (_, 5 | 25 | 45 | 65) => {
            if key == query * 37 % n {
                0.6f32
            } else {
                0.004
            }
        }
        _ => 0.01,
    };
    let weights = (0..2 * n * n).map(|i| weight(i / n / n, i / n % n, i % n)).collect();
    let weights = Tensor::from_vec(weights, (2, n, n), &Device::Cpu).unwrap();
    let maps = AttentionMaps::new(&tokens(n), &tokens(n)).with_layer(3, &weights).unwrap();
    assert_eq!(maps.telling_head(), Some([3, 1]));
}
