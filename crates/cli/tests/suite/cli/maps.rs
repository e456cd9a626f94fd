//! `attention-map`: where it writes, and what it refuses.

use super::Scratch;
use crate::programs::{fails, succeeds};

/// A file of another kind is replaced only with `--force`.
#[test]
fn outputs_destroy_nothing() {
    let scratch = Scratch::new();
    let map = |arguments: &[&str]| scratch.run(&[&["attention-map", "a cat"], arguments].concat());
    succeeds(&mut map(&["--html", "map.html", "--svg", "map.svg"]));
    let page = std::fs::read_to_string(scratch.path("map.html")).unwrap();
    assert!(page.starts_with("<!doctype html>"));
    // Over itself, and over an empty file.
    std::fs::write(scratch.path("empty"), "").unwrap();
    succeeds(&mut map(&["--html", "map.html", "--svg", "empty"]));
    let names = scratch.names();
    let force = "--force replaces it";
    fails(&mut map(&["--html", "notes.txt"]), &format!("notes.txt: exists and is not an HTML page; {force}"));
    fails(&mut map(&["--svg", "map.html"]), "map.html: is the name of a .html file, expected .svg");
    fails(&mut map(&["--html", "all-MiniLM-L6-v2"]), "is a folder, expected a file to write");
    fails(&mut map(&["--html", "no/map.html"]), "no/map.html: its folder does not exist");
    fails(&mut map(&["--html", "new", "--svg", "new"]), "new: is named for two outputs");
    // All outputs are checked before one is written.
    fails(&mut map(&["--html", "new.html", "--svg", "notes.txt"]), force);
    fails(&mut map(&["--html", "new.html", "--layer", "99"]), "--layer 99: the model has layers 0 to 1");
    fails(&mut map(&["--head", "99"]), "--head 99: the model has heads 0 to 3");
    assert_eq!(scratch.names(), names, "nothing new");
    // Standard output.
    assert_eq!(succeeds(&mut map(&["--html", "-"])), page);
    assert_eq!(succeeds(&mut map(&["--html", "/dev/stdout"])), page);
    assert_eq!(scratch.names(), names);
    assert_eq!(std::fs::read_to_string(scratch.path("map.html")).unwrap(), page);
    succeeds(&mut map(&["--html", "notes.txt", "--force"]));
    assert_eq!(std::fs::read_to_string(scratch.path("notes.txt")).unwrap(), page);
    fails(&mut map(&["--html", "all-MiniLM-L6-v2", "--force"]), "is a folder, expected a file to write");
}

#[test]
#[cfg(unix)]
fn links_are_followed_and_devices_are_written_to() {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
    let scratch = Scratch::new();
    let map = |path: &str| scratch.run(&["attention-map", "a cat", "--html", path]);
    std::fs::create_dir(scratch.path("far")).unwrap();
    for (link, target) in [("one.html", "far/one.html"), ("two.html", "one.html")] {
        symlink(target, scratch.path(link)).unwrap();
        succeeds(&mut map(link));
        assert!(scratch.path(link).is_symlink() && !scratch.path("far/one.html").is_symlink());
    }
    let mode = std::fs::metadata(scratch.path("far/one.html")).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600, "ordinary permissions: {mode:o}");
    std::fs::write(scratch.path("ordinary"), "").unwrap();
    assert_eq!(mode, std::fs::metadata(scratch.path("ordinary")).unwrap().permissions().mode());
    symlink("circle", scratch.path("circle")).unwrap();
    fails(&mut map("circle"), "circle: Too many levels of symbolic links");
    // A null device of its own, where the test may make one; else the system's, which it must not harm.
    let null = scratch.path("null");
    let made = std::process::Command::new("mknod").arg(&null).args(["c", "1", "3"]).status();
    if made.is_ok_and(|status| status.success()) {
        succeeds(&mut map("null"));
        assert!(std::fs::metadata(&null).unwrap().file_type().is_char_device());
    }
    // Nor does a pipe as output wait where the command also reads a file.
    let pipe = scratch.path("tensors");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap().len());
    let attend = "attend --model all-MiniLM-L6-v2 --prefix encoder.layer.0.attention --input in.safetensors";
    let mut attend: Vec<&str> = attend.split(' ').collect();
    attend.extend(["--output", "tensors"]);
    succeeds(&mut scratch.run(&attend));
    assert!(reader.join().unwrap() > 100);
    // Tensors on standard output have no other lines among them.
    *attend.last_mut().unwrap() = "-";
    let output = scratch.run(&attend).output().unwrap();
    assert!(safetensors::SafeTensors::deserialize(&output.stdout).is_ok() && !output.stderr.is_empty());
    // A pipe with a name.
    let pipe = scratch.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read_to_string(pipe).unwrap()
    });
    succeeds(&mut map("pipe"));
    assert!(reader.join().unwrap().starts_with("<!doctype html>"));
    assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
    // A file in a folder of `/dev` is a file like others.
    #[cfg(target_os = "linux")]
    if let Ok(shared) = tempfile::tempdir_in("/dev/shm") {
        let path = shared.path().join("notes.txt");
        std::fs::write(&path, "notes").unwrap();
        fails(&mut map(path.to_str().unwrap()), "--force replaces it");
        assert_eq!(std::fs::read(&path).unwrap(), b"notes");
    }
    #[cfg(target_os = "linux")]
    fails(&mut map("/dev/full"), "/dev/full: No space left on device");
    #[cfg(target_os = "linux")]
    fails(&mut map("/proc/map.html"), "/proc/map.html: ");
}
