"""Embeddings against those of sentence-transformers, on tiny models that it made and on all-MiniLM-L6-v2."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
from models import TEXTS
from sentence_transformers.util import quantize_embeddings as peers_quantize

import candle_attention

# The largest difference of a feature: the weights of the tiny models are large, so that their features are too.
TOLERANCE = 2e-5
MODELS = ["dense", "prompted", "truncated", "minilm"]


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The same model in both libraries."""
    folder = request.getfixturevalue(request.param)
    peer = sentence_transformers.SentenceTransformer(folder, device="cpu")
    return candle_attention.SentenceTransformer(folder), peer


def close(ours: Any, peers: Any) -> None:
    ours, peers = np.asarray(ours), np.asarray(peers)
    assert ours.shape == peers.shape and ours.dtype == peers.dtype
    np.testing.assert_allclose(ours, peers, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 2},
        {"normalize_embeddings": True},
        {"truncate_dim": 5},
        {"truncate_dim": 7, "normalize_embeddings": True},
        {"truncate_dim": 100_000},
        {"prompt": "the cat sat: "},
        {"prompt": ""},
        {"prompt_name": "query"},
        {"prompt_name": "document", "truncate_dim": 9},
        {"processing_kwargs": {"text": {"max_length": 6, "truncation": True}}},
    ],
    ids=str,
)
def test_encode(both: tuple[Any, Any], arguments: dict[str, Any]) -> None:
    ours, peer = both
    close(ours.encode(TEXTS, **arguments), peer.encode(TEXTS, **arguments))
    close(ours.encode(TEXTS[0], **arguments), peer.encode(TEXTS[0], **arguments))


@pytest.mark.parametrize("name", ["encode_query", "encode_document"])
def test_encode_for_search(both: tuple[Any, Any], name: str) -> None:
    ours, peer = both
    close(getattr(ours, name)(TEXTS), getattr(peer, name)(TEXTS))
    close(getattr(ours, name)(TEXTS, prompt="cat "), getattr(peer, name)(TEXTS, prompt="cat "))


def test_what_the_folder_states(both: tuple[Any, Any]) -> None:
    ours, peer = both
    for name in ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "max_seq_length"):
        assert getattr(ours, name) == getattr(peer, name), name
    assert ours.get_embedding_dimension() == peer.get_embedding_dimension()
    assert ours.get_sentence_embedding_dimension() == peer.get_embedding_dimension()
    with ours.truncate_embeddings(3), peer.truncate_embeddings(3):
        assert ours.get_embedding_dimension() == peer.get_embedding_dimension() == 3
        close(ours.encode(TEXTS), peer.encode(TEXTS))
    with ours.truncate_embeddings(None), peer.truncate_embeddings(None):
        close(ours.encode(TEXTS), peer.encode(TEXTS))


@pytest.mark.parametrize("precision", [None, "float32", "int8", "uint8", "binary", "ubinary"])
def test_precision(both: tuple[Any, Any], precision: str | None) -> None:
    ours, peer = both
    got, expected = ours.encode(TEXTS, precision=precision), peer.encode(TEXTS, precision=precision)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    embeddings = peer.encode(TEXTS)
    if precision not in (None, "float32"):
        # A number at the border of two steps may fall on either side.
        assert np.mean(got != expected) < 0.01
        np.testing.assert_array_equal(
            candle_attention.quantize_embeddings(embeddings, precision), peers_quantize(embeddings, precision)
        )


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_ranges_of_other_embeddings(both: tuple[Any, Any], precision: Any) -> None:
    embeddings = both[1].encode(TEXTS)
    some, rest = embeddings[:3], embeddings[3:]
    ranges = np.vstack((rest.min(axis=0), rest.max(axis=0)))
    for arguments in ({"calibration_embeddings": rest}, {"ranges": ranges}):
        np.testing.assert_array_equal(
            candle_attention.quantize_embeddings(some, precision, **arguments),
            peers_quantize(some, precision, **arguments),
        )


@pytest.mark.parametrize("precision", ["float32", "binary"])
def test_token_embeddings(both: tuple[Any, Any], precision: str) -> None:
    ours, peer = both
    got = ours.encode(TEXTS, output_value="token_embeddings", precision=precision)
    expected = peer.encode(TEXTS, output_value="token_embeddings", precision=precision)
    assert len(got) == len(expected)
    for of_text, of_peer in zip(got, expected):
        assert isinstance(of_text, np.ndarray)
        close(of_text, of_peer)
    close(ours.encode(TEXTS[0], output_value="token_embeddings", precision=precision), expected[0])


