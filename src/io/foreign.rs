//! Names the content of a file that is not what its name says, for errors.

use crate::io::text::wide_encoding;

/// A phrase for `bytes`, the start of a file that is no JSON, safetensors or UTF-8, with what to do where that is
/// known. `None` if they are nothing that is often found in the place of another file.
pub fn foreign_content(bytes: &[u8]) -> Option<&'static str> {
    const STARTS: [(&[u8], &str); 3] = [
        (b"version https://git-lfs", "a Git LFS pointer, not the file itself: `git lfs pull` downloads it"),
        (b"\xef\xbb\xbf", "text with a byte order mark, expected UTF-8 without one"),
        (
            b"PK\x03\x04",
            "a zip archive, as PyTorch writes `.bin`, `.pt` and `.pth` files: candle's `VarBuilder::from_pth` reads it",
        ),
    ];
    if bytes.is_empty() {
        return Some("empty");
    }
    let known = STARTS.iter().find(|(start, _)| bytes.starts_with(start));
    if let Some((_, what)) = known {
        return Some(what);
    }
    let text = bytes.trim_ascii_start();
    let is_tag = |tag: &[u8]| text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
    if [&b"<!doctype"[..], b"<html", b"<?xml", b"<head"].into_iter().any(is_tag) {
        return Some("a web page, as a failed download leaves it");
    }
    match wide_encoding(bytes) {
        Some("UTF-16") => Some("text in UTF-16, expected UTF-8"),
        Some(_) => Some("text in UTF-32, expected UTF-8"),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_the_place_of_others_are_named() {
        let wide = |text: &str, bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect::<Vec<u8>>();
        for (bytes, what) in [
            (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n".to_vec(), "LFS"),
            (b"\n <!DOCTYPE html><html>".to_vec(), "web page"),
            (b"<?xml version='1.0'?><Error/>".to_vec(), "web page"),
            (b"\xef\xbb\xbf{}".to_vec(), "byte order mark"),
            (b"\xff\xfe\0\0{\0\0\0".to_vec(), "UTF-32"),
            (wide("\u{feff}{}", u16::to_le_bytes), "UTF-16"),
            (wide("\u{feff}{}", u16::to_be_bytes), "UTF-16"),
            (wide("{\"a\"", u16::to_le_bytes), "UTF-16"),
            (wide("{\n", u16::to_be_bytes), "UTF-16"),
            (b"PK\x03\x04\0\0".to_vec(), "zip"),
            (Vec::new(), "empty"),
        ] {
            assert!(foreign_content(&bytes).is_some_and(|found| found.contains(what)), "{what}");
        }
        for bytes in [&b"{}"[..], b"\x80\0\0\0\0\0\0\0{}", b"<s>"] {
            assert_eq!(foreign_content(bytes), None);
        }
    }
}
