"""What holds of both libraries alike: kinds of results, prompts, inputs. Each test runs with both."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import datasets
import numpy as np
import pytest
import sentence_transformers
import torch

import candle_attention


@pytest.fixture(params=["candle_attention", "sentence_transformers"])
def library(request: pytest.FixtureRequest) -> Any:
    return {"candle_attention": candle_attention, "sentence_transformers": sentence_transformers}[request.param]


@pytest.fixture()
def model(library: Any, dense: str) -> Any:
    return library.SentenceTransformer(dense, device="cpu")


@pytest.mark.parametrize("inputs", ["Who?", ["Who?"], ["Who?", "They."]])
@pytest.mark.parametrize("convert_to_tensor", [True, False])
@pytest.mark.parametrize("convert_to_numpy", [True, False])
@pytest.mark.parametrize("precision", [None, "float32", "binary", "ubinary", "int8", "uint8"])
def test_kinds_of_results(
    model: Any, inputs: Any, convert_to_tensor: bool, convert_to_numpy: bool, precision: str | None
) -> None:
    def encode() -> Any:
        return model.encode(
            inputs, convert_to_tensor=convert_to_tensor, convert_to_numpy=convert_to_numpy, precision=precision
        )

    is_single, needs_ranges = isinstance(inputs, str), precision in ("int8", "uint8")
    if needs_ranges and (is_single or len(inputs) == 1):
        with pytest.raises(ValueError):
            encode()
        return
    embeddings = encode()
    names = {None: "float32", "binary": "int8", "ubinary": "uint8"}
    dtype = names.get(precision, precision)
    row = embeddings if is_single else embeddings[0]
    if convert_to_numpy and not convert_to_tensor:
        assert isinstance(embeddings, np.ndarray) and row.dtype == np.dtype(dtype)
    else:
        assert isinstance(row, torch.Tensor) and row.dtype == getattr(torch, str(dtype))
        is_list = not is_single and not convert_to_tensor
        assert isinstance(embeddings, list if is_list else torch.Tensor)
    assert row.shape == ((4,) if precision in ("binary", "ubinary") else (32,))


@pytest.mark.parametrize("convert_to_tensor", [True, False])
@pytest.mark.parametrize("convert_to_numpy", [True, False])
@pytest.mark.parametrize("precision", [None, "float32", "int8", "binary"])
@pytest.mark.parametrize("empty", [[], (), np.array([], dtype=str)], ids=["list", "tuple", "array"])
def test_no_texts(
    model: Any, convert_to_tensor: bool, convert_to_numpy: bool, precision: str | None, empty: Any
) -> None:
    embeddings = model.encode(
        empty, convert_to_tensor=convert_to_tensor, convert_to_numpy=convert_to_numpy, precision=precision
    )
    if convert_to_tensor:
        assert isinstance(embeddings, torch.Tensor) and embeddings.numel() == 0
    elif convert_to_numpy:
        assert isinstance(embeddings, np.ndarray) and embeddings.shape == (0,)
    else:
        assert embeddings == []


def test_kinds_of_inputs(model: Any) -> None:
    texts = ["Who sleeps?", "They sleep."]
    expected = model.encode(texts)
    column = datasets.Dataset.from_dict({"text": texts})["text"]
    for inputs in (tuple(texts), np.array(texts), np.array(texts, dtype=object), column, [np.str_(t) for t in texts]):
        np.testing.assert_allclose(model.encode(inputs), expected, atol=1e-6)
    np.testing.assert_allclose(model.encode(sentences=texts), expected, atol=1e-6)
    assert model.encode(texts[0]).shape == (32,)


def test_prompts(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert model.prompts == {"query": "", "document": ""} and model.default_prompt_name is None
    texts = ["How to bake a cake", "The house"]
    expected = model.encode([f"query: {text}" for text in texts])
    assert not np.allclose(model.encode(texts), expected)
    np.testing.assert_allclose(model.encode(texts, prompt="query: "), expected, atol=1e-6)
    model.prompts = {"query": "query: ", "passage": "p: "}
    np.testing.assert_allclose(model.encode(texts, prompt_name="query"), expected, atol=1e-6)
    np.testing.assert_allclose(model.encode_query(texts), expected, atol=1e-6)
    np.testing.assert_allclose(model.encode_document(texts), model.encode(texts, prompt="p: "), atol=1e-6)
    for name in ("candle_attention", "sentence_transformers"):
        # transformers keeps the loggers of its family from passing records on.
        logging.getLogger(name).addHandler(caplog.handler)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(model.encode(texts, prompt="query: ", prompt_name="passage"), expected, atol=1e-6)
    for name in ("candle_attention", "sentence_transformers"):
        logging.getLogger(name).removeHandler(caplog.handler)
    assert "Ignoring the `prompt_name` in favor of `prompt`" in caplog.text
    with pytest.raises(ValueError, match=r"Prompt name 'no' not found .* \['query', 'passage'\]"):
        model.encode(texts, prompt_name="no")


def test_prompts_of_the_constructor(library: Any, prompted: str) -> None:
    model = library.SentenceTransformer(prompted, prompts={"query": "q: ", "new": "n"}, device="cpu")
    assert model.prompts == {"query": "q: ", "document": "", "new": "n", "passage": "the house: ", "other": "sleeping "}
    assert model.default_prompt_name == "other"
    np.testing.assert_allclose(model.encode("cat"), model.encode("cat", prompt="sleeping "), atol=1e-6)
    with pytest.raises(ValueError, match="Default prompt name 'no' not found"):
        library.SentenceTransformer(prompted, default_prompt_name="no")


def test_similarity_function(library: Any, truncated: str) -> None:
    model = library.SentenceTransformer(truncated, device="cpu")
    assert model.similarity_fn_name == "euclidean"
    model.similarity_fn_name = sentence_transformers.SimilarityFunction.DOT
    assert model.similarity_fn_name == "dot"
    model = library.SentenceTransformer(truncated, similarity_fn_name="manhattan", truncate_dim=4, device="cpu")
    assert model.similarity_fn_name == "manhattan" and model.get_embedding_dimension() == 4
    with pytest.raises(ValueError, match="only supports similarity_fn_name in"):
        model.similarity_fn_name = "maxsim"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive integer, got 0"),
        ({"batch_size": -3}, "batch_size must be a positive integer, got -3"),
        ({"precision": "int4"}, "Precision 'int4' is not supported"),
        ({"wrong": 1}, "additional keyword arguments that this model does not use"),
    ],
    ids=str,
)
def test_wrong_arguments(model: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.encode(["Who?"], **arguments)


def test_wrong_folders(library: Any, dense: str) -> None:
    for cls in (library.SentenceTransformer, library.CrossEncoder):
        with pytest.raises(NotADirectoryError, match="is a file"):
            cls(f"{dense}/config.json")
        with pytest.raises(FileNotFoundError):
            cls("/no/such/folder")
        with pytest.raises(OSError):
            cls("no-such-owner/no-such-model", local_files_only=True)


def test_progress_bar(model: Any, capfd: pytest.CaptureFixture[str]) -> None:
    model.encode(["Who?"] * 5, show_progress_bar=True)
    assert "100%" in capfd.readouterr().err
    model.encode(["Who?"] * 5)
    assert "100%" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        (
            "SentenceTransformer",
            ["__init__", "encode", "encode_query", "encode_document", "similarity", "similarity_pairwise"],
        ),
        ("CrossEncoder", ["__init__", "predict", "rank"]),
    ],
)
def test_arguments_have_the_same_names_order_and_defaults(name: str, methods: list[str]) -> None:
    for method in methods:
        ours, peers = (
            inspect.signature(getattr(getattr(library, name), method)).parameters.values()
            for library in (candle_attention, sentence_transformers)
        )
        assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in peers], method
