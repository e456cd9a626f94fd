//! The index and its file.

use std::sync::Mutex;

use candle_attention::Error;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::search::{Index, Vectors};
use candle_attention_text::{EncodeOptions, SentenceEncoder, fingerprint};
use candle_core::{DType, Device, Tensor};
use half::f16;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{fixture, says};
use crate::models::lines;
use crate::models::tiny;

/// The largest change of a score by rounding to f16.
const ROUNDED: f64 = 1e-3;

fn encoder() -> SentenceEncoder {
    SentenceEncoder::from_folder(fixture("tiny-bert"), DType::F32, &Device::Cpu).unwrap()
}

fn borrowed(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

fn filled<'a>(texts: &'a [&'a str], encoder: &SentenceEncoder) -> Index<'a> {
    let mut index = Index::new(texts, encoder.embedding_size(), "tiny").unwrap();
    assert_eq!(index.embed(encoder, &EncodeOptions::default(), |_| Ok(())).unwrap(), texts.len());
    index
}

/// The product of each row with the query at length 1, in f64.
fn brute_force(rows: &Tensor, query: &[f32]) -> Vec<f64> {
    let rows = rows.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
    let length = query.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let product = |row: &Vec<f64>| row.iter().zip(query).map(|(a, &b)| a * f64::from(b)).sum::<f64>() / length;
    rows.iter().map(product).collect()
}

#[test]
fn order_and_scores_equal_brute_force() {
    // A model that does not normalise: the cosine is not its product.
    let folder = tiny();
    let modules = std::fs::read_to_string(folder.path().join("modules.json")).unwrap();
    let mut modules: Vec<serde_json::Value> = serde_json::from_str(&modules).unwrap();
    modules.pop();
    std::fs::write(folder.path().join("modules.json"), serde_json::to_string(&modules).unwrap()).unwrap();
    let encoder = SentenceEncoder::from_folder(folder.path(), DType::F32, &Device::Cpu).unwrap();
    let texts = lines(2500);
    let texts = borrowed(&texts);
    let index = filled(&texts, &encoder);
    let path = folder.path().join("index");
    index.save(&path).unwrap();
    // The file has a line and then rows: a key of 16 bytes, the numbers, a checksum of 8 bytes.
    let bytes = std::fs::read(&path).unwrap();
    let rows = bytes[bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1..].chunks_exact(16 + 2 * 24 + 8);
    let numbers = |row: &[u8]| row[16..64].as_chunks().0.iter().map(|&n| f16::from_le_bytes(n).to_f32()).collect();
    let kept: Vec<Vec<f32>> = rows.map(numbers).collect();
    let kept = Tensor::new(kept, &Device::Cpu).unwrap();
    let exact = encoder.encode(&texts, &EncodeOptions::default()).unwrap();
    let lengths = exact.to_dtype(DType::F64).unwrap().sqr().unwrap().sum_keepdim(1).unwrap().sqrt().unwrap();
    assert!((lengths.get(0).unwrap().to_vec1::<f64>().unwrap()[0] - 1.0).abs() > 0.1);
    let exact = exact.to_dtype(DType::F64).unwrap().broadcast_div(&lengths).unwrap();
    let mut worst = 0f64;
    for text in ["the cat", "hello world", "zebra"] {
        let query = encoder.encode(&[text], &EncodeOptions::default()).unwrap().get(0).unwrap();
        let query = query.to_vec1::<f32>().unwrap();
        let (kept, exact) = (brute_force(&kept, &query), brute_force(&exact, &query));
        for top_k in [0, 1, 10, 2499, 2500, 4000] {
            let found = index.search(&query, top_k).unwrap();
            assert_eq!(found.len(), top_k.min(texts.len()));
            let mut want: Vec<usize> = (0..texts.len()).collect();
            want.sort_by(|&a, &b| kept[b].total_cmp(&kept[a]));
            for (hit, &want) in found.iter().zip(&want) {
                // Another text only where f32 cannot tell the two apart.
                assert!((kept[hit.index] - kept[want]).abs() < 1e-6, "{text}: {hit:?}, want text {want}");
                assert!((f64::from(hit.score) - kept[hit.index]).abs() < 1e-6, "{text}: {hit:?}");
                worst = worst.max((f64::from(hit.score) - exact[hit.index]).abs());
            }
            let mut seen: Vec<usize> = found.iter().map(|hit| hit.index).collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), found.len());
        }
    }
    println!("f16 moves a score by {worst:e} at most, {} numbers", encoder.embedding_size());
    assert!(worst < ROUNDED);
    let itself = encoder.encode(&texts[77..78], &EncodeOptions::default()).unwrap().get(0).unwrap();
    assert_eq!(index.search(&itself.to_vec1().unwrap(), 1).unwrap()[0].index, 77);
    says(index.search(&[1.0; 23], 1), &["the embedding of the query has shape [23], expected (24)"]);
    says(index.search(&[f32::NAN; 24], 1), &["the embedding of the query is not finite"]);
    says(Index::new(&texts, 0, "tiny"), &["the size of an embedding is 0"]);
    assert!(Index::new(&texts, 24, "tiny").unwrap().search(&[1.0; 24], 5).unwrap().is_empty());
}

