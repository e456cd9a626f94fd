"""What cannot be done: one clear error of a fitting type, before anything is computed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from candle_attention import CrossEncoder, SentenceTransformer, quantize_embeddings, set_num_threads


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return SentenceTransformer.embedded()


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (["a", 5], TypeError, r"inputs\[1\] is int, expected str"),
        (["a", None], TypeError, r"inputs\[1\] is NoneType, expected str"),
        ([("a", "b")], TypeError, r"inputs\[0\] is tuple, expected str"),
        (np.array([["a"], ["b"]]), TypeError, r"inputs\[0\] is list, expected str"),
        (np.array("a"), TypeError, "inputs is ndarray, expected a str or a list"),
        (np.array([1.5]), TypeError, r"inputs\[0\] is float, expected str"),
        ({"a": "b"}, TypeError, "inputs is dict"),
        ({"a", "b"}, TypeError, "inputs is set"),
        (b"abc", TypeError, "inputs is bytes"),
        (7, TypeError, "inputs is int"),
        (["a", "\ud800"], ValueError, r"inputs\[1\] has a lone surrogate, expected valid Unicode"),
        (["a", "x" * (17 << 20)], ValueError, "16777216"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_inputs(model: SentenceTransformer, inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        model.encode(inputs)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"pool": {"input": None}}, NotImplementedError, "pool is .* leave it out"),
        ({"chunk_size": 10}, NotImplementedError, "chunk_size is 10"),
        ({"device": "cuda"}, NotImplementedError, "device is 'cuda': the model is on cpu"),
        ({"device": ["cpu", "cpu"]}, NotImplementedError, "device is"),
        ({"output_value": "logits"}, ValueError, "output_value is 'logits'"),
        ({"output_value": None, "precision": "int8"}, ValueError, "output_value is None with precision 'int8'"),
        ({"truncate_dim": 0}, ValueError, "truncate_dim is 0, expected at least 1"),
        ({"truncate_dim": -5}, ValueError, "truncate_dim is -5, expected at least 1"),
        ({"task": "classification"}, ValueError, "task is classification"),
        ({"processing_kwargs": {"text": {"padding": True}}}, NotImplementedError, "processing_kwargs is"),
        ({"processing_kwargs": {"text": {"max_length": 9999}}}, ValueError, "max_length = 9999"),
        ({"precision": "uint8"}, ValueError, "number of embeddings to take ranges from is 1, expected at least 2"),
    ],
    ids=str,
)
def test_arguments(
    model: SentenceTransformer, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model.encode(["a"], **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"modules": [1]}, NotImplementedError, "modules is"),
        ({"backend": "onnx"}, NotImplementedError, "backend is 'onnx'"),
        ({"device": "cuda"}, ValueError, "this wheel was built for CPUs alone"),
        ({"device": "tpu"}, ValueError, "the device is \"tpu\", expected cpu"),
        ({"model_kwargs": {"attn_implementation": "sdpa"}}, NotImplementedError, "attn_implementation"),
        ({"model_kwargs": {"dtype": "int4"}}, ValueError, "the dtype is 'int4', expected auto, float32"),
        ({"config_kwargs": {"num_hidden_layers": 1}}, NotImplementedError, "config_kwargs is"),
        ({"processor_kwargs": {"padding_side": "left"}}, NotImplementedError, "processor_kwargs is"),
        ({"token": False}, NotImplementedError, "HF_HUB_DISABLE_IMPLICIT_TOKEN"),
    ],
    ids=str,
)
@pytest.mark.parametrize("cls", [SentenceTransformer, CrossEncoder])
def test_constructor(
    cls: Any, dense: str, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        cls(dense, **arguments)


def test_names_of_models(tmp_path: Path) -> None:
    for cls in (SentenceTransformer, CrossEncoder):
        with pytest.raises(ValueError, match="model_name_or_path is None"):
            cls()
        with pytest.raises(FileNotFoundError, match="/no/such/folder: no such folder"):
            cls("/no/such/folder")
        with pytest.raises(ValueError, match="expected a folder that exists, or a hub id"):
            cls("bad--id/x")
        with pytest.raises((FileNotFoundError, ValueError), match=r"config\.json|holds neither `model\.safetensors`"):
            cls(tmp_path)


def test_files_of_a_folder(dense: str, tmp_path: Path) -> None:
    shutil.copytree(dense, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    stated = json.loads(config.read_text())
    config.write_text(json.dumps({**stated, "model_type": "no_such_family"}))
    with pytest.raises(ValueError, match="model_type = no_such_family is not allowed: expected bert"):
        SentenceTransformer(tmp_path / "model")
    config.write_text("[")
    with pytest.raises(ValueError, match=r"config\.json"):
        SentenceTransformer(tmp_path / "model")
    config.write_text(json.dumps(stated))
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises((ValueError, RuntimeError), match=r"model\.safetensors"):
        SentenceTransformer(tmp_path / "model")


def test_embeddings_of_other_shapes(model: SentenceTransformer) -> None:
    rows = np.ones((2, 3), dtype=np.float32)
    with pytest.raises(ValueError, match="the second embeddings has shape"):
        model.similarity(rows, np.ones((2, 4)))
    with pytest.raises(ValueError, match="the second embeddings has shape"):
        model.similarity_pairwise(rows, rows[:1])
    with pytest.raises(TypeError, match="expected an array of two dimensions"):
        model.similarity(np.ones((2, 2, 3)), rows)
    with pytest.raises(TypeError, match="expected numbers"):
        model.similarity(["a"], rows)
    with pytest.raises(ValueError, match="Precision 'int4' is not supported"):
        quantize_embeddings(rows, "int4")
    with pytest.raises(ValueError, match="ranges has 3 rows, expected 2"):
        quantize_embeddings(rows, "int8", ranges=np.ones((3, 3)))
    with pytest.raises(FloatingPointError, match="NaN or an infinity"):
        quantize_embeddings(np.array([[1.0, np.nan]]), "binary")


def test_settings_of_a_model(model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="max_seq_length is 0, expected at least 1"):
        model.max_seq_length = 0
    with pytest.raises(ValueError, match="num_threads is 0, expected at least 1"):
        set_num_threads(0)
