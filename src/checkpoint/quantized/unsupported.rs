//! Formats that are recognized to say what they are: made for one library's kernels, or for GPUs.

use safetensors::Dtype;

use super::module::{Fault, Module};

/// A format that is not read.
pub(super) struct Unsupported {
    pub name: &'static str,
    /// The names of its tensors below a module.
    pub tensors: &'static [&'static str],
    pub fits: fn(&Module) -> bool,
}

impl Unsupported {
    /// The error of whatever needs the weight.
    pub fn fault(&self, module: &Module) -> Fault {
        let expected = "a format of docs/checkpoint-formats.md: save the model unquantized (`dequantize` of \
                        transformers), or take another of its files";
        Fault::new(module.full_name("weight"), format!("is quantized by {}, which is not read", self.name), expected)
    }
}

#[rustfmt::skip]
pub(super) const UNSUPPORTED: &[Unsupported] = &[
    Unsupported {
        name: "bitsandbytes in 4 bits",
        tensors: &["weight", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map",
            "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"],
        fits: |module| module.has("weight.absmax") || module.has("weight.quant_map"),
    },
    Unsupported {
        name: "bitsandbytes in 8 bits",
        tensors: &["weight", "SCB", "weight_format"],
        fits: |module| module.has("SCB"),
    },
    Unsupported {
        name: "NVFP4",
        tensors: &["weight", "weight_packed", "weight_scale", "weight_global_scale", "weight_scale_2",
            "input_global_scale", "input_scale"],
        fits: |module| module.has("weight_global_scale") || module.has("weight_scale_2"),
    },
    Unsupported {
        name: "MXFP4, MXFP6, MXFP8 or BitNet (scales or weights of type U8)",
        tensors: &["weight", "weight_packed", "weight_scale"],
        fits: |module| {
            let bytes = |part| module.dtype(part) == Some(Dtype::U8);
            module.has("weight_scale") && ["weight", "weight_packed", "weight_scale"].into_iter().any(bytes)
        },
    },
    Unsupported {
        name: "EETQ",
        tensors: &["weight", "weight_scales"],
        fits: |module| module.dtype("weight") == Some(Dtype::I8) && module.has("weight_scales"),
    },
    Unsupported {
        name: "HQQ or SINQ",
        tensors: &["W_q", "meta", "scale", "zero", "shape", "axis", "nbits", "group_size", "packing",
            "unpack_view_dtype", "view_as_float", "quant_scale", "quant_zero", "compute_dtype", "channel_wise",
            "optimize", "round_zero", "stores_quant_config", "offload_meta"],
        fits: |module| module.has("W_q") && (module.has("meta") || module.has("scale") && module.has("zero")),
    },
    Unsupported {
        name: "quanto",
        tensors: &["weight._data", "weight._scale", "weight._shift", "input_scale", "output_scale"],
        fits: |module| module.has("weight._data"),
    },
    Unsupported {
        name: "torchao",
        tensors: &["_weight_qdata", "_weight_scale", "_weight_zero_point", "_weight_scale_and_zero"],
        fits: |module| module.has("_weight_qdata"),
    },
    Unsupported {
        name: "AQLM",
        tensors: &["codes", "codebooks", "scales"],
        fits: |module| module.has("codes") && module.has("codebooks"),
    },
];
