//! A hub on its bad days: what is not proven whole stays out of the cache, and nothing waits for ever.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use candle_attention_text::{SentenceEncoder, download};
use candle_core::{DType, Device};

use super::server::{Answer, COMMIT, Hub, ID, LISTING, Request, found, git_hash, respond, respond_raw};
use crate::common::says;

/// Every blob of the cache is the content that its name says. What hf-hub leaves of a download that broke off has
/// another name.
fn assert_cache_is_whole(hub: &Hub) {
    for entry in std::fs::read_dir(hub.repository().join("blobs")).into_iter().flatten().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".incomplete") {
            continue;
        }
        assert_eq!(git_hash(&std::fs::read(entry.path()).unwrap()), name);
    }
}

fn loads(hub: &Hub) -> bool {
    SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).is_ok()
}

type Fault = fn(&[u8], &Request, &mut TcpStream);

/// Ways in which something else than the file arrives.
const FAULTS: [(&str, Fault); 9] = [
    ("cut", |bytes, request, stream| {
        let headers = format!("{}content-length: {}\r\n", found(bytes), bytes.len());
        respond_raw(request, stream, "200 OK", &headers, &bytes[..bytes.len() / 2]);
    }),
    ("half, as if that were all", |bytes, request, stream| {
        respond(request, stream, "200 OK", &found(bytes), &bytes[..bytes.len() / 2]);
    }),
    ("half of the announced size", |bytes, request, stream| {
        let headers = format!("{}x-linked-size: {}\r\n", found(bytes), bytes.len());
        respond(request, stream, "200 OK", &headers, &bytes[..bytes.len() / 2]);
    }),
    ("half, no length", |bytes, request, stream| {
        respond_raw(request, stream, "200 OK", &found(bytes), &bytes[..bytes.len() / 2]);
    }),
    ("too much, no length", |bytes, request, stream| {
        respond_raw(request, stream, "200 OK", &found(bytes), &[bytes, b" "].concat());
    }),
    ("another file of this size", |bytes, request, stream| {
        respond(request, stream, "200 OK", &found(bytes), &vec![b' '; bytes.len()]);
    }),
    ("a page with an error", |bytes, request, stream| {
        respond(request, stream, "501 Not Implemented", &found(bytes), b"<html>Sorry</html>");
    }),
    ("a refusal", |bytes, request, stream| {
        respond(request, stream, "403 Forbidden", &found(bytes), b"<html>Access denied</html>");
    }),
    ("a page in place of the content", |bytes, request, stream| match request.method.as_str() {
        "HEAD" => respond(request, stream, "200 OK", &found(bytes), bytes),
        _ => respond(request, stream, "403 Forbidden", "", b"<html>Access denied</html>"),
    }),
];

#[test]
fn what_is_not_proven_whole_is_an_error_and_not_cached() {
    for file in ["modules.json", "config.json", "tokenizer.json", "model.safetensors"] {
        let hub = Hub::start();
        let whole = hub.bytes(file);
        // A space after JSON shows only in its length.
        for (name, fault) in
            FAULTS.into_iter().filter(|(name, _)| !(file.ends_with("json") && name.starts_with("too much")))
        {
            let bytes = whole.clone();
            hub.set(file, Answer::custom(move |request, stream| fault(&bytes, request, stream)));
            let error = download(ID, &hub.options()).err().unwrap_or_else(|| panic!("{file}: {name}")).to_string();
            assert!(error.contains("hub: tiny/bert") && error.contains(&format!("`{file}`")), "{name}: {error}");
            assert_cache_is_whole(&hub);
        }
        // What arrived of it did no harm: the next call brings the whole file.
        hub.set(file, Answer::Whole(whole));
        assert!(loads(&hub), "{file}");
        assert_cache_is_whole(&hub);
    }
}

