//! Bringing a model from a hub: a server on the loopback answers as the hub does, and as it does on bad days.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use candle_attention::encoder::{EncodeOptions, HubOptions, SentenceEncoder, download};
use candle_core::{DType, Device};

use crate::common::{Golden, LAYER, assert_close, fixture, says};

const ID: &str = "tiny/bert";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the server does with a file.
#[derive(Clone)]
enum Answer {
    Whole(Vec<u8>),
    /// Announces all of it, sends half and closes.
    CutShort(Vec<u8>),
    /// HEAD announces all of it, GET gives half as if that were all.
    Shrunk(Vec<u8>),
    Forbidden,
    /// HEAD is as if all were well, GET is refused with a page.
    ForbiddenOnGet(Vec<u8>),
}

pub struct Hub {
    pub endpoint: String,
    files: Arc<Mutex<HashMap<String, Answer>>>,
    requests: Arc<Mutex<Vec<String>>>,
    tokens: Arc<Mutex<Vec<Option<String>>>>,
    cache: tempfile::TempDir,
}

impl Hub {
    /// Serves the tiny model at revision `main`.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let mut files = HashMap::new();
        add_folder(&mut files, &fixture("tiny-bert"), "");
        let (files, requests) = (Arc::new(Mutex::new(files)), Arc::new(Mutex::new(Vec::new())));
        let tokens = Arc::new(Mutex::new(Vec::new()));
        let (shared_files, shared_requests, shared_tokens) = (files.clone(), requests.clone(), tokens.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (files, requests) = (shared_files.clone(), shared_requests.clone());
                let tokens = shared_tokens.clone();
                std::thread::spawn(move || answer(stream, &files, &requests, &tokens));
            }
        });
        Self { endpoint, files, requests, tokens, cache: tempfile::tempdir().unwrap() }
    }

    fn options(&self) -> HubOptions {
        HubOptions::default().with_endpoint(&self.endpoint).with_cache_dir(self.cache.path()).with_offline(false)
    }

    fn set(&self, file: &str, answer: impl FnOnce(Vec<u8>) -> Answer) {
        let mut files = self.files.lock().unwrap();
        let Some(Answer::Whole(bytes)) = files.get(file).cloned() else { panic!("no {file}") };
        files.insert(file.to_string(), answer(bytes));
    }

    fn remove(&self, file: &str) {
        self.files.lock().unwrap().remove(file).unwrap();
    }

    pub fn request_count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Whether every request so far carried this token.
    pub fn saw_only_token(&self, token: &str) -> bool {
        let tokens = self.tokens.lock().unwrap();
        !tokens.is_empty() && tokens.iter().all(|seen| seen.as_deref() == Some(token))
    }
}

fn add_folder(files: &mut HashMap<String, Answer>, folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        match entry.file_type().unwrap().is_dir() {
            true => add_folder(files, &entry.path(), &format!("{name}/")),
            false => drop(files.insert(name, Answer::Whole(std::fs::read(entry.path()).unwrap()))),
        }
    }
}

