//! Names, links, permissions and locks.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::io::file_system::{Disk, FileSystem};
use crate::io::temporary::{ABANDONED, Temporary, remove_abandoned};
use crate::io::{write_atomic, write_bytes, write_new_folder};

fn names(folder: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// The path of the only file or folder in it.
fn only(folder: &Path) -> PathBuf {
    let names = names(folder);
    assert_eq!(names.len(), 1, "{names:?}");
    folder.join(&names[0])
}

fn make_old(path: &Path) {
    File::options().write(true).open(path).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
}

/// Two writers of one target in one process, as two containers that are both process 1: each has a file of its own.
#[test]
fn writers_of_one_target_share_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    write_atomic(&target, |first| {
        first.write_all(b"first, ").unwrap();
        write_bytes(&target, b"second").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"second");
        first.write_all(b"which ends last").unwrap();
        Ok(())
    })
    .unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"first, which ends last");
    assert_eq!(only(folder.path()), target);
}

#[test]
fn what_killed_writers_left_is_removed_and_what_living_ones_write_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let write = || write_bytes(&target, b"new").unwrap();

    // A writer that lives: old, but locked.
    let (temporary, file) = Temporary::file(folder.path(), false).unwrap();
    make_old(temporary.path());
    write();
    assert!(temporary.path().exists());
    // It is killed: the lock is gone, the file is not.
    drop(file);
    let path = temporary.path().to_path_buf();
    std::mem::forget(temporary);
    write();
    assert!(!path.exists());

    // Not old enough.
    let (temporary, file) = Temporary::file(folder.path(), false).unwrap();
    drop(file);
    write();
    assert!(temporary.path().exists());
    drop(temporary);

    let (temporary, lock) = Temporary::folder(folder.path()).unwrap();
    make_old(&temporary.path().join("lock"));
    std::fs::write(temporary.path().join("content"), "x").unwrap();
    write();
    assert!(temporary.path().join("content").exists());
    drop(lock);
    let path = temporary.path().to_path_buf();
    std::mem::forget(temporary);
    write();
    assert!(!path.exists());

    // Names that are not of this crate, whatever they hold.
    let others = [".candle-attention-notes.part", ".candle-attention-0123456789abcdef", ".target.77.part"];
    for name in others {
        std::fs::write(folder.path().join(name), "mine").unwrap();
        make_old(&folder.path().join(name));
    }
    write();
    assert_eq!(names(folder.path()).len(), 1 + others.len());
}

#[test]
fn a_folder_that_exists_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let make = || write_new_folder(&target, |new| new.write_bytes("file", b"new"));
    assert!(make().unwrap_err().to_string().ends_with("exists already"));
    std::fs::remove_dir(&target).unwrap();
    make().unwrap();
    assert_eq!(only(&target), target.join("file"));
    assert_eq!(only(folder.path()), target);

    // Another process is faster.
    let late = folder.path().join("late");
    let result = write_new_folder(&late, |new| {
        new.write_bytes("file", b"new")?;
        std::fs::create_dir(&late).unwrap();
        std::fs::write(late.join("file"), "theirs").unwrap();
        Ok(())
    });
    assert!(matches!(result, Err(Error::Io { path, .. }) if path == late));
    assert_eq!(std::fs::read(late.join("file")).unwrap(), b"theirs");
    assert_eq!(names(folder.path()), ["late", "target"]);
}

