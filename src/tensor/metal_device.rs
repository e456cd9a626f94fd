//! Opening an Apple GPU.

use std::panic::{UnwindSafe, catch_unwind};

use candle_core::{DType, Device, Tensor};

use crate::ensure;
use crate::error::{Error, Result, panic_message};

/// The Apple GPU with this index, if it runs candle's kernels.
///
/// [`Device::new_metal`] panics on a machine without a GPU and before macOS 15, whose Metal has no residency sets. It
/// also opens GPUs on which each model fails: those before the A14, which cannot multiply matrices within a SIMD group,
/// and that of the simulator for iPhones. Here a small product and a softmax in f16 are computed first, which compiles
/// the kernels that a model needs anyway. A panic prints its message where panics do. Before iOS 18 a program with
/// candle's Metal does not start.
///
/// # Errors
/// [`Error::Value`] with the reason; [`Error::Candle`] if the crate was built without the feature `metal`.
pub fn metal_device(index: usize) -> Result<Device> {
    if !candle_core::utils::metal_is_available() {
        return Ok(Device::new_metal(index)?);
    }
    ensure!(!cfg!(target_abi = "sim"), unusable(index, "the simulator's cannot multiply matrices"));
    open(index, move || {
        let device = Device::new_metal(index)?;
        Ok((computes(&device)?, device))
    })
}

/// The device that `new` opens, if it computes right numbers.
fn open(index: usize, new: impl FnOnce() -> candle_core::Result<(bool, Device)> + UnwindSafe) -> Result<Device> {
    match catch_unwind(new) {
        Ok(Ok((true, device))) => Ok(device),
        Ok(Ok((false, _))) => Err(unusable(index, "it computes wrong numbers")),
        Ok(Err(error)) => Err(unusable(index, error.to_string().lines().next().unwrap_or_default())),
        Err(panic) => Err(unusable(index, panic_message(&*panic))),
    }
}

/// Whether a product and a softmax are right. All numbers are exact in f16.
fn computes(device: &Device) -> candle_core::Result<bool> {
    let ones = Tensor::ones((16, 16), DType::F16, device)?;
    let product = ones.matmul(&ones)?;
    let softmax = candle_nn::ops::softmax_last_dim(&product)?;
    let all = |tensor: Tensor, value: f32| -> candle_core::Result<bool> {
        let numbers = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(numbers.into_iter().all(|x| x == value))
    };
    Ok(all(product, 16.0)? && all(softmax, 1.0 / 16.0)?)
}

fn unusable(index: usize, reason: &str) -> Error {
    let expected = format!("a GPU that runs candle's kernels, from macOS 15, iOS 18 and the A14 on: {reason}");
    Error::value("the device", format!("metal:{index}"), expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_computes_is_opened_and_the_reason_against_another_is_told() {
        assert!(computes(&Device::Cpu).unwrap());
        assert!(open(0, || Ok((true, Device::Cpu))).unwrap().is_cpu());
        let message = |new: fn() -> candle_core::Result<(bool, Device)>| open(1, new).unwrap_err().to_string();
        assert!(message(|| Ok((false, Device::Cpu))).ends_with(": it computes wrong numbers"));
        let panicked = message(|| panic!("no residency sets"));
        assert_eq!(
            panicked,
            "the device is metal:1, expected a GPU that runs candle's kernels, from macOS 15, iOS 18 and the A14 on: \
             no residency sets"
        );
        let failed = message(|| candle_core::bail!("no queue\nbacktrace"));
        assert!(failed.ends_with(": no queue"), "{failed}");
    }

    #[cfg(not(feature = "metal"))]
    #[test]
    fn a_build_for_other_devices_says_so() {
        assert!(matches!(metal_device(0), Err(Error::Candle(_))));
    }
}
