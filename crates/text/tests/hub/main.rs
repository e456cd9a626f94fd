//! Bringing a model from a hub: a server on the loopback answers as the hub does, and as it does on bad days.

mod attacks;
mod cache;
#[allow(dead_code, unused_imports, reason = "the suites of all packages share it")]
#[path = "../../../../tests/common/mod.rs"]
mod common;
mod faults;
#[allow(dead_code, reason = "several suites share it")]
#[path = "../../../../tests/common/models.rs"]
mod models;
mod modules;
mod retrieval;
mod server;

use std::collections::HashMap;
use std::net::TcpListener;

use candle_attention_text::{EncodeOptions, SentenceEncoder, download};
use candle_core::{DType, Device};

use server::{Answer, COMMIT, Hub, ID};

use crate::common::{Golden, LAYER, assert_close, fixture, says};

#[test]
fn model_is_downloaded_once_and_cached() {
    let hub = Hub::start();
    let encoder = SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).unwrap();
    let texts: Vec<String> =
        serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let got = encoder.encode(&texts, &EncodeOptions::default()).unwrap();
    assert_close("from the hub", &got, &Golden::open("tiny_bert.safetensors").get("mean_norm"), LAYER);

    // Every file after the first is of the commit that the first one named.
    let requests = hub.requests();
    assert!(requests.iter().skip(1).all(|request| request.contains(COMMIT)), "{requests:?}");
    let distinct: std::collections::BTreeSet<&String> = requests.iter().collect();
    assert_eq!(distinct.len(), requests.len(), "{requests:?}");
    // A commit that is in the cache needs no request for what it holds; the branch needs one.
    let folder = download(ID, &hub.options().with_revision(COMMIT)).unwrap();
    assert_eq!(hub.request_count(), requests.len());
    assert_eq!(download(ID, &hub.options()).unwrap(), folder);
    assert_eq!(hub.request_count(), requests.len() + 1);

    // Offline: no request at all.
    let before = hub.request_count();
    let offline = hub.options().with_offline(true);
    assert!(SentenceEncoder::from_hub(ID, &offline, DType::F32, &Device::Cpu).is_ok());
    assert_eq!(hub.request_count(), before);
}

/// `modules.json` is the same in the new commit, and so are all files; the folder is another one.
#[test]
fn a_branch_that_moved_is_noticed() {
    let hub = Hub::start();
    let old = download(ID, &hub.options()).unwrap();
    let commit = COMMIT.replace('0', "f");
    hub.set_commit(&commit);
    let new = download(ID, &hub.options()).unwrap();
    assert!(old.ends_with(COMMIT) && new.ends_with(&commit), "{} {}", old.display(), new.display());
    assert_eq!(download(ID, &hub.options().with_offline(true)).unwrap(), new);
}

#[test]
fn token_is_sent_but_not_printed() {
    let hub = Hub::start();
    let options = hub.options().with_token("hf_secret");
    assert!(download(ID, &options).is_ok());
    assert!(hub.saw_only_token("hf_secret"));
    assert!(!format!("{options:?}").contains("secret"));
}

/// Another program may have brought only some of the files. Which modules run must not be guessed.
#[test]
fn offline_with_an_incomplete_cache_is_an_error() {
    let hub = Hub::start();
    let folder = download(ID, &hub.options()).unwrap();
    std::fs::remove_file(folder.join("modules.json")).unwrap();
    let error = download(ID, &hub.options().with_offline(true));
    says(error, &["`modules.json` is not in the cache, and offline mode is on"]);
    // What the hub said to be absent is known to be so.
    let hub = Hub::start();
    hub.remove("modules.json");
    let online = download(ID, &hub.options()).unwrap();
    assert_eq!(download(ID, &hub.options().with_offline(true)).unwrap(), online);
}

#[test]
fn offline_with_an_empty_cache_is_an_error() {
    let hub = Hub::start();
    let error = download(ID, &hub.options().with_offline(true));
    says(error, &["hub: tiny/bert", "revision `main` is not in the cache, and offline mode is on"]);
    let pinned = download(ID, &hub.options().with_revision(COMMIT).with_offline(true));
    says(pinned, &["hub: tiny/bert", "`modules.json` is not in the cache, and offline mode is on"]);
    assert_eq!(hub.request_count(), 0);
}

#[test]
fn missing_required_file_is_an_error_and_missing_optional_file_is_not() {
    let hub = Hub::start();
    hub.remove("config_sentence_transformers.json");
    hub.remove("2_Normalize/config.json");
    assert!(download(ID, &hub.options()).is_ok());
    let hub = Hub::start();
    hub.remove("tokenizer.json");
    says(download(ID, &hub.options()), &["the repository holds no `tokenizer.json`"]);
    let hub = Hub::start();
    hub.remove("model.safetensors");
    says(
        download(ID, &hub.options()),
        &["the repository holds no `model.safetensors` or `model.safetensors.index.json`"],
    );
    let hub = Hub::start();
    hub.remove("modules.json");
    hub.remove("config.json");
    says(download(ID, &hub.options()), &["the repository holds no `config.json` at revision `main`"]);
}

#[test]
fn errors_distinguish_no_access_from_no_model() {
    let hub = Hub::start();
    hub.set("modules.json", Answer::Forbidden);
    says(download(ID, &hub.options()), &["access to `modules.json` is forbidden", "HF_TOKEN"]);
    let hub = Hub::start();
    says(download("tiny/other", &hub.options()), &["hub: tiny/other: no such model"]);
    says(download(ID, &hub.options().with_revision("dev")), &["no revision `dev`"]);
    for id in ["", "a/b/c", "../x", "./folder", "/some/model", "a b", "owner/"] {
        says(download(id, &hub.options()), &["the model is", "a hub id such as owner/name"]);
    }
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = hub.options().with_endpoint(format!("http://{nobody}"));
    says(
        download(ID, &options),
        &["hub: tiny/bert: revision `main` is not in the cache, and no answer from the hub: "],
    );
    says(download(ID, &options.with_revision(COMMIT)), &["hub: tiny/bert: no answer from the hub: "]);
}

#[test]
fn every_shard_of_a_model_is_downloaded() {
    let hub = Hub::start();
    let bytes = hub.bytes("model.safetensors");
    let names: Vec<String> = {
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        tensors.names().into_iter().map(str::to_string).collect()
    };
    let index = |file: &str| {
        let map: HashMap<&str, &str> = names.iter().map(|name| (name.as_str(), file)).collect();
        Answer::Whole(serde_json::json!({"weight_map": map}).to_string().into_bytes())
    };
    hub.remove("model.safetensors");
    hub.set("model-00001-of-00001.safetensors", Answer::Whole(bytes.clone()));
    hub.set("model.safetensors.index.json", index("../x.safetensors"));
    // A cache of its own: what is in it of a commit is not asked for again.
    let other = tempfile::tempdir().unwrap();
    let options = hub.options().with_cache_dir(other.path());
    says(download(ID, &options), &["shard name `../x.safetensors` of tensor"]);
    let good = index("model-00001-of-00001.safetensors");
    hub.set("model.safetensors.index.json", good);
    assert!(SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).is_ok());
}