/// Answers one request and closes.
fn answer(
    mut stream: TcpStream,
    files: &Mutex<HashMap<String, Answer>>,
    requests: &Mutex<Vec<String>>,
    tokens: &Mutex<Vec<Option<String>>>,
) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    requests.lock().unwrap().push(request.clone());
    let token = headers.iter().find_map(|line| line.strip_prefix("authorization: bearer "));
    tokens.lock().unwrap().push(token.map(str::to_string));
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let respond = |stream: &mut TcpStream, status: &str, extra: &str, announced: usize, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n{extra}content-length: {announced}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        if method == "GET" {
            let _ = stream.write_all(body);
        }
    };

    let error = |code: &str| format!("x-error-code: {code}\r\n");
    let known = ["", "/revision/main", &format!("/revision/{COMMIT}")].map(|end| format!("/api/models/{ID}{end}"));
    if known.iter().any(|known| path == known) {
        let body = format!(r#"{{"id":"{ID}","sha":"{COMMIT}"}}"#);
        return respond(&mut stream, "200 OK", "", body.len(), body.as_bytes());
    }
    let Some(rest) = path.strip_prefix(&format!("/{ID}/")) else {
        return respond(&mut stream, "404 Not Found", &error("RepoNotFound"), 0, b"");
    };
    let file =
        ["resolve/main/".to_string(), format!("resolve/{COMMIT}/")].iter().find_map(|start| rest.strip_prefix(start));
    let Some(file) = file else {
        return respond(&mut stream, "404 Not Found", &error("RevisionNotFound"), 0, b"");
    };
    let answer = files.lock().unwrap().get(file).cloned();
    let etag = |bytes: &[u8]| {
        let sum = bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        format!("{sum:016x}")
    };
    let found = |bytes: &[u8]| format!("etag: \"{}\"\r\nx-repo-commit: {COMMIT}\r\n", etag(bytes));
    match answer {
        None => {
            let extra = format!("{}x-repo-commit: {COMMIT}\r\n", error("EntryNotFound"));
            respond(&mut stream, "404 Not Found", &extra, 0, b"");
        }
        Some(Answer::Forbidden) => respond(&mut stream, "403 Forbidden", &error("GatedRepo"), 0, b""),
        Some(Answer::Whole(bytes)) if headers.contains(&format!("if-none-match: \"{}\"", etag(&bytes))) => {
            respond(&mut stream, "304 Not Modified", &found(&bytes), 0, b"");
        }
        Some(Answer::Whole(bytes)) => respond(&mut stream, "200 OK", &found(&bytes), bytes.len(), &bytes),
        Some(Answer::CutShort(bytes)) => {
            respond(&mut stream, "200 OK", &found(&bytes), bytes.len(), &bytes[..bytes.len() / 2]);
        }
        Some(Answer::Shrunk(bytes)) => {
            let announced = if method == "HEAD" { bytes.len() } else { bytes.len() / 2 };
            respond(&mut stream, "200 OK", &found(&bytes), announced, &bytes[..bytes.len() / 2]);
        }
        Some(Answer::ForbiddenOnGet(bytes)) if method == "HEAD" => {
            respond(&mut stream, "200 OK", &found(&bytes), bytes.len(), b"");
        }
        Some(Answer::ForbiddenOnGet(_)) => {
            let page = b"<html>Access denied</html>";
            respond(&mut stream, "403 Forbidden", "", page.len(), page);
        }
    }
}

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
    let requests = hub.requests.lock().unwrap().clone();
    assert!(requests.iter().skip(2).all(|request| request.contains(COMMIT)), "{requests:?}");
    // A commit that is in the cache needs no request for what it holds; the branch needs one.
    let gets = |hub: &Hub| hub.requests.lock().unwrap().iter().filter(|request| request.starts_with("GET")).count();
    let before = gets(&hub);
    assert_eq!(download(ID, &hub.options()).unwrap(), download(ID, &hub.options().with_revision(COMMIT)).unwrap());
    assert_eq!(gets(&hub), before);

    // Offline: no request at all.
    let before = hub.request_count();
    let offline = hub.options().with_offline(true);
    assert!(SentenceEncoder::from_hub(ID, &offline, DType::F32, &Device::Cpu).is_ok());
    assert_eq!(hub.request_count(), before);
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
    says(error, &["hub: tiny/bert", "`modules.json` is not in the cache, and offline mode is on"]);
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
fn truncated_download_is_an_error_and_not_cached() {
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        let hub = Hub::start();
        let whole = hub.files.lock().unwrap()[file].clone();
        for answer in [Answer::CutShort as fn(Vec<u8>) -> Answer, Answer::Shrunk, Answer::ForbiddenOnGet] {
            hub.set(file, answer);
            says(download(ID, &hub.options()), &["hub: tiny/bert", file]);
            hub.files.lock().unwrap().insert(file.to_string(), whole.clone());
        }
        // What arrived of it did no harm: the next call brings the whole file.
        assert!(SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).is_ok(), "{file}");
    }
}

#[test]
fn errors_distinguish_no_access_from_no_model() {
    let hub = Hub::start();
    hub.set("modules.json", |_| Answer::Forbidden);
    says(download(ID, &hub.options()), &["access to `modules.json` is forbidden", "HF_TOKEN"]);
    let hub = Hub::start();
    says(download("tiny/other", &hub.options()), &["hub: tiny/other: no such model"]);
    says(download(ID, &hub.options().with_revision("dev")), &["no revision `dev`"]);
    for id in ["", "a/b/c", "../x", "./folder", "/some/model", "a b", "owner/"] {
        says(download(id, &hub.options()), &["the model is", "a hub id such as owner/name"]);
    }
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = hub.options().with_endpoint(format!("http://{nobody}"));
    says(download(ID, &options), &["hub: tiny/bert: `modules.json`: no answer from the hub: "]);
}

#[test]
fn every_shard_of_a_model_is_downloaded() {
    let hub = Hub::start();
    let Answer::Whole(bytes) = hub.files.lock().unwrap()["model.safetensors"].clone() else { panic!() };
    let names: Vec<String> = {
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        tensors.names().into_iter().map(str::to_string).collect()
    };
    let index = |file: &str| {
        let map: HashMap<&str, &str> = names.iter().map(|name| (name.as_str(), file)).collect();
        Answer::Whole(serde_json::json!({"weight_map": map}).to_string().into_bytes())
    };
    let mut files = hub.files.lock().unwrap();
    let weights = files.remove("model.safetensors").unwrap();
    files.insert("model-00001-of-00001.safetensors".to_string(), weights);
    files.insert("model.safetensors.index.json".to_string(), index("../x.safetensors"));
    drop(files);
    // A cache of its own: what is in it of a commit is not asked for again.
    let other = tempfile::tempdir().unwrap();
    let options = hub.options().with_cache_dir(other.path());
    says(download(ID, &options), &["shard name `../x.safetensors` of tensor"]);
    let good = index("model-00001-of-00001.safetensors");
    hub.files.lock().unwrap().insert("model.safetensors.index.json".to_string(), good);
    assert!(SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).is_ok());
}
