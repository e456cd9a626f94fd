//! Attention maps with tokens, titles and names of models of any characters, and marks of any number: they come out of
//! the page, the picture and the terminal as text, and the weights as they were given.

use std::io::Read;

use arbitrary::{Result, Unstructured};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention_text::visualize::{AttentionMaps, TerminalColor, TokenMarks};
use candle_core::{Device, Tensor};
use serde_json::Value;

use crate::json::text;
use crate::{message_of, rarely};

pub fn run(u: &mut Unstructured) -> Result<()> {
    let tokens = |u: &mut Unstructured| -> Result<Vec<String>> {
        let most = if rarely(u, 64)? { 70 } else { 5 };
        (0..u.int_in_range(0..=most)?).map(|_| text(u, 4)).collect()
    };
    let queries = tokens(u)?;
    let keys = if u.arbitrary()? { queries.clone() } else { tokens(u)? };
    let title = text(u, 12)?;
    let mut maps = AttentionMaps::new(&queries, &keys).with_title(&title);
    let mut added = Vec::new();
    for _ in 0..u.int_in_range(0..=2)? {
        let layer = *u.choose(&[0, 1, 7, usize::MAX])?;
        let heads: Vec<usize> = if u.arbitrary()? { vec![0, 1] } else { vec![*u.choose(&[0, 3, usize::MAX])?] };
        let seed = u.arbitrary::<u8>()?;
        let weights = weights(seed, heads.len() * queries.len() * keys.len());
        let dims = (heads.len(), queries.len(), keys.len());
        let tensor = Tensor::from_vec(weights.clone(), dims, &Device::Cpu).expect("weights");
        match maps.clone().with_heads(layer, &heads, &tensor) {
            Ok(with) => {
                assert!(!weights.is_empty() && weights.iter().all(|weight| (0.0..=1.001).contains(weight)));
                maps = with;
                added.push((layer, heads, weights));
            }
            Err(error) => drop(message_of(error)),
        }
    }
    let model = text(u, 12)?;
    let maps = described(u, maps.with_model(&model))?;
    let pages = maps.html();
    if added.is_empty() {
        pages.err().map(message_of).expect("an error without layers");
        return Ok(());
    }
    page(&maps, &title, &added, &pages.expect("a page of layers"));
    let (layer, heads, _) = &added[0];
    picture(&maps, heads, &maps.svg(*layer).expect("a picture"));
    maps.svg(5).err().map(message_of).expect("an error for a layer that is not there");
    let color = *u.choose(&[TerminalColor::None, TerminalColor::Ansi256, TerminalColor::TrueColor])?;
    let columns = *u.choose(&[80, 0, 1, 20, usize::MAX])?;
    terminal(&maps.terminal(*layer, heads[0], color, columns).expect("lines"), color);
    Ok(())
}

/// The maps with marks and with what was cut, where their numbers fit.
fn described(u: &mut Unstructured, maps: AttentionMaps) -> Result<AttentionMaps> {
    let marks = |u: &mut Unstructured, fitting: usize| -> Result<Vec<TokenMarks>> {
        let count = if rarely(u, 8)? { u.int_in_range(0..=6)? } else { fitting };
        let mark = |u: &mut Unstructured| -> Result<TokenMarks> {
            let bits: u8 = u.arbitrary()?;
            let marks = TokenMarks::default().with_special(bits & 1 != 0);
            Ok(marks.with_continues(bits & 2 != 0).with_second(bits & 4 != 0))
        };
        (0..count).map(|_| mark(u)).collect()
    };
    let (of_queries, of_keys) = (marks(u, maps.queries().len())?, marks(u, maps.keys().len())?);
    let fits = of_queries.len() == maps.queries().len() && of_keys.len() == maps.keys().len();
    let maps = match maps.clone().with_marks(&of_queries, &of_keys) {
        Ok(with) => with,
        Err(error) => {
            assert!(!fits);
            drop(message_of(error));
            maps
        }
    };
    let total = *u.choose(&[0, 1, 4, 80, 1_014, usize::MAX])?;
    let cut = (0..u.int_in_range(0..=3)?).map(|_| text(u, 12)).collect::<Result<Vec<_>>>()?;
    match maps.clone().with_truncation(total, &cut) {
        Ok(with) => {
            assert_eq!(with.total_tokens(), Some(total));
            Ok(with)
        }
        Err(error) => {
            assert!(total <= maps.queries().len());
            drop(message_of(error));
            Ok(maps)
        }
    }
}

/// Numbers from 0 to 1, of which some are too large, NaN, or nearly nothing.
fn weights(seed: u8, count: usize) -> Vec<f32> {
    let odd = [f32::NAN, 1.0009, 1.01, -0.0, f32::MIN_POSITIVE / 2.0, -1e-9, 1.0, f32::INFINITY];
    let mut weights: Vec<f32> = (0..count).map(|i| ((i * 37 + usize::from(seed) * 11) % 101) as f32 / 100.0).collect();
    if seed > 127
        && let Some(first) = weights.first_mut()
    {
        *first = odd[usize::from(seed) % odd.len()];
    }
    weights
}

