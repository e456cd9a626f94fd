//! Files of a search index, damaged: an index takes over what is whole and nothing else, and
//! finds with it what plain cosine similarity finds.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use candle_attention_text::search::Index;
use half::f16;
use sha2::Digest;

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
    let path = folder.write("index", &bytes);
    let mut index = Index::new(&TEXTS, SIZE, MODEL).expect("an index");
    let loaded = match index.load_cached(&path) {
        Ok(count) => count,
        Err(error) => {
            assert!(message_of(error).contains("index"));
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
        let other = folder.path("again");
        index.save(&other).expect("an index saved");
        let mut again = Index::new(&TEXTS, SIZE, MODEL).expect("an index");
        assert_eq!(again.load_cached(&other).expect("what was saved"), loaded);
        assert_eq!(again.search(&query, count).expect("hits"), hits);
    }
    Ok(())
}

/// The file of an index of some of the texts, in which a few things are wrong.
fn file(u: &mut Unstructured) -> Result<Vec<u8>> {
    let version = *u.choose(&["index 3", "index 3", "index 3", "index 3", "index 2", "another"])?;
    let model = *u.choose(&[MODEL, MODEL, MODEL, MODEL, ""])?;
    let model: String = sha2::Sha256::digest(model).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = format!("candle-attention search {version} {model} {SIZE}\n").into_bytes();
    for _ in 0..u.int_in_range(0..=6usize)? {
        let mut row = u.choose(&KEYS)?.clone();
        if rarely(u, 8)? {
            row[u.int_in_range(0..=15)?] ^= 1;
        }
        // A unit vector, or any numbers at all.
        let axis = u.int_in_range(0..=SIZE - 1)?;
        for i in 0..SIZE {
            let number = match rarely(u, 16)? {
                true => f16::from_bits(u.arbitrary()?),
                false => f16::from_f32(f32::from(u8::from(i == axis))),
            };
            row.extend(number.to_le_bytes());
        }
        // Numbers with a checksum that is right are loaded, if they are a unit vector.
        let wrong = u8::from(rarely(u, 16)?);
        let hash = sha2::Sha256::digest(&row);
        row.extend(hash[..8].iter().map(|byte| byte ^ wrong));
        file.extend(row);
    }
    if rarely(u, 16)? {
        file.truncate(u.int_in_range(0..=file.len())?);
    }
    Ok(file)
}