#[test]
fn texts_of_equal_scores_are_in_their_own_order() {
    let encoder = encoder();
    let texts = ["hello world", "the cat", "hello world", "the cat", "the cat"];
    let index = filled(&texts, &encoder);
    let query = encoder.encode(&["the cat"], &EncodeOptions::default()).unwrap().get(0).unwrap().to_vec1().unwrap();
    for top_k in 1..=5 {
        let found: Vec<usize> = index.search(&query, top_k).unwrap().iter().map(|hit| hit.index).collect();
        assert_eq!(found, [1, 3, 4, 0, 2][..top_k]);
    }
}

#[test]
fn only_new_texts_are_embedded() {
    let (encoder, folder) = (encoder(), tempfile::tempdir().unwrap());
    let path = folder.path().join("index");
    let texts = lines(1500);
    let texts = borrowed(&texts);
    let before = filled(&texts[..1200], &encoder);
    before.save(&path).unwrap();

    // The first 100 are gone, 300 are new.
    let mut index = Index::new(&texts[100..], 24, "tiny").unwrap();
    assert_eq!(index.load_cached(&path).unwrap(), 1100);
    assert_eq!(index.missing(), (1100..1400).collect::<Vec<_>>());
    let counts = Mutex::new(Vec::new());
    let on_progress = |done: usize, all: usize| counts.lock().unwrap().push((done, all));
    let options = EncodeOptions::default().with_batch_size(100).with_on_progress(&on_progress);
    let mut chunks = Vec::new();
    let after = |index: &Index| {
        chunks.push(index.len());
        Ok(())
    };
    assert_eq!(index.embed(&encoder, &options, after).unwrap(), 300);
    assert_eq!((*counts.lock().unwrap()).clone(), [(100, 300), (200, 300), (300, 300)]);
    assert_eq!(chunks, [1300, 1400]);
    assert_eq!(index.embed(&encoder, &options, |_| panic!("nothing to do")).unwrap(), 0);
    assert_eq!((counts.lock().unwrap().len(), index.missing().len()), (3, 0));

    // What was taken over and what was added give what one run gives.
    let whole = filled(&texts[100..], &encoder);
    let query = encoder.encode(&["the cat"], &EncodeOptions::default()).unwrap().get(0).unwrap().to_vec1().unwrap();
    assert_eq!(index.search(&query, 1400).unwrap(), whole.search(&query, 1400).unwrap());
    // An error of the caller's ends it, and what was embedded stays.
    let mut stopped = Index::new(&texts, 24, "tiny").unwrap();
    let stop = |_: &Index| Err(Error::Tokenizer("enough".to_string()));
    says(stopped.embed(&encoder, &options, stop), &["enough"]);
    assert_eq!(stopped.len(), 200);
}

