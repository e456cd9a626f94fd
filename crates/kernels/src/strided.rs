//! Views of memory by strides.

use super::error::{Error, Result};

/// Checks that the last `d` values of a view of `dims` are among the `available` ones.
pub(super) fn check_view(name: &str, dims: &[usize], strides: &[usize], d: usize, available: usize) -> Result<()> {
    if dims.contains(&0) {
        return Ok(());
    }
    let mut last = dims.iter().zip(strides).map(|(size, stride)| (size - 1).checked_mul(*stride));
    let end = last.try_fold(d, |end, last| end.checked_add(last?));
    if end.is_some_and(|end| end <= available) {
        return Ok(());
    }
    let end = end.map_or_else(|| "more than can be addressed".to_string(), |end| end.to_string());
    Err(Error::shape(name, dims, format!("a view of the {available} elements in memory, not of {end}")))
}