/// The part of a text between two others.
fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let rest = &text[text.find(start).expect("its start") + start.len()..];
    &rest[..rest.find(end).expect("its end")]
}

/// A label holds what a token held, but nothing that a terminal or an XML parser would act on.
fn is_printable(label: &str) -> bool {
    !label.chars().any(|c| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
}

fn page(maps: &AttentionMaps, title: &str, added: &[(usize, Vec<usize>, Vec<f32>)], page: &str) {
    // What is no data is the same in every page.
    let heads: usize = added.iter().map(|(_, heads, _)| heads.len()).sum();
    assert_eq!(page.matches("<script").count(), heads + 2);
    assert_eq!(page.matches("</script").count(), heads + 2);
    assert_eq!(page.matches("<!--").count(), 0);
    let data = between(page, "<script type=\"application/json\" id=\"data\">", "</script>");
    let data: Value = serde_json::from_str(data).expect("JSON");
    let list = |value: &Value| -> Vec<String> { serde_json::from_value(value.clone()).expect("a list of labels") };
    assert_eq!(list(&data["queries"]), maps.queries());
    let keys = if data["keys"].is_null() { list(&data["queries"]) } else { list(&data["keys"]) };
    assert_eq!(keys, maps.keys());
    assert!(maps.queries().iter().chain(maps.keys()).all(|label| is_printable(label)));
    let shown = data["title"].as_str().expect("a title");
    assert!(is_printable(shown));
    assert!(title.is_empty() == shown.is_empty());
    let head = between(page, "<title>", "</title>");
    let parsed = format!("<title>{head}</title>");
    let parsed = roxmltree::Document::parse(&parsed).expect("a title without markup");
    let model = data["model"].as_str().expect("a model");
    let names: Vec<&str> = [shown, model].into_iter().filter(|name| !name.is_empty()).collect();
    let expected = if names.is_empty() { "Attention".to_string() } else { names.join(" · ") };
    assert_eq!(parsed.root_element().text(), Some(expected.as_str()));
    assert!(is_printable(model));
    assert_eq!(count(&data["query_marks"]), maps.queries().len());
    assert!(data["key_marks"].is_null() || count(&data["key_marks"]) == maps.keys().len());
    assert_eq!(data["truncation"].is_null(), maps.total_tokens().is_none());
    for cut in data["truncation"]["cut"].as_array().into_iter().flatten() {
        assert!(is_printable(cut["text"].as_str().expect("a text")));
    }
    for (i, (layer, heads, weights)) in added.iter().enumerate() {
        assert_eq!(
            (&data["layers"][i]["layer"], heads.len()),
            (&Value::from(*layer), count(&data["layers"][i]["heads"]))
        );
        let size = maps.queries().len() * maps.keys().len();
        for (at, weights) in weights.chunks(size).enumerate() {
            let packed = between(page, &format!("id=\"w{i}-{at}\">"), "</script>");
            let packed = STANDARD.decode(packed).expect("base64");
            let mut bytes = Vec::new();
            flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut bytes).expect("zlib");
            let (low, high) = bytes.split_at(size);
            for ((low, high), weight) in low.iter().zip(high).zip(weights) {
                let units = f64::from(u16::from_le_bytes([*low, *high]));
                assert!((units / 10_000.0 - f64::from(*weight)).abs() <= 0.500_1e-4);
            }
        }
    }
}

fn count(list: &Value) -> usize {
    list.as_array().map_or(0, Vec::len)
}

/// The picture is XML, its labels are text, and nothing in it is an element that was not meant.
fn picture(maps: &AttentionMaps, heads: &[usize], svg: &str) {
    let document = roxmltree::Document::parse(svg).expect("XML");
    let known = ["svg", "rect", "text", "g", "path", "defs", "linearGradient", "stop", "tspan"];
    let elements = document.descendants().filter(roxmltree::Node::is_element);
    elements.for_each(|element| assert!(known.contains(&element.tag_name().name())));
    assert!(document.descendants().all(|node| !node.is_comment() && !node.is_pi()));
    let texts: Vec<&str> =
        document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|n| n.text()).collect();
    for head in heads {
        assert!(texts.contains(&format!("head {head}").as_str()));
    }
    // With few tokens each has its label, cut at a number of columns.
    if maps.queries().len() <= 16 && maps.keys().len() <= 16 {
        for label in maps.queries() {
            let starts = |text: &str| text.trim_end_matches('…').chars().zip(label.chars()).all(|(a, b)| a == b);
            let found = |text: &&str| starts(text) || text.strip_prefix("##").is_some_and(starts);
            assert!(texts.iter().any(found), "{label}");
        }
    }
}

/// The only escapes are those of colors.
fn terminal(lines: &str, color: TerminalColor) {
    for (i, part) in lines.split('\u{1b}').enumerate() {
        if i > 0 {
            assert!(color != TerminalColor::None);
            let (escape, _) = part.split_once('m').expect("the end of an escape");
            let numbers = escape.strip_prefix('[').expect("a color");
            assert!(numbers.chars().all(|c| c.is_ascii_digit() || c == ';'));
        }
        assert!(part.chars().all(|c| c == '\n' || !c.is_control()));
    }
}
