//! Devices, dtypes and compute types on the command line.

use std::ffi::OsStr;

use candle_attention::ComputeType;
use candle_attention_text::default_dtype;
use candle_core::{DType, Device};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, Command};

/// The options for the device, and for what is computed on it.
#[derive(clap::Args)]
pub struct Compute {
    #[arg(long, value_parser = compute_type(), hide_possible_values = true, help = dtype_help(true))]
    pub dtype: Option<ComputeType>,
    #[arg(long, default_value = "cpu", value_parser = DeviceParser, help = device_help())]
    pub device: Device,
}

impl Compute {
    /// The compute type of an encoder.
    pub fn compute_type(&self) -> ComputeType {
        self.dtype.unwrap_or_else(|| default_dtype(&self.device))
    }
}

/// The names of compute types: of dtypes, and of formats of weights in few bits.
const COMPUTE_TYPES: [&str; 7] = ["f32", "f64", "f16", "bf16", "int8", "q8_0", "q4_0"];

/// The dtypes of weights that are written.
const DTYPES: [&str; 4] = ["f32", "f64", "f16", "bf16"];

/// The kinds of devices that this build has.
const KINDS: &[&str] = &[
    "cpu",
    #[cfg(feature = "cuda")]
    "cuda",
    #[cfg(feature = "metal")]
    "metal",
];

/// Parses `cpu`, `cuda`, `cuda:1`, `metal` or `metal:1`. Help and completion name the kinds that this build has.
#[derive(Clone)]
struct DeviceParser;

impl TypedValueParser for DeviceParser {
    type Value = Device;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, name: &OsStr) -> Result<Device, clap::Error> {
        TypedValueParser::parse_ref(&device, command, arg, name)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        Some(Box::new(KINDS.iter().map(PossibleValue::new)))
    }
}

fn device(name: &str) -> Result<Device, String> {
    let (kind, index) = name.split_once(':').unwrap_or((name, "0"));
    let index: usize = index.parse().map_err(|_| format!("`{index}` is not a device number"))?;
    let device = match kind {
        "cpu" if name == "cpu" => Ok(Device::Cpu),
        "cuda" => Device::new_cuda(index),
        "metal" if cfg!(feature = "metal") => return candle_attention::metal_device(index).map_err(|e| e.to_string()),
        "metal" => Device::new_metal(index),
        _ => return Err(format!("expected {}", KINDS.join(" or "))),
    };
    device.map_err(|e| format!("{} (build with `--features {kind}`)", e.to_string().lines().next().unwrap_or_default()))
}

/// The help of an option for the compute type, of an encoder or of a layer alone.
pub fn dtype_help(is_encoder: bool) -> String {
    let on_metal = if is_encoder && cfg!(feature = "metal") { "; f16 on metal" } else { "" };
    format!(
        "Compute in f32, f64, f16 or bf16; or, on the CPU, with weights in few bits: int8, q8_0 or q4_0 \
         [default: f32, with weights that are stored in few bits as they are{on_metal}]"
    )
}

/// The help of an option for the device.
fn device_help() -> &'static str {
    match KINDS {
        ["cpu"] => "The device to run on",
        _ => "The device to run on; with several GPUs, cuda:1 or metal:1 is the second",
    }
}

/// Parses a compute type.
pub fn compute_type() -> impl TypedValueParser<Value = ComputeType> {
    PossibleValuesParser::new(COMPUTE_TYPES).try_map(|name| name.parse::<ComputeType>())
}

/// Parses `f32`, `f64`, `f16` or `bf16`.
pub fn dtype() -> impl TypedValueParser<Value = DType> {
    PossibleValuesParser::new(DTYPES).try_map(|name| name.parse::<DType>())
}
