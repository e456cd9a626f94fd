"""Golden values of d2l.torch: MultiHeadAttention and AdditiveAttention (d2l 1.0.3).

Writes tests/fixtures/d2l_torch.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/d2l_torch.py

Cases `toy`, `lens2d`, `nolens`; `fullymasked` (a length of 0: d2l gives a uniform
row over all keys, not zeros); `additive`. Linear weights are [out, in].
"""

import numpy as np
import torch
from d2l import torch as d2l

from common import add, d2l_cases, linear, normal, save


def tensor(array):
    return None if array is None else torch.from_numpy(array.copy())


def set_params(layer, params):
    """Loads {name: (kernel [in, out], bias or None)} into the layer's Linear modules."""
    state = {}
    for name, (kernel, bias) in params.items():
        state[f"{name}.weight"] = tensor(kernel.T)
        if bias is not None:
            state[f"{name}.bias"] = tensor(bias)
    layer.load_state_dict(state)


def run(tensors, name, case):
    layer = d2l.MultiHeadAttention(case["hiddens"], case["heads"], 0.5, bias=case["bias"])
    layer.eval()
    inputs = {key: case[key] for key in ("query", "key", "value", "lengths")}
    call = [tensor(array) for array in inputs.values()]
    layer(*call)  # the first call gives the lazy layers their sizes
    set_params(layer, case["params"])
    output = layer(*call)
    b, s_q, _ = output.shape
    weights = layer.attention.attention_weights.reshape(b, case["heads"], s_q, -1)
    for key, array in layer.state_dict().items():
        tensors[f"{name}.layer.{key}"] = array.numpy()
    add(tensors, name, **inputs, output=output.numpy(), weights=weights.numpy())


def run_additive(tensors, name):
    rng = np.random.default_rng(7)
    layer = d2l.AdditiveAttention(num_hiddens=8, dropout=0.5)
    layer.eval()
    inputs = {
        "query": normal(rng, 2, 3, 20),
        "key": normal(rng, 2, 10, 2),
        "value": normal(rng, 2, 10, 4),
        "lengths": np.array([2, 6], np.int64),
    }
    call = [tensor(array) for array in inputs.values()]
    layer(*call)
    set_params(
        layer,
        {
            "W_q": linear(rng, 20, 8, False),
            "W_k": linear(rng, 2, 8, False),
            "w_v": (normal(rng, 8, 1), None),
        },
    )
    output = layer(*call)
    for key, array in layer.state_dict().items():
        tensors[f"{name}.layer.{key}"] = array.numpy()
    add(tensors, name, **inputs, output=output.numpy(), weights=layer.attention_weights.numpy())


def main():
    torch.set_num_threads(1)
    tensors = {}
    with torch.no_grad():
        for name, case in d2l_cases(toy_hiddens=100).items():
            run(tensors, name, case)
        masked = d2l_cases(toy_hiddens=20)["toy"]
        masked["lengths"] = np.array([0, 2], np.int64)
        run(tensors, "fullymasked", masked)
        run_additive(tensors, "additive")
    save(
        "d2l_torch.safetensors",
        tensors,
        ["torch", "d2l", "numpy", "safetensors"],
        "d2l.torch.MultiHeadAttention and AdditiveAttention, eval mode, dropout 0.5 inactive",
    )


if __name__ == "__main__":
    main()
