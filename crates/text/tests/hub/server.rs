//! A server on the loopback that answers as the hub does, or as a test says.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use candle_attention_text::HubOptions;

use crate::common::fixture;

pub const ID: &str = "tiny/bert";
/// The name of the list of files, among the answers.
pub const LISTING: &str = "listing";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request, with its headers in lower case.
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: Vec<String>,
}

type Custom = Arc<dyn Fn(&Request, &mut TcpStream) + Send + Sync>;

/// What the server does with a file.
#[derive(Clone)]
pub enum Answer {
    Whole(Vec<u8>),
    Forbidden,
    /// Whatever the function writes.
    Custom(Custom),
}

impl Answer {
    pub fn custom(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Self {
        Self::Custom(Arc::new(answer))
    }
}

struct Shared {
    /// Of the branch `main`.
    commit: String,
    files: HashMap<String, Answer>,
    requests: Vec<String>,
    tokens: Vec<Option<String>>,
}

impl Shared {
    /// What the hub says of a commit.
    fn listing(&self, commit: &str) -> Vec<u8> {
        let files: Vec<_> = self.files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        serde_json::json!({"id": ID, "sha": commit, "siblings": files}).to_string().into_bytes()
    }
}

pub struct Hub {
    pub endpoint: String,
    shared: Arc<Mutex<Shared>>,
    cache: tempfile::TempDir,
}

impl Hub {
    /// Serves the tiny model at revision `main`.
    pub fn start() -> Self {
        Self::from_folder(&fixture("tiny-bert"))
    }

    /// Serves the files of a folder as that model.
    pub fn from_folder(folder: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let mut files = HashMap::new();
        add_folder(&mut files, folder, "");
        let shared = Arc::new(Mutex::new(Shared {
            commit: COMMIT.to_string(),
            files,
            requests: Vec::new(),
            tokens: Vec::new(),
        }));
        let state = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let state = state.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Self { endpoint, shared, cache: tempfile::tempdir().unwrap() }
    }

    pub fn options(&self) -> HubOptions {
        HubOptions::default().with_endpoint(&self.endpoint).with_cache_dir(self.cache.path()).with_offline(false)
    }

    /// The cache's folder of the model.
    pub fn repository(&self) -> std::path::PathBuf {
        self.cache.path().join("models--tiny--bert")
    }

    pub fn bytes(&self, file: &str) -> Vec<u8> {
        match self.shared.lock().unwrap().files.get(file) {
            Some(Answer::Whole(bytes)) => bytes.clone(),
            _ => panic!("no {file}"),
        }
    }

    pub fn set(&self, file: &str, answer: Answer) {
        self.shared.lock().unwrap().files.insert(file.to_string(), answer);
    }

    /// Moves the branch to another commit, in which all files are the same.
    pub fn set_commit(&self, commit: &str) {
        self.shared.lock().unwrap().commit = commit.to_string();
    }

    pub fn remove(&self, file: &str) {
        self.shared.lock().unwrap().files.remove(file).unwrap();
    }

    pub fn requests(&self) -> Vec<String> {
        self.shared.lock().unwrap().requests.clone()
    }

    pub fn request_count(&self) -> usize {
        self.shared.lock().unwrap().requests.len()
    }

    /// Whether every request so far carried this token.
    pub fn saw_only_token(&self, token: &str) -> bool {
        let tokens = self.shared.lock().unwrap().tokens.clone();
        !tokens.is_empty() && tokens.iter().all(|seen| seen.as_deref() == Some(token))
    }

    /// Whether a request carried any token.
    pub fn saw_a_token(&self) -> bool {
        self.shared.lock().unwrap().tokens.iter().any(Option::is_some)
    }
}

fn add_folder(files: &mut HashMap<String, Answer>, folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            add_folder(files, &entry.path(), &format!("{name}/"))
        } else {
            drop(files.insert(name, Answer::Whole(std::fs::read(entry.path()).unwrap())))
        }
    }
}

/// The hash by which git and the hub know a small file.
pub fn git_hash(bytes: &[u8]) -> String {
    use sha1::Digest;
    let mut hash = sha1::Sha1::new();
    hash.update(format!("blob {}\0", bytes.len()));
    hash.update(bytes);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The headers with which the hub names a file of [`COMMIT`].
pub fn found(bytes: &[u8]) -> String {
    found_at(COMMIT, bytes)
}

fn found_at(commit: &str, bytes: &[u8]) -> String {
    format!("etag: \"{}\"\r\nx-repo-commit: {commit}\r\n", git_hash(bytes))
}

/// Writes a response that announces the length of its body.
pub fn respond(request: &Request, stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let headers = format!("{headers}content-length: {}\r\n", body.len());
    respond_raw(request, stream, status, &headers, body);
}

/// Writes a response with these headers and no others.
pub fn respond_raw(request: &Request, stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) {
    let _ = stream.write_all(format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n").as_bytes());
    if request.method == "GET" {
        let _ = stream.write_all(body);
    }
}

/// Answers one request and closes.
fn serve(mut stream: TcpStream, shared: &Mutex<Shared>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(line) = lines.next() else { return };
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let token = headers.iter().find_map(|line| line.strip_prefix("authorization: bearer ")).map(str::to_string);
    let mut words = line.split(' ').map(str::to_string);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let request = Request { method, path, headers };
    let (commit, answer) = {
        let mut shared = shared.lock().unwrap();
        shared.requests.push(line.clone());
        shared.tokens.push(token);
        let commit = shared.commit.clone();
        let starts = [format!("/{ID}/resolve/main/"), format!("/{ID}/resolve/{commit}/"), "/elsewhere/".to_string()];
        let file = starts.iter().find_map(|start| request.path.strip_prefix(start));
        let lists = format!("/api/models/{ID}/revision/");
        let answer = match (file, request.path.strip_prefix(&lists)) {
            (Some(file), _) => shared.files.get(file).cloned().ok_or("EntryNotFound"),
            (None, Some(revision)) if revision == "main" || revision == commit => {
                Ok(shared.files.get(LISTING).cloned().unwrap_or_else(|| Answer::Whole(shared.listing(&commit))))
            }
            (None, Some(_)) => Err("RevisionNotFound"),
            (None, None) => Err("RepoNotFound"),
        };
        (commit, answer)
    };
    match answer {
        Err(code) => {
            let headers = format!("x-error-code: {code}\r\nx-repo-commit: {commit}\r\n");
            respond(&request, &mut stream, "404 Not Found", &headers, b"");
        }
        Ok(Answer::Forbidden) => respond(&request, &mut stream, "403 Forbidden", "x-error-code: GatedRepo\r\n", b""),
        Ok(Answer::Whole(bytes)) if request.headers.contains(&format!("if-none-match: \"{}\"", git_hash(&bytes))) => {
            respond(&request, &mut stream, "304 Not Modified", &found_at(&commit, &bytes), b"");
        }
        Ok(Answer::Whole(bytes)) => respond(&request, &mut stream, "200 OK", &found_at(&commit, &bytes), &bytes),
        Ok(Answer::Custom(answer)) => answer(&request, &mut stream),
    }
}
