//! Files: limits, names, links, permissions, and what an error leaves.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_attention::Error;
use candle_attention::io::{read_limited, write_atomic, write_file, write_new_folder, write_tensors};
use candle_core::{DType, Device, Tensor};

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

/// Two writers of one target in one process, as two containers that are both process 1: each has a file of its own.
#[test]
fn writers_of_one_target_share_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    write_atomic(&target, |first| {
        first.write_all(b"first, ").unwrap();
        write_file(&target, b"second").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"second");
        first.write_all(b"which ends last").unwrap();
        Ok(())
    })
    .unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"first, which ends last");
    assert_eq!(only(folder.path()), target);
}

#[test]
fn an_error_leaves_the_old_content_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    write_file(&target, b"old").unwrap();
    let failed = |name: &str| Err::<(), _>(Error::file(name, "a disk that is full"));
    write_atomic(&target, |file| {
        file.write_all(&[1; 3 << 20]).unwrap();
        failed("target")
    })
    .unwrap_err();
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(only(folder.path()), target);

    let new = folder.path().join("new");
    let error = write_new_folder(&new, |made| {
        write_file(&made.join("file"), b"new").unwrap();
        assert!(!new.exists());
        write_file(&made.join("no/file"), b"new")
    });
    assert!(matches!(error, Err(Error::Io { path, .. }) if path == new.join("no/file")), "an error names the target");
    assert!(write_new_folder(&new, |_| failed("elsewhere")).unwrap_err().to_string().starts_with("elsewhere: "));
    assert_eq!(only(folder.path()), target);
}

#[test]
fn a_folder_that_exists_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let make = || write_new_folder(&target, |made| write_file(&made.join("file"), b"new"));
    assert!(make().unwrap_err().to_string().ends_with("exists already"));
    std::fs::remove_dir(&target).unwrap();
    write_new_folder(&target.join("."), |made| write_file(&made.join("file"), b"new")).unwrap();
    assert_eq!(only(&target), target.join("file"));
    assert_eq!(only(folder.path()), target);

    // Another process is faster.
    let late = folder.path().join("late");
    let result = write_new_folder(&late, |made| {
        std::fs::create_dir(&late).unwrap();
        std::fs::write(late.join("file"), "theirs").unwrap();
        write_file(&made.join("file"), b"new")
    });
    assert!(result.unwrap_err().to_string().ends_with("late: exists already"));
    assert_eq!(std::fs::read(late.join("file")).unwrap(), b"theirs");
    assert_eq!(names(folder.path()), ["late", "target"]);
}

#[test]
fn a_name_as_long_as_names_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("n".repeat(255));
    write_file(&target, b"new").unwrap();
    assert_eq!(only(folder.path()), target);
    for wrong in ["", "/", ".."] {
        let error = write_file(Path::new(wrong), b"new").unwrap_err().to_string();
        assert!(error.contains("is not the name of a file") || error.contains("is a folder"), "{error}");
    }
}

/// Other readers map the file into memory, and read a tensor in place if it is aligned there.
#[test]
fn every_tensor_starts_at_a_multiple_of_its_element() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let sizes = [("a", DType::U8, 3), ("b", DType::F64, 1), ("c", DType::F16, 5), ("d", DType::F32, 3)];
    let tensors = sizes.map(|(name, dtype, size)| (name, Tensor::zeros(size, dtype, &Device::Cpu).unwrap()));
    write_tensors(&path, tensors, HashMap::new()).unwrap();
    let file = std::fs::read(&path).unwrap();
    let (header, data) = file[8..].split_at(u64::from_le_bytes(file[..8].try_into().unwrap()) as usize);
    assert_eq!((header.len() % 8, data.len()), (0, 3 + 8 + 10 + 12));
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    for (name, dtype, _) in sizes {
        let start = header[name]["data_offsets"][0].as_u64().unwrap();
        assert_eq!(start % dtype.size_in_bytes() as u64, 0, "{name} starts at {start}");
    }
}

#[test]
fn reads_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, b"12345").unwrap();
    assert_eq!(read_limited(&path, 5).unwrap(), b"12345");
    let error = |path: &Path, limit| read_limited(path, limit).unwrap_err().to_string();
    assert!(error(&path, 4).ends_with("the file has 5 bytes, expected at most 4"), "{}", error(&path, 4));
    // A file with a hole is not read.
    File::create(&path).unwrap().set_len(1 << 36).unwrap();
    let long = error(&path, 1 << 24);
    assert!(long.contains("68719476736 bytes") && long.contains("16777216"), "{long}");
    assert!(error(folder.path(), 10).contains("not a regular file"));
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use candle_attention::io::is_present;

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
        write_file(&path("new"), b"new").unwrap();
        assert_eq!(mode(&path("new")), mode(&path("ordinary")));
        write_new_folder(&path("folder"), |made| write_file(&made.join("file"), b"new")).unwrap();
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

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("victim"), "precious").unwrap();
        // At the target, also one that leads nowhere.
        for to in ["victim", "nowhere", "link"] {
            let _ = std::fs::remove_file(path("link"));
            symlink(to, path("link")).unwrap();
            write_file(&path("link"), b"new").unwrap();
            assert!(std::fs::symlink_metadata(path("link")).unwrap().is_file());
            assert_eq!(std::fs::read(path("victim")).unwrap(), b"precious");
            assert!(!path("nowhere").exists());
        }
        symlink("nowhere", path("free")).unwrap();
        assert!(!is_present(&path("nowhere")).unwrap());
        assert!(is_present(&path("free")).unwrap(), "a link that leads nowhere");
        assert!(write_new_folder(&path("free"), |_| Ok(())).is_err());
    }

    /// As root, a rename would replace the device.
    #[test]
    fn devices_and_pipes_are_neither_read_nor_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        symlink("/dev/null", path("link")).unwrap();
        for path in [Path::new("/dev/null"), &path("link")] {
            let error = write_file(path, b"new").unwrap_err().to_string();
            assert!(error.contains("is a device or a pipe, expected a file to write"), "{error}");
        }
        let error = write_file(folder.path(), b"new").unwrap_err().to_string();
        assert!(error.contains("is a folder, expected a file to write"), "{error}");
        let made = std::process::Command::new("mkfifo").arg(path("pipe")).status();
        let pipe = made.is_ok_and(|status| status.success()).then(|| path("pipe"));
        for path in [Some(PathBuf::from("/dev/zero")), pipe].into_iter().flatten() {
            let error = read_limited(&path, 10).unwrap_err().to_string();
            assert!(error.contains("not a regular file"), "{error}");
        }
    }
}
