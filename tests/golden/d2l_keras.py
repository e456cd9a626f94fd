"""Golden values of d2l.tensorflow.MultiHeadAttention (d2l 1.0.3) and of Keras's own layer.

Writes tests/fixtures/d2l_keras.safetensors and tests/fixtures/keras_mha.safetensors.
Pins: requirements-jax.txt. Run: python tests/golden/d2l_keras.py

d2l_keras: cases `toy`, `lens2d`, `nolens`; Dense kernels are [in, out].
keras_mha (keras.layers.MultiHeadAttention): cases `self` and `cross` (value_dim differs
from key_dim, attention_mask in `cross.keep`, u8 (b, s_q, s_kv), 1 = attend);
query/key/value kernels are [E, h, d], attention_output.kernel is [h, d, E].
"""

import os

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
from d2l import tensorflow as d2l

from common import add, d2l_cases, normal, save

EMBED, HEADS = 20, 4
VERSIONS = ["tensorflow", "keras", "numpy", "safetensors"]


def run_d2l(tensors, name, case):
    e, heads = case["hiddens"], case["heads"]
    layer = d2l.MultiHeadAttention(e, e, e, e, heads, 0.5, bias=case["bias"])
    inputs = {key: case[key] for key in ("query", "key", "value", "lengths")}
    call = [None if array is None else tf.constant(array) for array in inputs.values()]
    layer(*call, training=False)  # the first call builds the Dense layers
    for key, (kernel, bias) in case["params"].items():
        dense = getattr(layer, key)
        dense.set_weights([kernel] if bias is None else [kernel, bias])
        for param in dense.weights:
            tensors[f"{name}.layer.{key}.{param.name}"] = param.numpy()
    output = layer(*call, training=False).numpy()
    b, s_q, _ = output.shape
    weights = layer.attention.attention_weights.numpy().reshape(b, heads, s_q, -1)
    add(tensors, name, **inputs, output=output, weights=weights)


def run_keras(tensors, name, seed, key_dim, value_dim, cross):
    rng = np.random.default_rng(seed)
    layer = keras.layers.MultiHeadAttention(HEADS, key_dim, value_dim=value_dim, dropout=0.5)
    query = normal(rng, 2, 5, EMBED)
    key, value, keep = query, query, None
    if cross:
        key, value = normal(rng, 2, 7, 18), normal(rng, 2, 7, 14)
        keep = (rng.random((2, 5, 7)) < 0.6).astype(np.uint8)
        keep[..., 0] = 1  # no fully masked row
    layer.build(query.shape, value.shape, key.shape)
    for param in layer.weights:
        _, part, leaf = param.path.rsplit("/", 2)
        if leaf == "kernel":
            fan_in = HEADS * value_dim if part == "attention_output" else param.shape[0]
            param.assign(normal(rng, *param.shape, scale=fan_in**-0.5))
        else:
            param.assign(normal(rng, *param.shape, scale=0.5))
        tensors[f"{name}.layer.{part}.{leaf}"] = param.numpy()
    output, weights = layer(
        query,
        value,
        key,
        attention_mask=None if keep is None else keep.astype(bool),
        return_attention_scores=True,
        training=False,
    )
    add(tensors, name, query=query, key=key, value=value, keep=keep)
    add(tensors, name, output=output.numpy(), weights=weights.numpy())


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tensors = {}
    for name, case in d2l_cases(toy_hiddens=40).items():
        run_d2l(tensors, name, case)
    note = "d2l.tensorflow.MultiHeadAttention, training=False, dropout 0.5 inactive"
    save("d2l_keras.safetensors", tensors, ["d2l", *VERSIONS], note)

    tensors = {}
    run_keras(tensors, "self", 41, key_dim=5, value_dim=5, cross=False)
    run_keras(tensors, "cross", 42, key_dim=6, value_dim=3, cross=True)
    note = "keras.layers.MultiHeadAttention, TensorFlow backend, 4 heads, training=False"
    save("keras_mha.safetensors", tensors, VERSIONS, note)


if __name__ == "__main__":
    main()
