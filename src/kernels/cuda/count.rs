//! Counts as the kernels take them, in 32 bits.

use crate::error::{Error, Result};

/// Largest count of sequences, heads, queries, keys or elements of a row. Kernels count in 32 signed bits, go past the
/// last query or key by up to a tile, and add up to two counts.
pub(crate) const MAX_COUNT: usize = 1 << 30;

/// A count as a kernel takes it; `name` is what it counts.
pub(crate) fn to_i32(name: &str, count: usize) -> Result<i32> {
    match i32::try_from(count) {
        Ok(small) if count <= MAX_COUNT => Ok(small),
        _ => Err(Error::value(format!("the number of {name}"), count, "at most 2^30 for a kernel on an NVIDIA GPU")),
    }
}

/// Positions as a kernel takes them: counts that may be negative.
pub(crate) fn to_i32_positions(name: &str, positions: &[i64]) -> Result<Vec<i32>> {
    let small = |position: &i64| {
        let fits = position.unsigned_abs() <= MAX_COUNT as u64;
        let expected = "from -2^30 to 2^30 for a kernel on an NVIDIA GPU";
        i32::try_from(*position).ok().filter(|_| fits).ok_or_else(|| Error::value(name, position, expected))
    };
    positions.iter().map(small).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_a_kernel_cannot_take_are_errors() {
        assert_eq!(to_i32("keys", MAX_COUNT).unwrap(), 1 << 30);
        for count in [MAX_COUNT + 1, 1 << 31, (1 << 32) + 5, 1 << 32, usize::MAX] {
            let error = to_i32("keys", count).unwrap_err().to_string();
            assert!(error.starts_with(&format!("the number of keys is {count}, expected at most 2^30")), "{error}");
        }
        assert_eq!(to_i32_positions("a position", &[-(1 << 30), 5, 1 << 30]).unwrap(), [-(1 << 30), 5, 1 << 30]);
        for position in [i64::MIN, -(1 << 32), (1 << 30) + 1, 1 << 32, i64::MAX] {
            assert!(to_i32_positions("a position", &[0, position]).is_err());
        }
    }
}
