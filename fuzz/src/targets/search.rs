//! Files of a search index, damaged: an index takes over what is whole and nothing else, and
//! finds with it what plain cosine similarity finds.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use candle_attention_text::search::Index;
use half::f16;
use sha2::Digest;

use crate::file::{Entry, header, safetensors};
use crate::folder::Folder;
use crate::{message_of, rarely};

const SIZE: usize = 4;
const MODEL: &str = "a model";
const TEXTS: [&str; 5] = ["a", "b", "the", "", "a"];

/// The keys of the texts, in the order of the texts.
static KEYS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| TEXTS.iter().map(|text| sha2::Sha256::digest(text)[..16].to_vec()).collect());

pub fn run(u: &mut Unstructured) -> Result<()> {
    let bytes = file(u)?;
    let folder = Folder::new();
    let path = folder.write("index.safetensors", &bytes);
    let mut index = Index::new(&TEXTS, SIZE, MODEL).expect("an index");
    let loaded = match index.load_cached(&path) {
        Ok(count) => count,
        Err(error) => {
            assert!(message_of(error).contains("index.safetensors"));
            assert!(index.is_empty());
            0
        }
    };
    assert_eq!((index.len(), index.missing().len()), (loaded, TEXTS.len() - loaded));
    let query: Vec<f32> = (0..SIZE).map(|_| Ok(u.int_in_range(-8..=8i8)?.into())).collect::<Result<_>>()?;
    let count = u.int_in_range(0..=7)?;
    let hits = index.search(&query, count).expect("hits of finite numbers");
    assert_eq!(hits.len(), count.min(loaded));
    assert!(hits.iter().all(|hit| (-1.0..=1.0).contains(&hit.score) && hit.index < TEXTS.len()));
    assert!(hits.is_sorted_by(|a, b| a.score > b.score || (a.score == b.score && a.index < b.index)));
    if loaded > 0 {
        // Nothing is lost in a file.
        let other = folder.path("again.safetensors");
        index.save(&other).expect("an index saved");
        let mut again = Index::new(&TEXTS, SIZE, MODEL).expect("an index");
        assert_eq!(again.load_cached(&other).expect("what was saved"), loaded);
        assert_eq!(again.search(&query, count).expect("hits"), hits);
    }
    Ok(())
}

/// The file of an index of some of the texts, in which a few things are wrong.
fn file(u: &mut Unstructured) -> Result<Vec<u8>> {
    let rows = u.int_in_range(0..=6usize)?;
    let (mut keys, mut numbers, mut checksums) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rows {
        let mut key = u.choose(&KEYS)?.clone();
        if rarely(u, 8)? {
            key[u.int_in_range(0..=15)?] ^= 1;
        }
        // A unit vector, or any numbers at all.
        let axis = u.int_in_range(0..=SIZE - 1)?;
        for i in 0..SIZE {
            let number = match rarely(u, 16)? {
                true => f16::from_bits(u.arbitrary()?),
                false => f16::from_f32(f32::from(u8::from(i == axis))),
            };
            numbers.extend(number.to_le_bytes());
        }
        // Numbers with a checksum that is right are loaded, and may be none.
        let wrong = u8::from(rarely(u, 16)?);
        let vector = &numbers[numbers.len() - 2 * SIZE..];
        let hash = sha2::Sha256::new().chain_update(&key).chain_update(vector).finalize();
        checksums.extend(hash[..8].iter().map(|byte| byte ^ wrong));
        keys.extend(key);
    }
    let tensor = |name: &str, dtype: &str, columns: usize, data: Vec<u8>| Entry {
        name: name.to_string(),
        dtype: dtype.to_string(),
        shape: vec![rows, columns],
        data: Some(data),
        offsets: None,
    };
    let mut entries = vec![
        tensor("embeddings", "F16", SIZE, numbers),
        tensor("keys", "U8", 16, keys),
        tensor("checksums", "U8", 8, checksums),
    ];
    for _ in 0..u.int_in_range(0..=2)? {
        crate::file::damage(u, &mut entries)?;
    }
    let (mut text, mut data) = header(&entries, 1 << 16).unwrap_or_default();
    let format = *u.choose(&["candle-attention search index 2", "candle-attention search index 2", "another"])?;
    let model = *u.choose(&[MODEL, MODEL, MODEL, MODEL, ""])?;
    let comma = if entries.is_empty() { "" } else { "," };
    let metadata = format!("{{\"__metadata__\":{{\"format\":\"{format}\",\"model\":\"{model}\"}}{comma}");
    if rarely(u, 16)? {
        data.truncate(data.len() / 2);
    } else if !rarely(u, 16)? && !text.is_empty() {
        text.replace_range(..1, &metadata);
    }
    let length = if rarely(u, 16)? { u.arbitrary()? } else { text.len() as u64 };
    Ok(safetensors(&text, &data, length))
}
