//! The cache is shared with other programs: what is in it is not taken away, and never half there.

use std::sync::atomic::{AtomicBool, Ordering};

use candle_attention_text::{EncodeOptions, SentenceEncoder, download};
use candle_core::{DType, Device};

use super::server::{Answer, COMMIT, Hub, ID, found, git_hash, respond};
use crate::common::says;

/// A tiny safetensors file with one tensor of this dtype.
fn one_tensor(dtype: &str) -> Vec<u8> {
    let header = format!(r#"{{"x":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,4]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat()
}

/// A newer version of the format, or a newer dtype, is no reason to take 10 GB from another program.
#[test]
fn a_whole_file_that_this_version_cannot_read_stays() {
    let hub = Hub::start();
    let weights = one_tensor("F4_OF_TOMORROW");
    hub.set("model.safetensors", Answer::Whole(weights.clone()));
    let blob = hub.repository().join("blobs").join(git_hash(&weights));
    says(download(ID, &hub.options()), &["model.safetensors"]);
    assert_eq!(std::fs::read(&blob).unwrap(), weights);
    // Nor is it downloaded again: what the hub would send now is not looked at.
    let headers = found(&weights);
    let garbage = vec![b'?'; weights.len()];
    hub.set(
        "model.safetensors",
        Answer::custom(move |request, stream| {
            respond(request, stream, "200 OK", &headers, &garbage);
        }),
    );
    let error = download(ID, &hub.options()).unwrap_err();
    assert!(matches!(error, candle_attention::Error::File { .. }), "{error}");
    assert_eq!(std::fs::read(&blob).unwrap(), weights);
}

/// A cut file that another program left, under the name of the whole one.
#[cfg(unix)] // On Windows the files of a model are copies, not links to blobs.
#[test]
fn a_blob_that_is_not_what_its_name_says_is_brought_again() {
    for file in ["model.safetensors", "tokenizer.json", "modules.json", "config.json"] {
        let hub = Hub::start();
        let folder = download(ID, &hub.options()).unwrap();
        let whole = hub.bytes(file);
        let blob = hub.repository().join("blobs").join(git_hash(&whole));
        for (broken, options) in [
            (whole[..whole.len() / 2].to_vec(), hub.options()),
            (whole[..whole.len() / 2].to_vec(), hub.options().with_revision(COMMIT)),
            (vec![b'?'; whole.len()], hub.options()),
            (vec![b'?'; whole.len()], hub.options().with_revision(COMMIT)),
        ] {
            std::fs::write(&blob, broken).unwrap();
            assert_eq!(download(ID, &options).unwrap(), folder, "{file}");
            assert_eq!(std::fs::read(&blob).unwrap(), whole, "{file}");
        }
    }
}

/// Where the name is no hash, the size tells that a blob was cut: of weights, and of the first file, whose commit is
/// asked for.
#[cfg(unix)]
#[test]
fn a_cut_blob_of_an_opaque_name_is_brought_again() {
    for (file, name) in [("model.safetensors", "5f2a3c1d-2f1"), ("modules.json", "5f2a3c1d-2f2")] {
        let hub = Hub::start();
        let whole = hub.bytes(file);
        let (headers, bytes) = (format!("etag: \"{name}\"\r\nx-repo-commit: {COMMIT}\r\n"), whole.clone());
        hub.set(file, Answer::custom(move |request, stream| respond(request, stream, "200 OK", &headers, &bytes)));
        let folder = download(ID, &hub.options()).unwrap();
        let blob = hub.repository().join("blobs").join(name);
        std::fs::write(&blob, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(download(ID, &hub.options()).unwrap(), folder);
        assert_eq!(std::fs::read(&blob).unwrap(), whole, "{file}");
    }
}

/// Nothing outside the cache is deleted or overwritten, wherever a link of the cache leads.
#[cfg(unix)]
#[test]
fn what_a_link_leads_to_stays() {
    let hub = Hub::start();
    download(ID, &hub.options()).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let mine = outside.path().join("mine.safetensors");
    std::fs::write(&mine, "not safetensors").unwrap();
    let weights = hub.bytes("model.safetensors");
    let blob = hub.repository().join("blobs").join(git_hash(&weights));
    std::fs::remove_file(&blob).unwrap();
    std::os::unix::fs::symlink(&mine, &blob).unwrap();
    download(ID, &hub.options()).unwrap();
    assert_eq!(std::fs::read(&mine).unwrap(), b"not safetensors");
    assert_eq!(std::fs::read(&blob).unwrap(), weights);
}

/// Offline nothing can be brought again, so nothing is changed.
#[cfg(unix)]
#[test]
fn offline_changes_nothing() {
    let hub = Hub::start();
    download(ID, &hub.options()).unwrap();
    let blob = hub.repository().join("blobs").join(git_hash(&hub.bytes("model.safetensors")));
    std::fs::write(&blob, "cut").unwrap();
    let before = hub.request_count();
    assert!(download(ID, &hub.options().with_offline(true)).is_err());
    assert_eq!(std::fs::read(&blob).unwrap(), b"cut");
    assert_eq!(hub.request_count(), before);
}

fn length(encoder: &SentenceEncoder) -> f32 {
    let vector = encoder.encode(&["a cat"], &EncodeOptions::default()).unwrap();
    vector.sqr().unwrap().sum_all().unwrap().sqrt().unwrap().to_scalar().unwrap()
}

/// One thread downloads again and again, another loads: the model always has its normalization.
#[test]
fn a_model_is_loaded_whole_while_it_is_downloaded() {
    let hub = Hub::start();
    download(ID, &hub.options()).unwrap();
    let done = AtomicBool::new(false);
    let lengths = std::thread::scope(|scope| {
        let downloads = scope.spawn(|| {
            let mut downloads = 0;
            while !done.load(Ordering::Relaxed) {
                downloads += usize::from(download(ID, &hub.options()).is_ok());
            }
            downloads
        });
        let options = hub.options().with_offline(true);
        let load = || SentenceEncoder::from_hub(ID, &options, DType::F32, &Device::Cpu).map(|encoder| length(&encoder));
        let lengths: Vec<_> = (0..40).map(|_| load()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(downloads.join().unwrap() > 0);
        lengths
    });
    for length in lengths {
        let length = length.unwrap();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
}

/// Other programs remove a link and make it again. The file that is missing meanwhile is never taken for absent.
#[cfg(unix)]
#[test]
fn a_model_is_loaded_whole_or_not_while_others_replace_its_links() {
    let hub = Hub::start();
    let folder = download(ID, &hub.options()).unwrap();
    let target = std::fs::read_link(folder.join("modules.json")).unwrap();
    let done = AtomicBool::new(false);
    let loaded: Vec<f32> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let _ = std::fs::remove_file(folder.join("modules.json"));
                std::thread::yield_now();
                let _ = std::os::unix::fs::symlink(&target, folder.join("modules.json"));
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        let load = || SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu);
        let loaded = (0..60).filter_map(|_| load().ok()).map(|encoder| length(&encoder)).collect();
        done.store(true, Ordering::Relaxed);
        loaded
    });
    assert!(!loaded.is_empty());
    assert!(loaded.iter().all(|length| (length - 1.0).abs() < 1e-4), "{loaded:?}");
}

/// A commit never changes: who pins one gets what was proven, whatever a mirror that was asked for a branch says later.
#[cfg(unix)]
#[test]
fn a_proven_file_of_a_commit_is_not_replaced() {
    let hub = Hub::start();
    let folder = download(ID, &hub.options()).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let (whole, hash) = (hub.bytes(file), git_hash(&hub.bytes(file)));
        // By an opaque name; by the upper case of its hash, which is the same file on some systems, with other content.
        for etag in ["5f2a3c1d-2f1".to_string(), hash.to_ascii_uppercase()] {
            let headers = format!("etag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\n");
            hub.set(
                file,
                Answer::custom(move |request, stream| respond(request, stream, "200 OK", &headers, b"{\"evil\": 1}")),
            );
            let _ = download(ID, &hub.options());
            assert_eq!(std::fs::read(folder.join(file)).unwrap(), whole, "{file} by {etag}");
            assert!(!hub.repository().join("blobs").join(hash.to_ascii_uppercase()).exists());
        }
        hub.set(file, Answer::Whole(whole));
    }
}
