//! Sizes of memory, computed without overflow and asked for without an abort.
//!
//! A view with strides of 0 has any shape and takes no memory. So the product of its dimensions may wrap around in
//! `usize`, and a copy of it may be larger than all memory. Rust wraps in release builds, and aborts the process where
//! an allocation fails. Both become errors here, before a kernel relies on the size.

use super::error::{Error, Result};

/// The most elements that a tensor may have: as many as `isize::MAX` bytes hold, the limit of any
/// allocation, in the widest dtype (f64). Nothing real comes near it on a 64-bit processor.
const MAX_ELEMENTS: usize = isize::MAX as usize / size_of::<f64>();

/// The number of elements of `what`, which has these dimensions.
///
/// # Errors
/// If there are more elements than can be addressed.
pub fn element_count(what: &str, dims: &[usize]) -> Result<usize> {
    if dims.contains(&0) {
        return Ok(0);
    }
    let product = dims.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
    product.filter(|count| *count <= MAX_ELEMENTS).ok_or_else(|| {
        Error::shape(what, dims, format!("at most {MAX_ELEMENTS} elements, which is all that can be addressed"))
    })
}

/// Makes room for `count` more elements of `what`.
///
/// # Errors
/// If there is not enough memory.
pub fn try_reserve<T>(what: &str, vec: &mut Vec<T>, count: usize) -> Result<()> {
    vec.try_reserve_exact(count).map_err(|_| no_memory::<T>(what, count))
}

/// `count` zeros for `what`, from the system where it has pages of them.
///
/// # Errors
/// If there is not enough memory.
pub fn zeros<T: bytemuck::Zeroable>(what: &str, count: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| no_memory::<T>(what, count))
}

/// Checks that the system has memory for `count` elements of `what`, before an operation that would abort without it.
///
/// # Errors
/// If there is not enough memory.
pub fn check_allocation<T>(what: &str, count: usize) -> Result<()> {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if is_granted(bytes) => Ok(()),
        _ => Err(no_memory::<T>(what, count)),
    }
}

/// Whether the allocator grants this many bytes.
fn is_granted(bytes: usize) -> bool {
    let mut memory = Vec::<u8>::new();
    let granted = memory.try_reserve_exact(bytes).is_ok();
    // The compiler may leave out an allocation that nobody uses, and take it for granted.
    std::hint::black_box(&mut memory);
    granted
}

fn no_memory<T>(what: &str, count: usize) -> Error {
    let found = format!("{} bytes", count as u128 * size_of::<T>() as u128);
    Error::value(format!("the memory for {what}"), found, "an amount that can be allocated")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_that_wrap_around_are_errors() {
        assert_eq!(element_count("x", &[2, 3, 5]).unwrap(), 30);
        assert_eq!(element_count("x", &[]).unwrap(), 1);
        assert_eq!(element_count("x", &[usize::MAX, 0, usize::MAX]).unwrap(), 0);
        let half = 1usize << (usize::BITS / 2);
        for dims in [&[half, half][..], &[usize::MAX, 2], &[half, half, 2, 3], &[MAX_ELEMENTS + 1]] {
            let error = element_count("x", dims).unwrap_err().to_string();
            assert!(error.contains(&MAX_ELEMENTS.to_string()), "{error}");
        }
    }

    #[test]
    fn memory_that_nobody_has_is_an_error() {
        for count in [usize::MAX, MAX_ELEMENTS] {
            let error = check_allocation::<f64>("x", count).unwrap_err().to_string();
            assert!(error.contains("the memory for x") && error.contains("bytes"), "{error}");
        }
        check_allocation::<f32>("x", 10).unwrap();
    }
}
