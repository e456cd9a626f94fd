//! Sizes that are counted without overflow, and buffers at cache lines.

use candle_attention_kernels::{AlignedVec, check_allocation, element_count};
use half::bf16;

/// The most elements of the widest dtype that an allocation may have.
const MAX_ELEMENTS: usize = isize::MAX as usize / size_of::<f64>();

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
    // In WebAssembly half of the addresses can be had.
    for count in [usize::MAX, usize::MAX / size_of::<f64>()] {
        let error = check_allocation::<f64>("x", count).unwrap_err().to_string();
        assert!(error.contains("the memory for x") && error.contains("bytes"), "{error}");
    }
    check_allocation::<f32>("x", 10).unwrap();
}

#[test]
fn buffers_start_at_a_cache_line() {
    let mut buffers: Vec<AlignedVec<f32>> = Vec::new();
    for len in [1, 15, 16, 17, 1000, 70_000] {
        buffers.push(AlignedVec::zeros("a test", len).unwrap());
        let last = buffers.last().unwrap();
        assert_eq!((last.len(), last.as_ptr() as usize % 64), (len, 0));
        assert!(last.iter().all(|x| *x == 0.0) && last.capacity() >= len);
    }
    let mut narrow = AlignedVec::<bf16>::default();
    narrow.resize("a test", 33).unwrap();
    assert_eq!((narrow.len(), narrow.capacity(), narrow.as_ptr() as usize % 64), (33, 64, 0));
    narrow.resize("a test", 3).unwrap();
    assert_eq!((narrow.len(), narrow.capacity()), (3, 64), "a smaller size keeps the memory");
}

#[test]
fn a_buffer_that_no_memory_holds_is_an_error() {
    let error = AlignedVec::<f32>::zeros("the test", usize::MAX / 8).unwrap_err().to_string();
    assert!(error.contains("the test"), "{error}");
}
