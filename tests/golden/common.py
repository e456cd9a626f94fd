"""Shared by the golden-value scripts: seeded inputs, and saving with metadata."""

import importlib
import json
import platform
import struct
from importlib.metadata import version
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


def normal(rng, *shape, scale=1.0):
    """Random normal f32 array."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def linear(rng, n_in, n_out, bias):
    """Random (kernel [in, out], bias or None), scaled to keep the variance of its input."""
    kernel = normal(rng, n_in, n_out, scale=n_in**-0.5)
    return kernel, normal(rng, n_out, scale=0.5) if bias else None


def d2l_cases(toy_hiddens):
    """The cases run in all four flavours of d2l's MultiHeadAttention.

    Weights are given as {"W_q": (kernel [in, out], bias or None), ...}.
    """
    rng = np.random.default_rng(2024)
    lengths_2d = np.array([[1, 6, 3, 2], [5, 4, 6, 1]], np.int64)

    def case(hiddens, heads, bias, lengths, value_is_key):
        key = normal(rng, 2, 6, hiddens)
        return {
            "hiddens": hiddens,
            "heads": heads,
            "bias": bias,
            "query": normal(rng, 2, 4, hiddens),
            "key": key,
            "value": key.copy() if value_is_key else normal(rng, 2, 6, hiddens),
            "lengths": lengths,
            "params": {
                name: linear(rng, hiddens, hiddens, bias)
                for name in ("W_q", "W_k", "W_v", "W_o")
            },
        }

    return {
        "toy": case(toy_hiddens, 5, False, np.array([3, 2], np.int64), True),
        "lens2d": case(20, 5, True, lengths_2d, False),
        "nolens": case(20, 4, False, None, False),
    }


def add(tensors, case, **arrays):
    """Adds `<case>.<key>` entries; those that are None are left out."""
    for key, array in arrays.items():
        if array is not None:
            tensors[f"{case}.{key}"] = array


def encode(tensors, packages, note, framework="numpy", **metadata):
    """A safetensors file of `tensors`, with versions and notes as metadata.

    The header is written with sorted keys, so that equal runs give equal bytes.
    """
    if framework == "numpy":
        tensors = {key: np.array(array, order="C") for key, array in tensors.items()}
    versions = [f"python {platform.python_version()}"]
    versions += [f"{package} {version(package)}" for package in packages]
    metadata.update(versions=", ".join(versions), note=note)

    data = importlib.import_module(f"safetensors.{framework}").save(tensors)
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = metadata
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def metadata(data):
    """The metadata of a safetensors file of these bytes."""
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size])["__metadata__"]


def save(file_name, tensors, packages, note, framework="numpy", **metadata):
    """Writes `tensors` to tests/fixtures/<file_name> (see `encode`)."""
    data = encode(tensors, packages, note, framework, **metadata)
    (FIXTURES / file_name).parent.mkdir(parents=True, exist_ok=True)
    (FIXTURES / file_name).write_bytes(data)

    print(file_name)
    for key, tensor in tensors.items():
        print(f"  {key:36} {tuple(tensor.shape)} {tensor.dtype}")
