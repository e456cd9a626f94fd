"""Golden values to judge f16 and bf16 errors: torch.nn.MultiheadAttention, self-attention.

Writes tests/fixtures/half.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/half.py

Cases `<dtype>_<s>` with (b, s, E, heads) of (2, 7, 24, 4), (1, 64, 64, 4), (1, 333, 64, 2),
and `<dtype>_uniform`: (1, 600, 16, 2) with W_q and its bias zero, so that all scores are equal.
`<case>.layer.*` and `<case>.query` are in that dtype.
`<case>.reference`: the output computed in f64 from those rounded values, stored as f32.
`<case>.torch`: what PyTorch gives on the CPU in that dtype (its last bits may depend on
the CPU). The metadata has its largest absolute error, `<case>.torch_max_abs_error`.
"""

import numpy as np
import torch

from common import normal, save

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}
SHAPES = {
    "7": (2, 7, 24, 4),
    "64": (1, 64, 64, 4),
    "333": (1, 333, 64, 2),
    "uniform": (1, 600, 16, 2),
}


def run(tensors, metadata, case, rng, dtype, b, s, embed, heads, uniform):
    layer = torch.nn.MultiheadAttention(embed, heads, batch_first=True).eval()
    for key, param in layer.named_parameters():
        scale = embed**-0.5 if key.endswith("weight") else 0.5
        param.data = torch.from_numpy(normal(rng, *param.shape, scale=scale)).to(dtype)
    if uniform:
        layer.in_proj_weight.data[:embed] = 0
        layer.in_proj_bias.data[:embed] = 0
    query = torch.from_numpy(normal(rng, b, s, embed)).to(dtype)
    for key, param in layer.state_dict().items():
        tensors[f"{case}.layer.{key}"] = param.clone()
    with torch.inference_mode():
        half, _ = layer(query, query, query, need_weights=False)
        layer, wide = layer.double(), query.double()
        reference, _ = layer(wide, wide, wide, need_weights=False)
    error = (half.double() - reference).abs().max().item()
    metadata[f"{case}.torch_max_abs_error"] = f"{error:.3e}"
    print(f"{case:14} torch's max abs error {error:.3e}, largest {reference.abs().max():.3f}")
    tensors[f"{case}.query"] = query
    tensors[f"{case}.reference"] = reference.float()
    tensors[f"{case}.torch"] = half


def main():
    torch.set_num_threads(1)
    rng = np.random.default_rng(16)
    tensors, metadata = {}, {}
    for name, dtype in DTYPES.items():
        for suffix, shape in SHAPES.items():
            run(tensors, metadata, f"{name}_{suffix}", rng, dtype, *shape, suffix == "uniform")
    save(
        "half.safetensors",
        tensors,
        ["torch", "numpy", "safetensors"],
        "torch.nn.MultiheadAttention self-attention; reference computed in f64, stored as f32",
        framework="torch",
        **metadata,
    )


if __name__ == "__main__":
    main()