#[test]
fn a_name_as_long_as_names_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("n".repeat(255));
    write_bytes(&target, b"new").unwrap();
    assert_eq!(only(folder.path()), target);
    for wrong in ["", "/", ".."] {
        let error = write_bytes(Path::new(wrong), b"new").unwrap_err().to_string();
        assert!(error.contains("is not the name of a file") || error.contains("is a folder"), "{error}");
    }
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// As `File::create` has it: new files get what the process gives to new files, and old ones keep theirs.
    #[test]
    fn permissions_are_those_of_ordinary_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        File::create(path("ordinary")).unwrap();
        std::fs::create_dir(path("ordinary folder")).unwrap();
        write_bytes(&path("new"), b"new").unwrap();
        assert_eq!(mode(&path("new")), mode(&path("ordinary")));
        write_new_folder(&path("folder"), |new| new.write_bytes("file", b"new")).unwrap();
        assert_eq!(mode(&path("folder")), mode(&path("ordinary folder")));
        assert_eq!(mode(&path("folder/file")), mode(&path("ordinary")));
        for kept in [0o600, 0o664] {
            std::fs::set_permissions(path("new"), std::fs::Permissions::from_mode(kept)).unwrap();
            write_atomic(&path("new"), |file| {
                // Also before it has its name.
                let names = names(folder.path());
                let temporary = names.iter().find(|name| name.to_string_lossy().ends_with(".part")).unwrap();
                assert_eq!(mode(&folder.path().join(temporary)), kept);
                file.write_all(b"again").map_err(|e| Error::io("", e))
            })
            .unwrap();
            assert_eq!(mode(&path("new")), kept);
        }
    }

    /// Before it has the permissions of the file that it replaces, nobody else can open it.
    #[test]
    fn a_file_that_replaces_another_starts_private() {
        let folder = tempfile::tempdir().unwrap();
        let (temporary, _file) = Temporary::file(folder.path(), true).unwrap();
        assert_eq!(mode(temporary.path()), 0o600);
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("victim"), "precious").unwrap();
        // At the target, also one that leads nowhere.
        for to in ["victim", "nowhere", "link"] {
            let _ = std::fs::remove_file(path("link"));
            symlink(to, path("link")).unwrap();
            write_bytes(&path("link"), b"new").unwrap();
            assert!(std::fs::symlink_metadata(path("link")).unwrap().is_file());
            assert_eq!(std::fs::read(path("victim")).unwrap(), b"precious");
            assert!(!path("nowhere").exists());
        }
        // At the name of a temporary file that seems abandoned, to a file and to a folder.
        let planted = path(".candle-attention-0123456789abcdef.part");
        std::fs::create_dir(path("folder")).unwrap();
        std::fs::write(path("folder/lock"), "precious").unwrap();
        make_old(&path("victim"));
        make_old(&path("folder/lock"));
        for to in ["victim", "folder"] {
            let _ = std::fs::remove_file(&planted);
            symlink(path(to), &planted).unwrap();
            remove_abandoned(folder.path(), Duration::ZERO);
            assert_eq!(std::fs::read(path("victim")).unwrap(), b"precious");
            assert!(path("folder/lock").exists());
        }
        // At the name that a temporary file is to have.
        symlink("victim", path("taken")).unwrap();
        symlink("nowhere", path("free")).unwrap();
        for name in ["taken", "free", "victim"] {
            assert!(Disk.create_file(&path(name), true).is_err(), "{name}");
        }
        assert_eq!(std::fs::read(path("victim")).unwrap(), b"precious");
        assert!(!path("nowhere").exists());
        symlink("nowhere", path("pruned")).unwrap();
        assert!(write_new_folder(&path("pruned"), |_| Ok(())).is_err());
    }

    /// As root, a rename would replace the device.
    #[test]
    fn devices_and_pipes_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("/dev/null", &link).unwrap();
        for path in [Path::new("/dev/null"), &link] {
            let error = write_bytes(path, b"new").unwrap_err().to_string();
            assert!(error.contains("is a device or a pipe, expected a file to write"), "{error}");
        }
        let error = write_bytes(folder.path(), b"new").unwrap_err().to_string();
        assert!(error.contains("is a folder, expected a file to write"), "{error}");
    }

    /// A pipe of a temporary name does not stop the writer that wants to remove it.
    #[test]
    fn a_planted_pipe_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join(".candle-attention-0123456789abcdef.part");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            remove_abandoned(folder.path(), Duration::ZERO);
            let error = crate::io::open_regular(&pipe).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }
}
