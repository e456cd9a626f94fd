//! Formats that are recognized to say what they are: made for one library's kernels, or for GPUs.

use safetensors::Dtype;

use super::Format;
use super::module::{Fault, Module};

/// The error of whatever needs the weight.
pub(super) fn fault(format: &Format, module: &Module) -> Fault {
    let expected = "a format of docs/checkpoint-formats.md: save the model unquantized (`dequantize` of \
                    transformers), or take another of its files";
    Fault::new(module.full_name("weight"), format!("is quantized by {}, which is not read", format.name), expected)
}

const fn unread(name: &'static str, tensors: &'static [&'static str], fits: fn(&Module) -> bool) -> Format {
    Format { name, tensors, fits, plan: None, read: None }
}

/// Their names, the names of their tensors, and what tells them from others.
#[rustfmt::skip]
pub(super) const UNREAD: &[Format] = &[
    unread("bitsandbytes in 4 bits",
        &["weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
            "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"],
        |module| module.has("weight.absmax") || module.has("weight.quant_map")),
    unread("bitsandbytes in 8 bits", &["weight", "SCB", "weight_format"],
        |module| module.has("SCB")),
    unread("NVFP4", &["weight", "weight_packed", "weight_scale", "weight_global_scale", "weight_scale_2",
            "input_global_scale", "input_scale"],
        |module| module.has("weight_global_scale") || module.has("weight_scale_2")),
    unread("MXFP4, MXFP6, MXFP8 or BitNet (scales or weights of type U8)",
        &["weight", "weight_packed", "weight_scale"],
        |module| {
            let bytes = |part| module.dtype(part) == Some(Dtype::U8);
            module.has("weight_scale") && ["weight", "weight_packed", "weight_scale"].into_iter().any(bytes)
        }),
    unread("EETQ", &["weight", "weight_scales"],
        |module| module.dtype("weight") == Some(Dtype::I8) && module.has("weight_scales")),
    unread("HQQ or SINQ", &["W_q", "meta", "scale", "zero", "shape", "axis", "nbits", "group_size", "packing",
            "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "compute_dtype", "channel_wise",
            "optimize", "round_zero", "stores_quant_config", "offload_meta"],
        |module| module.has("W_q") && (module.has("meta") || module.has("scale") && module.has("zero"))),
    unread("quanto", &["weight._data", "weight._scale", "weight._shift", "input_scale", "output_scale"],
        |module| module.has("weight._data")),
    unread("torchao", &["_weight_qdata", "_weight_scale", "_weight_zero_point", "_weight_scale_and_zero"],
        |module| module.has("_weight_qdata")),
    unread("AQLM", &["codes", "codebooks", "scales"],
        |module| module.has("codes") && module.has("codebooks")),
];