def test_all_features(both: tuple[Any, Any]) -> None:
    ours, peer = both
    got, expected = ours.encode(TEXTS, output_value=None), peer.encode(TEXTS, output_value=None)
    for of_text, of_peer in zip(got, expected):
        length = int(of_peer["attention_mask"].sum())
        for name in ("input_ids", "attention_mask", "token_embeddings"):
            close(of_text[name], of_peer[name][:length])
        close(of_text["sentence_embedding"], of_peer["sentence_embedding"])
    assert set(ours.encode("cat", output_value=None)) == set(got[0])


def test_tokens(both: tuple[Any, Any]) -> None:
    ours, peer = both
    got = ours.preprocess(TEXTS, prompt="the ")
    for i, text in enumerate(TEXTS):
        expected = peer.preprocess([text], prompt="the ")
        np.testing.assert_array_equal(got["input_ids"][i], expected["input_ids"][0])
        np.testing.assert_array_equal(got["attention_mask"][i], expected["attention_mask"][0])


def test_another_maximum_length(both: tuple[Any, Any]) -> None:
    ours, peer = both
    before = ours.max_seq_length
    ours.max_seq_length = peer.max_seq_length = 9
    close(ours.encode(TEXTS), peer.encode(TEXTS))
    assert ours.get_max_seq_length() == 9
    ours.max_seq_length = peer.max_seq_length = before


@pytest.mark.parametrize("function", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity(both: tuple[Any, Any], function: Any) -> None:
    ours, peer = both
    embeddings, before = peer.encode(TEXTS), ours.similarity_fn_name
    ours.similarity_fn_name = peer.similarity_fn_name = function
    for a, b in [(embeddings, embeddings[:3]), (embeddings[0], embeddings), (list(embeddings), embeddings.tolist())]:
        got, expected = ours.similarity(a, b), peer.similarity(a, b)
        assert isinstance(got, np.ndarray)
        # A distance of nearly equal rows is the root of a difference.
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=3e-3 if function == "euclidean" else 2e-5)
    pairs = embeddings[:3], embeddings[3:6]
    got = ours.similarity_pairwise(*pairs)
    np.testing.assert_allclose(got, peer.similarity_pairwise(*pairs), rtol=1e-5, atol=2e-5)
    tensors = peer.encode(TEXTS, convert_to_tensor=True)
    of_tensors = ours.similarity(tensors, tensors[:3])
    assert type(of_tensors) is type(tensors)
    np.testing.assert_array_equal(of_tensors, ours.similarity(embeddings, embeddings[:3]))
    wide = ours.similarity(embeddings.astype(np.float64), embeddings.astype(np.float64))
    assert wide.dtype == np.float64
    ours.similarity_fn_name = peer.similarity_fn_name = before


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_are_near_float32(dense: str, dtype: str) -> None:
    import torch

    exact = candle_attention.SentenceTransformer(dense).encode(TEXTS)
    for named in (dtype, getattr(torch, dtype)):
        half = candle_attention.SentenceTransformer(dense, model_kwargs={"dtype": named}).encode(TEXTS)
        assert half.dtype == np.float32 and not np.array_equal(half, exact)
        assert np.abs(half - exact).max() < (0.2 if dtype == "bfloat16" else 0.02)


@pytest.mark.parametrize("dtype", ["int8", "q8_0", "q4_0"])
def test_weights_in_few_bits_are_near_float32(dense: str, dtype: str) -> None:
    exact = candle_attention.SentenceTransformer(dense).encode(TEXTS)
    rounded = candle_attention.SentenceTransformer(dense, model_kwargs={"dtype": dtype}).encode(TEXTS)
    assert rounded.dtype == np.float32 and not np.array_equal(rounded, exact)
    cosines = (rounded * exact).sum(1) / (np.linalg.norm(rounded, axis=1) * np.linalg.norm(exact, axis=1))
    assert cosines.min() > (0.8 if dtype == "q4_0" else 0.99)


def test_a_gguf_file_keeps_its_blocks_unless_a_dtype_is_asked_for() -> None:
    file = Path(__file__).parents[3] / "tests" / "fixtures" / "gguf" / "bert-q8_0.gguf"
    exact = candle_attention.SentenceTransformer(str(file), model_kwargs={"dtype": "float32"}).encode(TEXTS)
    stored = candle_attention.SentenceTransformer(file).encode(TEXTS)
    assert not np.array_equal(stored, exact) and np.abs(stored - exact).max() < 0.02


def test_a_text_has_one_vector(minilm: str) -> None:
    model = candle_attention.SentenceTransformer(minilm)
    together = model.encode(TEXTS)
    for text, embedding in zip(TEXTS, together):
        assert np.array_equal(model.encode(text), embedding)
