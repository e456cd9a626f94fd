"""Golden values of d2l.jax.MultiHeadAttention (d2l 1.0.3) and of Flax's own modules.

Writes tests/fixtures/d2l_jax.safetensors and tests/fixtures/flax_mha.safetensors.
Pins: requirements-jax.txt. Run: python tests/golden/d2l_jax.py

d2l_jax: cases `toy`, `lens2d`, `nolens`; Dense kernels are [in, out].
flax_mha: `linen` (flax.linen.MultiHeadDotProductAttention, cross-attention with a mask)
and `nnx` (flax.nnx.MultiHeadAttention, self-attention with a mask); query/key/value
kernels are [E, h, d], the out kernel is [h, d, E]; `<case>.keep` is u8 (b, s_q, s_kv),
1 = attend.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from d2l import jax as d2l
from flax import linen, nnx

from common import add, d2l_cases, normal, save

EMBED, FEATURES, HEADS = 20, 24, 4
VERSIONS = ["jax", "jaxlib", "flax", "numpy", "safetensors"]


def run_d2l(tensors, name, case):
    layer = d2l.MultiHeadAttention(case["hiddens"], case["heads"], 0.5, case["bias"])
    inputs = {key: case[key] for key in ("query", "key", "value", "lengths")}
    call = [None if array is None else jnp.asarray(array) for array in inputs.values()]
    params = {}
    for key, (kernel, bias) in case["params"].items():
        params[key] = {"kernel": kernel} if bias is None else {"kernel": kernel, "bias": bias}
    published = layer.init(jax.random.key(0), *call)["params"]
    assert jax.tree.map(jnp.shape, published) == jax.tree.map(jnp.shape, params)
    output, weights = layer.apply({"params": params}, *call)
    for key, param in params.items():
        for leaf, array in param.items():
            tensors[f"{name}.layer.{key}.{leaf}"] = array
    b, s_q, _ = output.shape
    add(tensors, name, **inputs, output=output, weights=weights.reshape(b, case["heads"], s_q, -1))


def random_keep(rng, *shape):
    keep = rng.random(shape) < 0.6
    keep[..., 0] = True  # no fully masked row
    return keep


def random_param(rng, path, shape):
    """A kernel scaled by its fan-in, or a bias (Flax would start it at zero)."""
    fan_in = FEATURES if path[0] == "out" else EMBED
    return normal(rng, *shape, scale=fan_in**-0.5 if path[-1] == "kernel" else 0.5)


def run_linen(tensors):
    rng = np.random.default_rng(31)
    query, key, value = (normal(rng, 2, s, EMBED) for s in (5, 7, 7))
    keep = random_keep(rng, 2, 5, 7)
    layer = linen.MultiHeadDotProductAttention(num_heads=HEADS, qkv_features=FEATURES)
    params = layer.init(jax.random.key(0), query, key, value)["params"]
    params = jax.tree_util.tree_map_with_path(
        lambda path, p: random_param(rng, [part.key for part in path], p.shape), params
    )
    output, state = layer.apply(
        {"params": params},
        query,
        key,
        value,
        mask=keep[:, None],
        sow_weights=True,
        mutable=["intermediates"],
    )
    for name, param in params.items():
        for leaf, array in param.items():
            tensors[f"linen.layer.{name}.{leaf}"] = array
    (weights,) = state["intermediates"]["attention_weights"]
    add(tensors, "linen", query=query, key=key, value=value, keep=keep.astype(np.uint8))
    add(tensors, "linen", output=output, weights=weights)


def run_nnx(tensors):
    rng = np.random.default_rng(32)
    query = normal(rng, 2, 5, EMBED)
    keep = random_keep(rng, 2, 5, 5)
    layer = nnx.MultiHeadAttention(
        num_heads=HEADS, in_features=EMBED, qkv_features=FEATURES, decode=False, rngs=nnx.Rngs(0)
    )
    for name in ("query", "key", "value", "out"):
        for leaf in ("kernel", "bias"):
            param = getattr(getattr(layer, name), leaf)
            array = random_param(rng, (name, leaf), param.shape)
            param.set_value(jnp.asarray(array))
            tensors[f"nnx.layer.{name}.{leaf}"] = array
    output = layer(jnp.asarray(query), mask=keep[:, None], sow_weights=True)
    (weights,) = layer.attention_weights.get_value()
    add(tensors, "nnx", query=query, key=query, value=query, keep=keep.astype(np.uint8))
    add(tensors, "nnx", output=output, weights=weights)


def main():
    tensors = {}
    for name, case in d2l_cases(toy_hiddens=40).items():
        run_d2l(tensors, name, case)
    note = "d2l.jax.MultiHeadAttention, not training, dropout 0.5 inactive"
    save("d2l_jax.safetensors", tensors, ["d2l", *VERSIONS], note)

    tensors = {}
    run_linen(tensors)
    run_nnx(tensors)
    note = "flax.linen.MultiHeadDotProductAttention and flax.nnx.MultiHeadAttention, 4 heads"
    save("flax_mha.safetensors", tensors, VERSIONS, note)


if __name__ == "__main__":
    main()
