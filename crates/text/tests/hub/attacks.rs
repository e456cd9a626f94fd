//! Hubs and mirrors that lie. The token goes to nobody else, and what names a file in a file of the model is checked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_attention_text::{HubOptions, download};

use super::server::{Answer, COMMIT, Hub, ID, LISTING, found, git_hash, respond};
use crate::common::says;

/// A folder with a file that must not change, and the cache in a folder of it.
struct House(tempfile::TempDir);

impl House {
    fn new() -> Self {
        let house = tempfile::tempdir().unwrap();
        std::fs::create_dir(house.path().join("cache")).unwrap();
        std::fs::write(house.path().join("victim"), "mine").unwrap();
        Self(house)
    }

    fn options(&self, hub: &Hub) -> HubOptions {
        hub.options().with_cache_dir(self.0.path().join("cache"))
    }

    fn victim(&self) -> PathBuf {
        self.0.path().join("victim")
    }

    /// Everything outside the cache, and the names of what is in the folders of the cache that hold names from the hub.
    fn outside(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(self.0.path()).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            let content = if kind.is_file() { std::fs::read(entry.path()).unwrap() } else { b"other".to_vec() };
            found.insert(entry.path(), content);
        }
        found
    }

    /// Names in the cache's folder of the model, at any depth, that are not those of the folder's layout.
    fn strange(&self) -> Vec<PathBuf> {
        let repository = self.0.path().join("cache/models--tiny--bert");
        let mut strange = Vec::new();
        for folder in ["blobs", "snapshots", ".no_exist"] {
            let Ok(entries) = std::fs::read_dir(repository.join(folder)) else { continue };
            for entry in entries.map(Result::unwrap) {
                let name = entry.file_name().into_string().unwrap();
                if name.len() != 40 || !name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    strange.push(entry.path());
                }
            }
        }
        strange
    }

    fn is_untouched(&self, before: &BTreeMap<PathBuf, Vec<u8>>, what: &str) {
        assert_eq!(&self.outside(), before, "{what}");
        assert_eq!(self.strange(), Vec::<PathBuf>::new(), "{what}");
    }
}

/// Paths to the victim from the folder of blobs and from that of a snapshot, and names that are no names.
fn hostile(victim: &Path) -> Vec<String> {
    let victim = victim.display().to_string();
    let relative =
        ["../../../victim", "../../../../victim", "../x", "..", ".", "a/b", "a\\b", "C:x", ".hidden", "x.lock"];
    let long = "a".repeat(5000);
    relative.iter().map(|name| name.to_string()).chain([victim, long, String::new()]).collect()
}

#[test]
fn commit_never_becomes_a_path_unchecked() {
    let house = House::new();
    let near = [&COMMIT[1..], &format!("{COMMIT}0"), &format!("{}g", &COMMIT[1..])].map(str::to_string);
    for name in hostile(&house.victim()).into_iter().chain(near) {
        let hub = Hub::start();
        let listing = serde_json::json!({"id": ID, "sha": name, "siblings": [{"rfilename": "modules.json"}]});
        hub.set(LISTING, Answer::Whole(listing.to_string().into_bytes()));
        let before = house.outside();
        let result = download(ID, &house.options(&hub));
        house.is_untouched(&before, &format!("commit {name}"));
        says(result, &["hub: tiny/bert: ", "40 hexadecimal digits"]);
    }
}

/// A file of another commit than the one asked for would be stored under the wrong one.
#[test]
fn files_of_another_commit_are_refused() {
    let hub = Hub::start();
    let body = hub.bytes("tokenizer.json");
    let other = COMMIT.replace('0', "f");
    let named = other.clone();
    hub.set(
        "tokenizer.json",
        Answer::custom(move |request, stream| {
            let headers = format!("etag: \"{}\"\r\nx-repo-commit: {named}\r\n", git_hash(&body));
            respond(request, stream, "200 OK", &headers, &body);
        }),
    );
    says(download(ID, &hub.options()), &["`tokenizer.json`", &other, COMMIT]);
}

/// Another program, or an attacker, may have written the file that holds a branch's commit.
#[test]
fn a_branch_in_the_cache_that_is_no_commit_is_an_error() {
    let hub = Hub::start();
    let house = House::new();
    let options = house.options(&hub);
    download(ID, &options).unwrap();
    let outside = house.0.path().join("outside");
    let folder = house.0.path().join(format!("cache/models--tiny--bert/snapshots/{COMMIT}"));
    std::fs::rename(folder, &outside).unwrap();
    for commit in ["../../../outside", "../../..", "", &outside.display().to_string()] {
        std::fs::write(house.0.path().join("cache/models--tiny--bert/refs/main"), commit).unwrap();
        says(download(ID, &options.clone().with_offline(true)), &["refs", "main", "40 hexadecimal digits"]);
    }
}

