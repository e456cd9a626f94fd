"""Scores of pairs against those of sentence-transformers, on tiny models that transformers made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch

import candle_attention

PAIRS = [
    ("Who sleeps?", "A cat sleeps on the sofa."),
    ("Who sleeps?", ""),
    ("the house", "Stocks fell sharply today, and the cat sat in the house while it rained all day long, they said."),
    ("cat", "cat"),
]


@pytest.fixture(scope="module", params=["cross", "cross_three"])
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The same model in both libraries."""
    folder = request.getfixturevalue(request.param)
    return candle_attention.CrossEncoder(folder), sentence_transformers.CrossEncoder(folder, device="cpu")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 1},
        {"apply_softmax": True},
        {"activation_fn": torch.nn.Identity()},
        {"activation_fn": torch.nn.Sigmoid(), "apply_softmax": True},
        {"activation_fn": torch.tanh},
        {"prompt": "the cat: "},
        {"processing_kwargs": {"text": {"max_length": 12, "truncation": True}}},
    ],
    ids=str,
)
def test_predict(both: tuple[Any, Any], arguments: dict[str, Any]) -> None:
    ours, peer = both
    for pairs in (PAIRS, np.array(PAIRS), PAIRS[0], list(PAIRS[1])):
        got, expected = ours.predict(pairs, **arguments), peer.predict(pairs, **arguments)
        assert type(got) is type(expected) and got.shape == expected.shape and got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5)


def test_results_as_tensors(both: tuple[Any, Any]) -> None:
    ours, peer = both
    for pairs in (PAIRS, []):
        tensor = ours.predict(pairs, convert_to_tensor=True)
        assert isinstance(tensor, torch.Tensor) and len(tensor) == len(pairs)
        listed = ours.predict(pairs, convert_to_numpy=False)
        assert isinstance(listed, list) and all(isinstance(score, torch.Tensor) for score in listed)
        assert ours.predict(pairs).size == peer.predict(pairs).size


def test_rank(both: tuple[Any, Any]) -> None:
    ours, peer = both
    documents = [document for _, document in PAIRS]
    if ours.num_labels == 1:
        for arguments in ({}, {"top_k": 2, "return_documents": True}, {"activation_fn": torch.nn.Identity()}):
            got, expected = (model.rank("Who sleeps?", documents, **arguments) for model in both)
            assert [hit["corpus_id"] for hit in got] == [hit["corpus_id"] for hit in expected]
            assert [hit.get("text") for hit in got] == [hit.get("text") for hit in expected]
            assert all(type(hit["score"]) is float for hit in got)
            np.testing.assert_allclose([hit["score"] for hit in got], [hit["score"] for hit in expected], atol=2e-5)
    else:
        for model in both:
            with pytest.raises(ValueError, match="num_labels=1"):
                model.rank("Who sleeps?", documents)


def test_constructor(cross: str, cross_three: str) -> None:
    assert candle_attention.CrossEncoder(cross, num_labels=1).num_labels == 1
    with pytest.raises(ValueError, match="num_labels is 2, expected 3, that of the model"):
        candle_attention.CrossEncoder(cross_three, num_labels=2)
    short = candle_attention.CrossEncoder(cross, max_length=12, activation_fn=torch.nn.Tanh())
    peer = sentence_transformers.CrossEncoder(cross, max_length=12, activation_fn=torch.nn.Tanh(), device="cpu")
    np.testing.assert_allclose(short.predict(PAIRS), peer.predict(PAIRS), atol=2e-5)
    prompts = {"sleep": "the cat: "}
    model = candle_attention.CrossEncoder(cross, prompts=prompts, default_prompt_name="sleep")
    peer = sentence_transformers.CrossEncoder(cross, prompts=prompts, default_prompt_name="sleep", device="cpu")
    np.testing.assert_allclose(model.predict(PAIRS), peer.predict(PAIRS), atol=2e-5)
    assert not np.allclose(model.predict(PAIRS), model.predict(PAIRS, prompt=""))


def test_activation_of_a_function_of_numpy(cross_three: str) -> None:
    model = candle_attention.CrossEncoder(cross_three)
    np.testing.assert_allclose(model.predict(PAIRS, activation_fn=np.tanh), np.tanh(model.predict(PAIRS)))
    with pytest.raises(ValueError, match="expected as many rows"):
        model.predict(PAIRS, activation_fn=lambda logits: logits[:1])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ("a text", TypeError, "inputs is str, expected a str or a list"),
        ([("a", "b"), ("c",)], ValueError, r"inputs\[1\] is 1 items, expected a pair"),
        ([("a", "b"), ("c", "d", "e")], ValueError, r"inputs\[1\] is 3 items, expected a pair"),
        ([("a", "b"), ("c", 5)], TypeError, r"inputs\[1\]\[1\] is int, expected str"),
        ([("a", "b"), "cd"], ValueError, r"inputs\[1\] is one text, expected a pair"),
        ([("a", "b"), ("c", "\ud800")], ValueError, r"inputs\[1\]\[1\] has a lone surrogate"),
    ],
)
def test_wrong_pairs(cross: str, inputs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        candle_attention.CrossEncoder(cross).predict(inputs)