/// Some mirrors announce no length, or name files by something that is no hash of them.
#[test]
fn mirrors_need_neither_lengths_nor_hashes() {
    let hub = Hub::start();
    let bytes = hub.bytes("config.json");
    hub.set(
        "config.json",
        Answer::custom({
            let bytes = bytes.clone();
            move |request, stream| respond_raw(request, stream, "200 OK", &found(&bytes), &bytes)
        }),
    );
    hub.set(
        "tokenizer.json",
        Answer::custom({
            let bytes = hub.bytes("tokenizer.json");
            let headers = format!("etag: W/\"5f2a3c1d-2f1\"\r\nx-repo-commit: {COMMIT}\r\n");
            move |request, stream| respond(request, stream, "200 OK", &headers, &bytes)
        }),
    );
    assert!(loads(&hub));
}

/// Some mirrors make an ETag of time and length: the second file would be the first.
#[cfg(unix)] // On Windows files are copies, which do not say of what.
#[test]
fn two_files_of_one_etag_that_is_no_hash_are_an_error() {
    let hub = Hub::start();
    for file in ["modules.json", "config.json"] {
        let (bytes, headers) = (hub.bytes(file), format!("etag: \"6b0400a3-9f8\"\r\nx-repo-commit: {COMMIT}\r\n"));
        hub.set(file, Answer::custom(move |request, stream| respond(request, stream, "200 OK", &headers, &bytes)));
    }
    for _ in 0..2 {
        says(download(ID, &hub.options()), &["hub: tiny/bert: ", "`modules.json`", "`config.json`", "have one ETag"]);
    }
}

/// Large files are known by their SHA-256.
#[test]
fn large_files_are_checked_against_their_sha_256() {
    use sha2::Digest;
    let hub = Hub::start();
    let bytes = hub.bytes("model.safetensors");
    let hash: String = sha2::Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let headers = format!("etag: \"0123456789\"\r\nx-linked-etag: \"{hash}\"\r\nx-repo-commit: {COMMIT}\r\n");
    for flip in [true, false] {
        let (mut bytes, headers) = (bytes.clone(), headers.clone());
        if flip {
            *bytes.last_mut().unwrap() ^= 1;
        }
        hub.set(
            "model.safetensors",
            Answer::custom(move |request, stream| {
                respond(request, stream, "200 OK", &headers, &bytes);
            }),
        );
        let result = download(ID, &hub.options());
        if flip {
            says(result, &["`model.safetensors`", "SHA-256", &hash])
        } else {
            assert!(result.is_ok() && hub.repository().join("blobs").join(&hash).is_file())
        }
    }
}

#[test]
fn a_hub_that_is_busy_is_asked_again() {
    let hub = Hub::start();
    let (bytes, asked) = (hub.bytes("config.json"), Arc::new(AtomicUsize::new(0)));
    let counter = asked.clone();
    hub.set(
        "config.json",
        Answer::custom(move |request, stream| {
            match counter.fetch_add(1, Ordering::Relaxed) {
                0 => respond(request, stream, "503 Service Unavailable", "", b"busy"),
                1 => {} // closes without an answer
                _ => respond(request, stream, "200 OK", &found(&bytes), &bytes),
            }
        }),
    );
    assert!(loads(&hub));
    // Three times HEAD, and once GET.
    assert_eq!(asked.load(Ordering::Relaxed), 4);
}

/// A branch whose hub is down is what it was when it was last seen.
#[test]
fn a_hub_that_is_down_leaves_what_is_in_the_cache() {
    let hub = Hub::start();
    let folder = download(ID, &hub.options()).unwrap();
    hub.set(LISTING, Answer::custom(|request, stream| respond(request, stream, "502 Bad Gateway", "", b"")));
    assert_eq!(download(ID, &hub.options()).unwrap(), folder);
    let other = tempfile::tempdir().unwrap();
    says(download(ID, &hub.options().with_cache_dir(other.path())), &["revision `main`", "502"]);
}