/// Indexes of any texts share a file: what one of them saves, the others need not embed, and nothing is written twice.
#[test]
fn a_file_is_shared_and_only_grows() {
    let (encoder, folder) = (encoder(), tempfile::tempdir().unwrap());
    let path = folder.path().join("index");
    let length = || std::fs::metadata(&path).unwrap().len();
    let texts = ["one", "two", "three", "four"];
    filled(&texts[..2], &encoder).save(&path).unwrap();
    let before = length();
    filled(&texts[1..], &encoder).save(&path).unwrap();
    assert_eq!(length(), before + 2 * (16 + 2 * 24 + 8));
    filled(&texts, &encoder).save(&path).unwrap();
    assert_eq!(length(), before + 2 * (16 + 2 * 24 + 8));
    assert_eq!(Index::new(&texts, 24, "tiny").unwrap().load_cached(&path).unwrap(), 4);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

/// Whole rows are loaded, and saving adds what is missing.
#[test]
fn damaged_rows_are_passed_over_and_written_again() {
    let (encoder, folder) = (encoder(), tempfile::tempdir().unwrap());
    let path = folder.path().join("index");
    let texts = ["one", "two", "three"];
    let index = filled(&texts, &encoder);
    index.save(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    let (row, start) = (16 + 2 * 24 + 8, good.iter().position(|byte| *byte == b'\n').unwrap() + 1);
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Index::new(&texts, 24, "tiny").unwrap().load_cached(&path).unwrap()
    };
    let check = |bytes: &[u8], rows: usize| {
        assert_eq!(load(bytes), rows);
        index.save(&path).unwrap();
        assert_eq!(load(&std::fs::read(&path).unwrap()), 3);
    };
    (start..good.len()).for_each(|length| check(&good[..length], (length - start) / row));
    for byte in start..good.len() {
        let mut flipped = good.clone();
        flipped[byte] ^= 1;
        check(&flipped, 2);
    }
    // A row that is no unit vector, with a checksum that is right.
    for number in [f16::NAN, f16::from_f32(2.0)] {
        let mut made = good[start..start + row - 8].to_vec();
        made[16..18].copy_from_slice(&number.to_le_bytes());
        made.extend_from_slice(&Sha256::digest(&made)[..8]);
        check(&[&good[..start], &made, &good[start + row..]].concat(), 2);
    }
}

#[test]
fn foreign_files_are_errors_and_stay() {
    let (encoder, folder) = (encoder(), tempfile::tempdir().unwrap());
    let (path, texts) = (folder.path().join("index"), ["one", "two", "three"]);
    let index = filled(&texts, &encoder);
    index.save(&path).unwrap();
    let good = std::fs::read(&path).unwrap();
    let fails = |bytes: &[u8], model: &str, part: &str| {
        std::fs::write(&path, bytes).unwrap();
        let mut other = Index::new(&texts, 24, model).unwrap();
        says(other.load_cached(&path), &["index: ", part]);
        assert!(other.is_empty());
        if !bytes.is_empty() {
            says(other.save(&path), &["index: ", part]);
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
        }
    };
    fails(&good, "large", "is not a search index of this model");
    fails(
        &good.iter().map(|byte| if *byte == b'3' { b'9' } else { *byte }).collect::<Vec<_>>(),
        "tiny",
        "and version of this crate",
    );
    for foreign in
        [&b""[..], &[0xFF; 4096], b"candle-attention", &std::fs::read(fixture("tiny-bert/model.safetensors")).unwrap()]
    {
        fails(foreign, "tiny", "is not a search index");
    }
    says(Index::new(&texts, 24, "tiny").unwrap().load_cached(folder.path().join("no")), &["no: No such file"]);
    says(index.save(folder.path()), &["not a regular file"]);
    says(index.save(folder.path().join("no/index")), &["index: No such file"]);
    std::fs::write(&path, "").unwrap();
    index.save(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), good);
}

