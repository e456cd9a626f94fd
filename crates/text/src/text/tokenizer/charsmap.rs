//! The character map of a SentencePiece normalizer, checked before the tokenizers library reads it.
//!
//! The map is a double-array trie from bytes to replacements
//! ([format](https://github.com/google/sentencepiece/blob/master/src/normalizer.h)): the size of the trie in bytes, its
//! units as u32, and the replacements, each ended by a zero byte. The library reserves memory for as many units as the
//! size states, and follows the units without looking where they lead.

/// The longest character map, in bytes: each unit is looked at 255 times. Published ones have up to 350,000.
const MAX_CHARSMAP_BYTES: usize = 1 << 22;

/// The longest replacement of a piece of text, in bytes, which bounds how much a text grows. The longest one in
/// published maps, of U+FDFA, has 33.
pub(super) const MAX_REPLACEMENT_BYTES: usize = 64;

/// Checks that whatever text is looked up, the library stays inside the map.
pub(super) fn check(charsmap: &[u8]) -> Result<(), String> {
    let wrong = |what: String| Err(format!("`precompiled_charsmap`: {what}"));
    if charsmap.len() > MAX_CHARSMAP_BYTES {
        return wrong(format!("{} bytes, expected at most {MAX_CHARSMAP_BYTES}", charsmap.len()));
    }
    let Some((size, rest)) = charsmap.split_first_chunk::<4>() else {
        return wrong(format!("{} bytes, expected at least 4", charsmap.len()));
    };
    let size = u32::from_le_bytes(*size) as usize;
    if size == 0 || !size.is_multiple_of(4) || size > rest.len() {
        return wrong(format!("a trie of {size} bytes, expected a multiple of 4 up to the {} that follow", rest.len()));
    }
    let (units, replacements) = rest.split_at(size);
    let units: Vec<Unit> = units.as_chunks::<4>().0.iter().map(|unit| Unit(u32::from_le_bytes(*unit))).collect();
    let Ok(replacements) = std::str::from_utf8(replacements) else {
        return wrong("the replacements are no UTF-8".to_string());
    };
    let longest = replacements.split('\0').map(str::len).max().unwrap_or(0);
    if longest > MAX_REPLACEMENT_BYTES {
        return wrong(format!("a replacement of {longest} bytes, expected at most {MAX_REPLACEMENT_BYTES}"));
    }
    check_trie(&units, replacements).or_else(wrong)
}

/// Follows each path of the trie once, as the library's look-up does.
fn check_trie(units: &[Unit], replacements: &str) -> Result<(), String> {
    let outside = |at: usize| format!("the trie leads to unit {at}, expected less than {}", units.len());
    let mut seen = vec![false; units.len().next_multiple_of(256)];
    let mut bases = vec![units[0].offset()];
    while let Some(base) = bases.pop() {
        let Some(seen) = seen.get_mut(base) else { return Err(outside(base)) };
        if std::mem::replace(seen, true) {
            continue;
        }
        for byte in 1..=255 {
            let at = base ^ byte;
            let unit = units.get(at).ok_or_else(|| outside(at))?;
            if unit.label() != byte as u32 {
                continue;
            }
            let next = at ^ unit.offset();
            if unit.has_leaf() {
                let start = units.get(next).ok_or_else(|| outside(next))?.value();
                if !replacements.is_char_boundary(start) {
                    return Err(format!("a replacement starts at byte {start} of {}", replacements.len()));
                }
            }
            bases.push(next);
        }
    }
    Ok(())
}

/// A unit of the double array.
#[derive(Clone, Copy)]
struct Unit(u32);

impl Unit {
    fn has_leaf(self) -> bool {
        (self.0 >> 8) & 1 == 1
    }

    fn value(self) -> usize {
        (self.0 & 0x7fff_ffff) as usize
    }

    fn label(self) -> u32 {
        self.0 & 0x8000_00ff
    }

    fn offset(self) -> usize {
        ((self.0 >> 10) as usize) << ((self.0 & (1 << 9)) >> 6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(units: &[u32], replacements: &str) -> Vec<u8> {
        let size = (units.len() * 4) as u32;
        let units = units.iter().flat_map(|unit| unit.to_le_bytes());
        size.to_le_bytes().into_iter().chain(units).chain(replacements.bytes()).collect()
    }

    /// One block in which `a` is replaced by the text at byte `start`.
    fn one_letter(start: u32) -> Vec<u32> {
        let mut units = vec![0x8000_0000; 256];
        units[0] = 0; // the root, whose children are at their own bytes
        units[usize::from(b'a')] = u32::from(b'a') | 1 << 8 | (0x62 ^ 0x61) << 10; // its leaf is unit 0x62
        units[0x62] = 0x8000_0000 | start;
        units
    }

    #[test]
    fn sound_map_passes_and_works() {
        let map = map(&one_letter(2), "x\0éé\0");
        check(&map).unwrap();
        let normalizer = tokenizers::normalizers::Precompiled::from(&map).unwrap();
        assert_eq!(normalizer.normalize_string("bab"), "bééb");
    }

    #[test]
    fn each_fault_is_named() {
        let says = |map: &[u8], part: &str| {
            let error = check(map).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        says(&[0; 3], "3 bytes, expected at least 4");
        says(&[0; 4], "a trie of 0 bytes");
        // States 4 GiB, for which the library would reserve 8 GiB.
        says(&[0xff, 0xff, 0xff, 0xff, 0], "a trie of 4294967295 bytes, expected a multiple of 4 up to the 1");
        says(&map(&[0; 255], ""), "leads to unit 255, expected less than 255");
        says(&map(&[u32::MAX << 10; 256], ""), "expected less than 256");
        says(&map(&one_letter(3), "x\0é\0"), "starts at byte 3 of 5");
        says(&map(&one_letter(9), "x\0é\0"), "starts at byte 9 of 5");
        says(&map(&one_letter(0), &"x".repeat(65)), "a replacement of 65 bytes, expected at most 64");
        says(&[map(&one_letter(0), "").as_slice(), &[0xff]].concat(), "no UTF-8");
        says(&vec![0; MAX_CHARSMAP_BYTES + 1], "4194305 bytes, expected at most 4194304");
    }

    /// Paths that meet again are followed once.
    #[test]
    fn circles_end() {
        let mut units: Vec<u32> = (0..256).collect();
        units[0] = 0;
        let _ = check(&map(&units, ""));
    }
}
