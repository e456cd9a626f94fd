"""Golden values of the older d2l.torch.MultiHeadAttention (d2l 0.17.6).

Its signature is MultiHeadAttention(key_size, query_size, value_size, num_hiddens,
num_heads, dropout, bias).

Writes tests/fixtures/d2l_torch_old.safetensors. Pins: requirements-torch-old.txt.
Run: python tests/golden/d2l_torch_old.py

Cases `sizes` (no bias, 1-D lengths) and `sizes_bias` (bias, 2-D lengths), both with
three different input sizes. Linear weights are [out, in].
"""

import numpy as np
import torch
from d2l import torch as d2l

from common import add, linear, normal, save

KEY, QUERY, VALUE, HIDDENS, HEADS = 13, 17, 11, 30, 5


def run(tensors, name, rng, bias, lengths):
    layer = d2l.MultiHeadAttention(KEY, QUERY, VALUE, HIDDENS, HEADS, 0.5, bias)
    layer.eval()
    for linear_layer in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):
        kernel, b = linear(rng, linear_layer.in_features, HIDDENS, bias)
        linear_layer.weight.copy_(torch.from_numpy(kernel.T))
        if bias:
            linear_layer.bias.copy_(torch.from_numpy(b))
    inputs = {
        "query": normal(rng, 2, 4, QUERY),
        "key": normal(rng, 2, 7, KEY),
        "value": normal(rng, 2, 7, VALUE),
        "lengths": np.array(lengths, np.int64),
    }
    output = layer(*(torch.from_numpy(array) for array in inputs.values()))
    weights = layer.attention.attention_weights.reshape(2, HEADS, 4, 7)
    for key, array in layer.state_dict().items():
        tensors[f"{name}.layer.{key}"] = array.numpy()
    add(tensors, name, **inputs, output=output.numpy(), weights=weights.numpy())


def main():
    torch.set_num_threads(1)
    rng = np.random.default_rng(176)
    tensors = {}
    with torch.no_grad():
        run(tensors, "sizes", rng, False, [3, 6])
        run(tensors, "sizes_bias", rng, True, [[1, 7, 3, 2], [5, 4, 7, 6]])
    save(
        "d2l_torch_old.safetensors",
        tensors,
        ["torch", "d2l", "numpy", "safetensors"],
        "d2l.torch.MultiHeadAttention of d2l 0.17.6, eval mode, dropout 0.5 inactive",
    )


if __name__ == "__main__":
    main()
