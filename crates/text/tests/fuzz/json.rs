//! JSON files, damaged.

use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

use crate::rarely;

/// Extreme values of the number types, and ordinary ones.
pub const FLOATS: &[f64] = &[
    0.0,
    -0.0,
    1e-320,
    1e-300,
    1e-40,
    1e-30,
    1e-12,
    1e-6,
    0.1,
    0.5,
    1.0,
    1.5,
    2.0,
    8.0,
    32.0,
    1e4,
    5e5,
    1e30,
    3.4e38,
    1e39,
    1e300,
    f64::MAX,
    -1e-300,
    -1e-6,
    -0.5,
    -1.0,
    -8.0,
    -1e4,
    -1e39,
    f64::MIN,
];

/// A value of any kind; strings are mostly among `words`, keys of objects among `keys`.
pub fn value(u: &mut Unstructured, depth: usize, keys: &[&str], words: &[&str]) -> Result<Value> {
    let deepest = if depth == 0 { 8 } else { 10 };
    Ok(match u.int_in_range(0..=deepest)? {
        0 => Value::Null,
        1 => json!(u.arbitrary::<bool>()?),
        2 => json!(u.int_in_range(0..=16u64)?),
        3 => json!(1u64 << u.int_in_range(0..=63)?),
        4 => json!((1u64 << u.int_in_range(0..=63)?) - 1),
        5 => json!(*u.choose(FLOATS)?),
        6 => json!(*u.choose(words)?),
        7 => json!(*u.choose(&[u64::MAX, u64::MAX - 1, i64::MAX as u64, 1 << 24, (1 << 24) + 1])?),
        8 => json!(text(u, 12)?),
        9 => {
            let count = u.int_in_range(0..=8)?;
            Value::Array((0..count).map(|_| value(u, depth - 1, keys, words)).collect::<Result<_>>()?)
        }
        _ => {
            let count = u.int_in_range(0..=6)?;
            let pair = |_| Ok((u.choose(keys)?.to_string(), value(u, depth - 1, keys, words)?));
            Value::Object((0..count).map(pair).collect::<Result<_>>()?)
        }
    })
}

/// A text of at most `most` characters: ASCII, marks, controls, other scripts, and what an escape must not forget.
pub fn text(u: &mut Unstructured, most: usize) -> Result<String> {
    const PIECES: &[&str] = &[
        "a",
        "b",
        "the",
        " ",
        "A",
        "##a",
        "1",
        ".",
        "[MASK]",
        "[CLS]",
        "<s>",
        "<mask>",
        "▁",
        "\u{301}",
        "\u{200d}",
        "\u{202e}",
        "\u{0}",
        "\u{1b}[31m",
        "\u{1b}]0;x\u{7}",
        "\n",
        "\r",
        "\t",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        "\u{fffe}",
        "<",
        ">",
        "&",
        "\"",
        "'",
        "</script>",
        "<!--",
        "]]>",
        "&amp;",
        "\\u003c",
        "é",
        "ß",
        "İ",
        "漢",
        "字",
        "😀",
        "👨‍👩‍👧",
        "\u{10ffff}",
        "\u{e000}",
        "ﬁ",
        "①",
        "\u{1160}",
        "\u{ad}",
    ];
    let mut text = String::new();
    for _ in 0..u.int_in_range(0..=most)? {
        if rarely(u, 4)? {
            text.push(char::from_u32(u.int_in_range(0..=0x10ffff)?).unwrap_or('\u{fffd}'))
        } else {
            text.push_str(u.choose(PIECES)?)
        }
    }
    Ok(text)
}

/// Replaces, removes or adds a value somewhere in `at`, `count` times.
pub fn damage(u: &mut Unstructured, at: &mut Value, count: usize, keys: &[&str], words: &[&str]) -> Result<()> {
    for _ in 0..count {
        let mut at = &mut *at;
        // Down a random path. It ends inside an object or array, where there is something to replace.
        loop {
            let deeper = match at {
                Value::Object(map) if !map.is_empty() => u.choose_index(map.len())?,
                Value::Array(list) if !list.is_empty() => u.choose_index(list.len())?,
                _ => break,
            };
            let inner = match at {
                Value::Object(map) => map.values().nth(deeper),
                Value::Array(list) => list.get(deeper),
                _ => None,
            };
            let container = inner.is_some_and(|inner| inner.is_object() || inner.is_array());
            if !container || rarely(u, 6)? {
                break;
            }
            at = match at {
                Value::Object(map) => map.values_mut().nth(deeper).expect("chosen among them"),
                Value::Array(list) => &mut list[deeper],
                _ => break,
            };
        }
        match at {
            Value::Object(map) => {
                let known = !map.is_empty() && u.arbitrary()?;
                let key = if known {
                    map.keys().nth(u.choose_index(map.len())?).cloned().unwrap_or_default()
                } else {
                    u.choose(keys)?.to_string()
                };
                if rarely(u, 6)? {
                    map.remove(&key);
                } else {
                    map.insert(key, value(u, 2, keys, words)?);
                }
            }
            Value::Array(list) => {
                let place = u.int_in_range(0..=list.len())?;
                match u.int_in_range(0..=3)? {
                    0 if place < list.len() => drop(list.remove(place)),
                    1 if place < list.len() => list[place] = value(u, 2, keys, words)?,
                    2 if place < list.len() => list.insert(place, list[place].clone()),
                    _ => list.insert(place, value(u, 2, keys, words)?),
                }
            }
            at => *at = value(u, 2, keys, words)?,
        }
    }
    Ok(())
}

/// The text of a file: nearly always that of `json`, else cut, nested deeply, or no JSON.
pub fn file_of(u: &mut Unstructured, json: &Value) -> Result<String> {
    let mut file = json.to_string();
    match u.int_in_range(0..=31)? {
        1 => file = text(u, 16)?,
        2 => file.truncate((0..=file.len() / 2).rev().find(|at| file.is_char_boundary(*at)).unwrap_or(0)),
        3 => file = "[".repeat(10_000),
        4 => file.insert(0, '\u{feff}'),
        _ => {}
    }
    Ok(file)
}
