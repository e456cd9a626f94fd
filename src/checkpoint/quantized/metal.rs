//! The method `metal` of transformers: MLX's affine groups with the biases in `qbiases`.

use safetensors::Dtype;

use super::Format;
use super::mlx::{affine_plan, read_affine};

pub(super) const METAL: Format = Format {
    name: "metal",
    tensors: &["weight", "scales", "qbiases"],
    fits: |module| module.dtype("weight") == Some(Dtype::U32) && module.has("qbiases"),
    plan: |module, settings| affine_plan(module, settings, "qbiases", &[2, 4, 8]),
    read: |module, plan| read_affine(module, plan, "qbiases"),
};
