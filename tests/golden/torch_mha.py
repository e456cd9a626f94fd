"""Golden values of torch.nn.MultiheadAttention (batch_first, eval mode).

Writes tests/fixtures/torch_mha.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/torch_mha.py

`<case>.drop` (u8, (b, s_kv)): key_padding_mask, 1 = blocked.
`additive.additive` (f32, (1, 1, s_q, s_kv)): float attn_mask.
`causal`: bool attn_mask, True (blocked) above the diagonal; not saved.
With bias_kv / zero_attn the extra keys are the last columns of `<case>.weights`.
"""

import numpy as np
import torch

from common import add, normal, save

EMBED, HEADS, BATCH, S_Q, S_KV = 24, 4, 2, 5, 7
DROP = np.array([[0, 0, 1, 0, 0, 1, 1], [0, 1, 0, 0, 0, 0, 0]], np.uint8)


def run(tensors, name, rng, self_attention=False, drop=None, additive=None, causal=False, **options):
    layer = torch.nn.MultiheadAttention(EMBED, HEADS, dropout=0.5, batch_first=True, **options)
    layer.eval()
    for key, param in layer.named_parameters():  # also the biases, which start at zero
        scale = param.shape[1] ** -0.5 if key.endswith("weight") else 0.5
        param.copy_(torch.from_numpy(normal(rng, *param.shape, scale=scale)))
    query = normal(rng, BATCH, S_Q, EMBED)
    if self_attention:
        key = value = query
    else:
        key = normal(rng, BATCH, S_KV, options.get("kdim", EMBED))
        value = normal(rng, BATCH, S_KV, options.get("vdim", EMBED))

    attn_mask = None
    if causal:
        attn_mask = torch.ones(S_Q, S_Q, dtype=torch.bool).triu(1)
    elif additive is not None:
        attn_mask = torch.from_numpy(additive[0, 0])
    output, weights = layer(
        *(torch.from_numpy(array) for array in (query, key, value)),
        key_padding_mask=None if drop is None else torch.from_numpy(drop).bool(),
        attn_mask=attn_mask,
        need_weights=True,
        average_attn_weights=False,
    )
    for param, array in layer.state_dict().items():
        tensors[f"{name}.layer.{param}"] = array.numpy()
    add(tensors, name, query=query, key=key, value=value, drop=drop, additive=additive)
    add(tensors, name, output=output.numpy(), weights=weights.numpy())


def main():
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    rng = np.random.default_rng(11)
    tensors = {}
    with torch.no_grad():
        run(tensors, "packed", rng, self_attention=True)
        run(tensors, "packed_nobias", rng, self_attention=True, bias=False)
        run(tensors, "cross", rng, drop=DROP)
        run(tensors, "split", rng, kdim=13, vdim=11)
        run(tensors, "bias_kv", rng, drop=DROP, add_bias_kv=True)
        run(tensors, "zero_attn", rng, drop=DROP, add_zero_attn=True)
        run(tensors, "bias_kv_zero", rng, drop=DROP, add_bias_kv=True, add_zero_attn=True)
        run(tensors, "additive", rng, additive=normal(rng, 1, 1, S_Q, S_KV))
        run(tensors, "causal", rng, self_attention=True, causal=True)
    save(
        "torch_mha.safetensors",
        tensors,
        ["torch", "numpy", "safetensors"],
        "torch.nn.MultiheadAttention, embed_dim 24, 4 heads, eval mode, batch_first, fast path off",
    )


if __name__ == "__main__":
    main()
