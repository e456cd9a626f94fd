//! Text in UTF-8, and the name of what is none.

/// The text of bytes that begin at line `first_line` (from 1) of a file; at its start without a byte order mark, which
/// ordinary Windows tools write.
///
/// # Errors
/// The form that the bytes have instead: UTF-16 or UTF-32, with or without a mark; a line with a NUL byte; a line that
/// is not UTF-8.
pub fn utf8_text(bytes: &[u8], first_line: usize) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes);
    let (end, fault) = match (bytes.iter().position(|&byte| byte == 0), &text) {
        (Some(nul), _) => (nul, "holds a NUL byte, expected text in UTF-8"),
        (_, Err(error)) => (error.valid_up_to(), "is not UTF-8"),
        (None, Ok(text)) if first_line == 1 => return Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        (None, Ok(text)) => return Ok(text),
    };
    if let Some(encoding) = wide_encoding(bytes) {
        return Err(format!("the text is in {encoding}, expected UTF-8"));
    }
    let line = first_line + bytes[..end].iter().filter(|&&byte| byte == b'\n').count();
    Err(format!("line {line} {fault}"))
}

/// The encoding of bytes that are not text in UTF-8, if they begin with its mark, or are its printable characters, some
/// of them ASCII, and as UTF-8 no text at all, not just one with a NUL byte in it.
pub(super) fn wide_encoding(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => return Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Some("UTF-16"),
        _ => {}
    }
    let is_control = |byte: &&u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    if std::str::from_utf8(bytes).is_ok() && 4 * bytes.iter().filter(is_control).count() < bytes.len() {
        return None;
    }
    let utf16 = |unit: fn([u8; 2]) -> u16| {
        let units = bytes.as_chunks().0.iter().map(|bytes| unit(*bytes));
        is_text(char::decode_utf16(units).map(Result::ok))
    };
    let utf32 = |unit: fn([u8; 4]) -> u32| is_text(bytes.as_chunks().0.iter().map(|b| char::from_u32(unit(*b))));
    if utf32(u32::from_le_bytes) || utf32(u32::from_be_bytes) {
        return Some("UTF-32");
    }
    (utf16(u16::from_le_bytes) || utf16(u16::from_be_bytes)).then_some("UTF-16")
}

/// Whether characters are printable, and at least one of them is ASCII, as the spaces of most texts.
fn is_text(mut characters: impl Iterator<Item = Option<char>>) -> bool {
    let mut has_ascii = false;
    let is_printable = characters.all(|character| {
        has_ascii |= character.is_some_and(|c| c.is_ascii());
        character.is_some_and(|c| !c.is_control() || c.is_ascii_whitespace())
    });
    is_printable && has_ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_utf8_is_named() {
        for text in ["Die Katze saß auf der Matte 😀 北京\r\n", "привет мир\n", "北京 東京\n"] {
            check_wide(text);
        }
        let nul = |line: usize| Err(format!("line {line} holds a NUL byte, expected text in UTF-8"));
        assert_eq!(utf8_text(b"one\nt\0wo\n", 1), nul(2));
        assert_eq!(utf8_text(b"one\tt\0wo\n", 3), nul(3));
        assert_eq!(utf8_text(b"\0", 7), nul(7));
        assert_eq!(utf8_text(b"\x89PNG\x1a\n\0\0\0\x0dIHDR", 1), nul(2));
        assert_eq!(utf8_text(b"one\ncaf\xe9\n", 3), Err("line 4 is not UTF-8".to_string()));
        let marked = "\u{feff}\u{feff}one".as_bytes();
        assert_eq!((utf8_text(marked, 1), utf8_text(marked, 2)), (Ok("\u{feff}one"), Ok("\u{feff}\u{feff}one")));
    }

    /// UTF-16 and UTF-32 of a text, in both orders of bytes, with and without a mark.
    fn check_wide(text: &str) {
        let utf16: Vec<u16> = text.encode_utf16().collect();
        let wide: [(&str, Vec<u8>); 4] = [
            ("UTF-16", utf16.iter().flat_map(|unit| unit.to_le_bytes()).collect()),
            ("UTF-16", utf16.iter().flat_map(|unit| unit.to_be_bytes()).collect()),
            ("UTF-32", text.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect()),
            ("UTF-32", text.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect()),
        ];
        let marks: [&[u8]; 4] = [&[0xff, 0xfe], &[0xfe, 0xff], &[0xff, 0xfe, 0, 0], &[0, 0, 0xfe, 0xff]];
        for ((name, bytes), mark) in wide.into_iter().zip(marks) {
            let said = Err(format!("the text is in {name}, expected UTF-8"));
            assert_eq!(utf8_text(&bytes, 1), said);
            assert_eq!(utf8_text(&[mark, &bytes].concat(), 1), said);
            // As lines are read: without what follows the byte of the line end.
            let line = bytes.iter().position(|&byte| byte == b'\n').unwrap();
            assert_eq!(utf8_text(&bytes[..=line], 1), said);
        }
    }
}
