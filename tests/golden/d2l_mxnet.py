"""Golden values of d2l.mxnet.MultiHeadAttention (d2l 1.0.3, Gluon).

Writes tests/fixtures/d2l_mxnet.safetensors. Pins: requirements-mxnet.txt.
Run: python tests/golden/d2l_mxnet.py

Cases `toy`, `lens2d`, `nolens`; Gluon Dense weights are [out, in].
"""

from d2l import mxnet as d2l
from mxnet import np as mxnp
from mxnet import npx

from common import add, d2l_cases, save


def run(tensors, name, case):
    layer = d2l.MultiHeadAttention(case["hiddens"], case["heads"], 0.5, use_bias=case["bias"])
    layer.initialize()
    inputs = {key: case[key] for key in ("query", "key", "value", "lengths")}
    call = [
        None if array is None else mxnp.array(array, dtype=array.dtype)
        for array in inputs.values()
    ]
    layer(*call)  # the first call gives the Dense layers their sizes
    for key, (kernel, bias) in case["params"].items():
        dense = getattr(layer, key)
        dense.weight.set_data(mxnp.array(kernel.T))
        tensors[f"{name}.layer.{key}.weight"] = dense.weight.data().asnumpy()
        if bias is not None:
            dense.bias.set_data(mxnp.array(bias))
            tensors[f"{name}.layer.{key}.bias"] = dense.bias.data().asnumpy()
    output = layer(*call).asnumpy()
    b, s_q, _ = output.shape
    weights = layer.attention.attention_weights.asnumpy().reshape(b, case["heads"], s_q, -1)
    add(tensors, name, **inputs, output=output, weights=weights)


def main():
    npx.set_np()
    tensors = {}
    for name, case in d2l_cases(toy_hiddens=40).items():
        run(tensors, name, case)
    save(
        "d2l_mxnet.safetensors",
        tensors,
        ["mxnet", "d2l", "numpy", "safetensors"],
        "d2l.mxnet.MultiHeadAttention, not recording, dropout 0.5 inactive",
    )


if __name__ == "__main__":
    main()
