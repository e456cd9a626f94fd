//! The stored tensors of one quantized module: what headers state about them, and reads of their data.

use bytemuck::Pod;
use half::{bf16, f16};
use safetensors::Dtype;

use super::Parts;
use crate::checkpoint::header::Entry;
use crate::checkpoint::shard::Shard;
use crate::checkpoint::source::join;
use crate::error::{Error, Result};

/// Why a module cannot be read; an [`Error::Tensor`] that can be kept.
#[derive(Clone)]
pub(crate) struct Fault {
    name: String,
    found: String,
    expected: String,
}

impl Fault {
    pub fn new(name: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { name: name.into(), found: found.into(), expected: expected.into() }
    }
}

impl From<Fault> for Error {
    fn from(Fault { name, found, expected }: Fault) -> Self {
        Self::Tensor { name, found, expected }
    }
}

/// The result of a check that does not end the reading: a fault can be kept.
pub(crate) type Checked<T> = std::result::Result<T, Fault>;

/// The stored tensors of a module.
pub(crate) struct Module<'a> {
    pub name: &'a str,
    parts: &'a Parts,
    shards: &'a [Shard],
}

impl<'a> Module<'a> {
    pub fn new(name: &'a str, parts: &'a Parts, shards: &'a [Shard]) -> Self {
        Self { name, parts, shards }
    }

    /// The full name of a tensor below the module.
    pub fn full_name(&self, part: &str) -> String {
        join(self.name, part)
    }

    pub fn has(&self, part: &str) -> bool {
        self.parts.contains_key(part)
    }

    pub fn dtype(&self, part: &str) -> Option<Dtype> {
        Some(self.parts.get(part)?.1.dtype)
    }

    /// The shape of a tensor of the module.
    pub fn shape(&self, part: &str) -> Checked<&'a [usize]> {
        Ok(&self.stored(part)?.1.shape)
    }

    /// The shape of a matrix of the module.
    pub fn matrix(&self, part: &str) -> Checked<[usize; 2]> {
        let shape = self.shape(part)?;
        shape.try_into().map_err(|_| self.wrong_shape(part, "two dimensions"))
    }

    /// The fault of a tensor with another shape than `expected`.
    pub fn wrong_shape(&self, part: &str, expected: impl Into<String>) -> Fault {
        let shape = self.parts.get(part).map(|(_, entry)| &entry.shape);
        Fault::new(self.full_name(part), format!("has shape {:?}", shape.map_or(&[][..], |shape| shape)), expected)
    }

    /// Checks that a tensor has one of these dtypes.
    pub fn check_dtype(&self, part: &str, allowed: &[Dtype]) -> Checked<()> {
        match self.stored(part)?.1.dtype {
            dtype if allowed.contains(&dtype) => Ok(()),
            dtype => {
                let allowed = allowed.iter().map(|dtype| format!("{dtype:?}")).collect::<Vec<_>>().join(" or ");
                Err(Fault::new(self.full_name(part), format!("has dtype {dtype:?}"), allowed))
            }
        }
    }

    fn stored(&self, part: &str) -> Checked<&'a (usize, Entry)> {
        self.parts.get(part).ok_or_else(|| {
            let beside = self.parts.keys().map(|part| format!("`{part}`")).collect::<Vec<_>>().join(", ");
            Fault::new(self.full_name(part), format!("is missing beside {beside}"), "all tensors of a quantized module")
        })
    }

    /// The numbers of a tensor as they are stored.
    pub fn read<T: Pod>(&self, part: &str) -> Result<Vec<T>> {
        let (shard, entry) = self.stored(part)?;
        self.shards[*shard].read(&self.full_name(part), entry)
    }

    /// Zeros for as many numbers as the weight `(out, in)` has; an error if there is no memory for them.
    pub fn zeros(&self, [rows, columns]: [usize; 2]) -> Result<Vec<f32>> {
        let shard = self.parts.values().next().map_or(0, |(shard, _)| *shard);
        self.shards[shard].zeros((rows as u64).saturating_mul(columns as u64), &self.full_name("weight"))
    }

    /// Scales, or what else is stored in floating point, in f32. f16 and bf16 are exact there.
    pub fn floats(&self, part: &str) -> Result<Vec<f32>> {
        Ok(match self.stored(part)?.1.dtype {
            Dtype::F32 => self.read(part)?,
            Dtype::F16 => self.read::<f16>(part)?.into_iter().map(f16::to_f32).collect(),
            Dtype::BF16 => self.read::<bf16>(part)?.into_iter().map(bf16::to_f32).collect(),
            // Powers of two: an exponent, and NaN.
            Dtype::F8_E8M0 => self.read::<u8>(part)?.into_iter().map(power_of_two).collect(),
            _ => {
                self.check_dtype(part, &FLOATS)?;
                Vec::new()
            }
        })
    }

    /// Whole numbers of 32 or 64 bits.
    pub fn integers(&self, part: &str) -> Result<Vec<i64>> {
        Ok(match self.stored(part)?.1.dtype {
            Dtype::I32 => self.read::<i32>(part)?.into_iter().map(i64::from).collect(),
            Dtype::I64 => self.read(part)?,
            _ => {
                self.check_dtype(part, &[Dtype::I32, Dtype::I64])?;
                Vec::new()
            }
        })
    }
}

/// The dtypes of scales.
pub(super) const FLOATS: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F8_E8M0];

/// The number that E8M0 stores.
fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        u8::MAX => f32::NAN,
        exponent => 2f32.powi(i32::from(exponent) - 127),
    }
}
