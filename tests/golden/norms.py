"""Golden values of norms and their gradients: torch.nn.LayerNorm, torch.nn.RMSNorm, and transformers' GemmaRMSNorm.

Writes tests/fixtures/norms.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/norms.py

`<case>.xs` (2, 3, 7), `<case>.weight` and `<case>.bias` (7), `<case>.ys`; `<case>.factors` (2, 3, 7), whose product with
`ys` is summed to the loss; `<case>.grad_xs`, `<case>.grad_weight`, `<case>.grad_bias`. All f32, eps 1e-5. The mean of `xs`
is far from zero.
"""

import numpy as np
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from common import add, normal, save

SIZE, EPS = 7, 1e-5


def run(tensors, case, rng, norm):
    for parameter in norm.parameters():
        parameter.data.copy_(torch.from_numpy(normal(rng, SIZE)))
    xs = torch.from_numpy(normal(rng, 2, 3, SIZE) + np.float32(4.0)).requires_grad_()
    factors = torch.from_numpy(normal(rng, 2, 3, SIZE))
    ys = norm(xs)
    (ys * factors).sum().backward()
    bias = getattr(norm, "bias", None)
    arrays = {"xs": xs, "weight": norm.weight, "bias": bias, "ys": ys, "factors": factors}
    arrays |= {"grad_xs": xs.grad, "grad_weight": norm.weight.grad, "grad_bias": None if bias is None else bias.grad}
    add(tensors, case, **{k: None if v is None else v.detach().numpy() for k, v in arrays.items()})


if __name__ == "__main__":
    tensors, rng = {}, np.random.default_rng(14)
    run(tensors, "layer", rng, torch.nn.LayerNorm(SIZE, EPS))
    run(tensors, "layer_no_bias", rng, torch.nn.LayerNorm(SIZE, EPS, bias=False))
    run(tensors, "rms", rng, torch.nn.RMSNorm(SIZE, EPS))
    run(tensors, "rms_offset", rng, GemmaRMSNorm(SIZE, EPS))
    save("norms.safetensors", tensors, ["torch", "transformers"], "see tests/golden/norms.py")
