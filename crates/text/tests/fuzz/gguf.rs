//! GGUF files of real headers and blocks, with damage.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};

use crate::repository;

/// A model, and blocks of every type.
static FILES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let file = |name: &str| std::fs::read(repository(&format!("tests/fixtures/gguf/{name}.gguf"))).expect("fixtures");
    ["types", "bert-q4_0", "qwen3"].map(file).into()
});

/// Numbers that a length, a count, a type, an offset or an alignment should not be.
const NUMBERS: [u64; 10] = [0, 1, 31, 255, 1 << 16, 1 << 20, 1 << 31, 1 << 40, 1 << 63, u64::MAX];

/// A file with a few of its bytes or numbers changed, taken out or repeated, most of them in its header, or cut.
pub fn file(u: &mut Unstructured) -> Result<Vec<u8>> {
    let mut file = u.choose(&FILES)?.clone();
    for _ in 0..u.int_in_range(0..=6)? {
        let end = if u.ratio(3, 4)? { file.len().min(1 << 10) } else { file.len() };
        let at = u.int_in_range(0..=end.saturating_sub(8))?;
        match u.int_in_range(0..=5)? {
            0 => file[at] = u.arbitrary()?,
            1 => file[at..at + 8].copy_from_slice(&u.choose(&NUMBERS)?.to_le_bytes()),
            2 => file[at..at + 4].copy_from_slice(&(*u.choose(&NUMBERS)? as u32).to_le_bytes()),
            3 => drop(file.drain(at..at + u.int_in_range(1..=8)?)),
            4 => {
                let part = file[at..at + 8].to_vec();
                file.splice(at..at, part);
            }
            _ => file.truncate(at.max(8)),
        }
        if file.len() < 16 {
            break;
        }
    }
    Ok(file)
}