#[test]
fn hostile_revisions_and_ids_are_refused_before_anything_is_read() {
    let hub = Hub::start();
    let house = House::new();
    std::fs::write(house.0.path().join("commit"), COMMIT).unwrap();
    let long = "a".repeat(300);
    let mut revisions =
        vec!["../../../commit", "..", "a/../b", "/etc/passwd", "a//b", "a/", "", "a b", "a\\b", "a\0b", "~"];
    revisions.extend(["a:b", ".a", "a/.b", "a.lock", "a.", "-a", "a?b", "a%2e", long.as_str()]);
    let before = house.outside();
    for revision in revisions {
        for offline in [true, false] {
            let options = house.options(&hub).with_revision(revision).with_offline(offline);
            says(download(ID, &options), &["the revision is", "expected"]);
        }
    }
    for id in ["../x", "a--b/c", "a/b--c", "a/..", "a/b.", "a/-b", "a/b.git"] {
        says(download(id, &house.options(&hub)), &["the model is"]);
    }
    house.is_untouched(&before, "revisions and ids");
    assert_eq!(hub.request_count(), 0);
}

/// The hub sends large files from other hosts. These get no token, and are only asked by http if the hub itself is.
#[test]
fn another_host_gets_no_token() {
    let (hub, store) = (Hub::start(), Hub::start());
    let bytes = hub.bytes("model.safetensors");
    let address = format!("{}/elsewhere/model.safetensors", store.endpoint);
    hub.set(
        "model.safetensors",
        Answer::custom(move |request, stream| {
            let size = bytes.len();
            let headers = format!("{}location: {address}\r\nx-linked-size: {size}\r\n", found(&bytes));
            respond(request, stream, "302 Found", &headers, b"");
        }),
    );
    download(ID, &hub.options().with_token("hf_secret")).unwrap();
    assert!(hub.saw_only_token("hf_secret"));
    assert_eq!(store.request_count(), 1);
    assert!(!store.saw_a_token());
}

/// A renamed repository: the hub answers with its new path, and names the file only there.
#[test]
fn redirects_within_the_hub_keep_the_token() {
    let hub = Hub::start();
    hub.set(
        "config.json",
        Answer::custom({
            let bytes = hub.bytes("config.json");
            move |request, stream| {
                if request.path.starts_with("/elsewhere/") {
                    return respond(request, stream, "200 OK", &found(&bytes), &bytes);
                }
                // The ETag of a redirect is not that of the file.
                let headers = "etag: \"0123456789abcdef\"\r\nlocation: /elsewhere/config.json\r\n";
                respond(request, stream, "307 Temporary Redirect", headers, b"moved");
            }
        }),
    );
    download(ID, &hub.options().with_token("hf_secret")).unwrap();
    assert!(hub.saw_only_token("hf_secret"));
}

#[test]
fn redirects_lead_to_web_addresses_only_and_end() {
    let hostile = ["file:///etc/passwd", "ftp://127.0.0.1/config.json", "config.json", "", "/elsewhere/config.json"];
    for location in hostile {
        for etag in ["", "etag: \"0123456789abcdef\"\r\n"] {
            let hub = Hub::start();
            hub.set(
                "config.json",
                Answer::custom(move |request, stream| {
                    let headers = format!("{etag}x-repo-commit: {COMMIT}\r\nlocation: {location}\r\n");
                    respond(request, stream, "302 Found", &headers, b"");
                }),
            );
            says(download(ID, &hub.options()), &["hub: tiny/bert: `config.json`"]);
            assert!(!hub.repository().join("snapshots").join(COMMIT).join("config.json").exists(), "{location}");
        }
    }
}

#[test]
fn plain_http_beyond_this_machine_must_be_asked_for() {
    for endpoint in
        ["http://192.0.2.1", "http://mirror.example", "http://127.0.0.1.example", "http://localhost.example"]
    {
        let options = HubOptions::default().with_endpoint(endpoint).with_offline(false);
        says(download(ID, &options), &["endpoint", endpoint, "with_plain_http"]);
    }
    for endpoint in ["mirror.example", "ftp://mirror.example", "https://user:word@mirror.example", "https://x/?y", ""] {
        let options = HubOptions::default().with_endpoint(endpoint).with_offline(false);
        says(download(ID, &options), &["endpoint", "expected"]);
    }
}

/// Where a module or a shard lies is said by files of the repository.
#[test]
fn module_and_shard_paths_stay_inside() {
    for path in ["../../x", "/etc", "a/../../b", "a\\..\\b", "a//b", "a:b"] {
        let hub = Hub::start();
        let modules = serde_json::json!([
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": path, "type": "sentence_transformers.models.Pooling"},
        ]);
        hub.set("modules.json", Answer::Whole(modules.to_string().into_bytes()));
        let house = House::new();
        let before = house.outside();
        assert!(download(ID, &house.options(&hub)).is_err(), "{path}");
        house.is_untouched(&before, path);
    }
}