/// Only the hub's own word makes a file absent: without `modules.json` a model gives other embeddings.
#[test]
fn absence_must_be_said_by_the_hub_itself() {
    let not_found = || {
        Answer::custom(|request, stream| {
            respond(request, stream, "404 Not Found", &format!("x-repo-commit: {COMMIT}\r\n"), b"<html>nginx</html>");
        })
    };
    let hub = Hub::start();
    hub.set(LISTING, not_found());
    says(download(ID, &hub.options()), &["hub: tiny/bert: ", "404", "x-error-code"]);
    let hub = Hub::start();
    hub.set("modules.json", not_found());
    for _ in 0..2 {
        says(download(ID, &hub.options()), &["`modules.json`", "lists it"]);
    }

    let (hub, store) = (Hub::start(), Hub::start());
    let address = format!("{}/elsewhere/no-such-file", store.endpoint);
    let bytes = hub.bytes("modules.json");
    hub.set(
        "modules.json",
        Answer::custom(move |request, stream| {
            respond(request, stream, "302 Found", &format!("{}location: {address}\r\n", found(&bytes)), b"");
        }),
    );
    says(download(ID, &hub.options()), &["`modules.json`", "not JSON"]);
    assert!(!hub.repository().join(".no_exist").exists());
}

/// A server that says nothing, stops in the headers, stops in the body, or sends a byte now and then.
#[test]
fn a_server_that_hangs_is_left() {
    let hangs: [fn(&[u8], &mut TcpStream); 4] = [
        |_, _| {},
        |_, stream| drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-le")),
        |bytes, stream| {
            let head = format!("HTTP/1.1 200 OK\r\n{}content-length: {}\r\n\r\n", found(bytes), bytes.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&bytes[..9]));
        },
        |bytes, stream| {
            let head = format!("HTTP/1.1 200 OK\r\n{}content-length: {}\r\n\r\n", found(bytes), bytes.len());
            let _ = stream.write_all(head.as_bytes());
            for byte in bytes {
                let _ = stream.write_all(&[*byte]).and_then(|()| stream.flush());
                std::thread::sleep(Duration::from_millis(20));
            }
        },
    ];
    for hang in hangs {
        let hub = Hub::start();
        let folder = download(ID, &hub.options()).unwrap();
        let bytes = hub.bytes("tokenizer.json");
        std::fs::remove_file(folder.join("tokenizer.json")).unwrap();
        std::fs::remove_file(hub.repository().join("blobs").join(git_hash(&bytes))).unwrap();
        hub.set(
            "tokenizer.json",
            Answer::custom(move |_, stream| {
                hang(&bytes, stream);
                std::thread::sleep(Duration::from_secs(600));
            }),
        );
        // Only the missing file is asked for, so that the short time cannot end another request.
        let options = hub.options().with_revision(COMMIT).with_timeout(Duration::from_millis(300));
        says(download(ID, &options), &["hub: tiny/bert: `tokenizer.json`"]);
        assert_cache_is_whole(&hub);
    }
}

#[test]
fn eight_threads_bring_one_model_at_once() {
    let hub = Hub::start();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| download(ID, &hub.options()).unwrap())).collect();
        threads.into_iter().for_each(|thread| drop(thread.join().unwrap()));
    });
    assert!(loads(&hub));
    assert_cache_is_whole(&hub);
    let weights =
        hub.requests().iter().filter(|line| line.starts_with("GET") && line.contains("model.safetensors")).count();
    assert_eq!(weights, 1, "the others wait for the first");
}

/// A download that breaks off leaves the model that was there before, whole and offline.
#[test]
fn a_broken_update_leaves_the_model_of_before() {
    let hub = Hub::start();
    let old = download(ID, &hub.options()).unwrap();
    hub.set_commit(&COMMIT.replace('0', "f"));
    let bytes = hub.bytes("config.json");
    hub.set("config.json", Answer::Forbidden);
    assert!(download(ID, &hub.options()).is_err());
    assert_eq!(download(ID, &hub.options().with_offline(true)).unwrap(), old);
    hub.set("config.json", Answer::Whole(bytes));
    assert_ne!(download(ID, &hub.options()).unwrap(), old);
}