#[test]
fn fingerprint_depends_on_the_loaded_files_alone() {
    let own = fingerprint(fixture("tiny-bert")).unwrap();
    assert_eq!(own.len(), 64);
    let changed = |file: &str| {
        let folder = tiny();
        let mut bytes = std::fs::read(folder.path().join(file)).unwrap_or_default();
        bytes.push(b' ');
        std::fs::write(folder.path().join(file), bytes).unwrap();
        fingerprint(folder.path()).unwrap()
    };
    let files = ["model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json", "modules.json"];
    let mut all: Vec<String> = files.map(changed).into_iter().chain([own.clone()]).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), files.len() + 1);
    assert_eq!(changed("README.md"), own);
    assert_eq!(fingerprint(tiny().path()).unwrap(), own);
    let renamed = tiny();
    let path = |name: &str| renamed.path().join(name);
    std::fs::rename(path("sentence_bert_config.json"), path("sentence_other_config.json")).unwrap();
    assert_ne!(fingerprint(renamed.path()).unwrap(), own);
    // Shards of any name that the index lists.
    let sharded = tiny();
    let path = |name: &str| sharded.path().join(name);
    std::fs::rename(path("model.safetensors"), path("model-1.bin")).unwrap();
    let tensors = Checkpoint::open(path("model-1.bin")).unwrap();
    let map: serde_json::Map<String, Value> = tensors.names().map(|name| (name.into(), "model-1.bin".into())).collect();
    std::fs::write(path("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
    let before = fingerprint(sharded.path()).unwrap();
    let mut bytes = std::fs::read(path("model-1.bin")).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path("model-1.bin"), bytes).unwrap();
    assert_ne!(fingerprint(sharded.path()).unwrap(), before);
    // The base model of an adapter.
    let (base, adapted) = (tiny(), tempfile::tempdir().unwrap());
    crate::common::programs::copy_folder(&fixture("lora/sentences"), adapted.path());
    let config = adapted.path().join("adapter_config.json");
    let mut keys: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    keys["base_model_name_or_path"] = base.path().to_str().unwrap().into();
    std::fs::write(&config, keys.to_string()).unwrap();
    let before = fingerprint(adapted.path()).unwrap();
    let weights = base.path().join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(weights, bytes).unwrap();
    assert_ne!(fingerprint(adapted.path()).unwrap(), before);
    says(fingerprint("/no/such/folder"), &["/no/such/folder: No such file"]);
}

#[test]
fn wrong_vectors_are_named() {
    let mut vectors = Vectors::new(3).unwrap();
    vectors.push(&[1.0, 2.0, 2.0]).unwrap();
    let message = |result: candle_attention::Result<()>| result.unwrap_err().to_string();
    assert_eq!(message(vectors.push(&[1.0])), "vector 1 has shape [1], expected (3)");
    assert_eq!(message(vectors.push(&[1.0, f32::NAN, 0.0])), "vector 1 is not finite, expected finite numbers");
    let query = vectors.search(&[0.0; 2], 1).map(drop);
    assert_eq!(message(query), "the embedding of the query has shape [2], expected (3)");
    assert_eq!(message(Vectors::new(0).map(drop)), "the size of an embedding is 0, expected at least 1");
    let other = message(vectors.append(Vectors::new(2).unwrap()));
    assert_eq!(other, "the size of the vectors is 2, expected 3");
    assert_eq!(vectors.len(), 1);
}

#[test]
fn equal_scores_keep_their_order() {
    let mut vectors = Vectors::new(2).unwrap();
    for vector in [[0.0, 1.0], [5.0, 0.0], [0.0, 0.0], [2.0, 0.0], [-1.0, 0.0]] {
        vectors.push(&vector).unwrap();
    }
    let found: Vec<_> = vectors.search(&[1.0, 0.0], 9).unwrap().iter().map(|hit| (hit.index, hit.score)).collect();
    assert_eq!(found, [(1, 1.0), (3, 1.0), (0, 0.0), (2, 0.0), (4, -1.0)]);
    assert!(vectors.search(&[1.0, 0.0], 0).unwrap().is_empty());
}
