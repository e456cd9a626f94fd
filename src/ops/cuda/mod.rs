//! Row-wise operations over tensors on an NVIDIA GPU, one kernel launch each.
//!
//! The kernels themselves take addresses and strides (`kernels::cuda`); this module gets those from tensors. Unit tests
//! of builds without the feature `cuda` call a mock of the kernels instead, so that the code which decides when to
//! launch them is tested everywhere.

#[cfg(any(test, feature = "cuda"))]
mod check;
#[cfg(all(test, not(feature = "cuda")))]
#[path = "../../../tests/unit/cuda_mock.rs"]
mod mock;
#[cfg(feature = "cuda")]
mod rowwise;
#[cfg(not(any(test, feature = "cuda")))]
mod unavailable;

#[cfg(all(test, not(feature = "cuda")))]
pub(crate) use mock::{activated, is_mocked, norm, rotate, with_mock_device};
#[cfg(feature = "cuda")]
pub(crate) use rowwise::{activated, norm, rotate};
#[cfg(not(any(test, feature = "cuda")))]
pub(crate) use unavailable::{activated, norm, rotate};
