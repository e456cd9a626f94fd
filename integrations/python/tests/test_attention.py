"""Attention maps against those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from candle_attention import CrossEncoder, SentenceTransformer


def expected(model: torch.nn.Module, folder: str, *texts: str) -> np.ndarray:
    inputs = AutoTokenizer.from_pretrained(folder)(*texts, return_tensors="pt")
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    return torch.cat(maps).numpy()


def test_sentence_transformer(dense: str) -> None:
    model, peer = SentenceTransformer(dense), AutoModel.from_pretrained(dense, attn_implementation="eager").eval()
    tokens, maps = model.attention("The cat sat: zoo")
    assert tokens == ["[CLS]", "The", "cat", "sat", ":", "z", "o", "o", "[SEP]"]
    np.testing.assert_allclose(maps, expected(peer, dense, "The cat sat: zoo"), atol=1e-5)
    np.testing.assert_allclose(maps.sum(-1), 1, atol=1e-5)
    tokens, of_pair = model.attention("the cat", "the house")
    np.testing.assert_allclose(of_pair, expected(peer, dense, "the cat", "the house"), atol=1e-5)
    _, some = model.attention("The cat sat: zoo", layers=[1], heads=[2, 0])
    np.testing.assert_array_equal(some, maps[[1]][:, [2, 0]])
    model.prompts = {"all": "the "}
    _, prompted = model.attention("cat", prompt_name="all")
    np.testing.assert_array_equal(prompted, model.attention("the cat")[1])
    np.testing.assert_array_equal(prompted, model.attention("cat", prompt="the ")[1])


def test_default_prompt(prompted: str) -> None:
    model = SentenceTransformer(prompted)
    np.testing.assert_array_equal(model.attention("cat")[1], model.attention("sleeping cat", prompt="")[1])


def test_cross_encoder(cross: str) -> None:
    peer = AutoModelForSequenceClassification.from_pretrained(cross, attn_implementation="eager").eval()
    tokens, maps = CrossEncoder(cross).attention("the cat", "sat")
    assert tokens == ["[CLS]", "the", "cat", "[SEP]", "sat", "[SEP]"]
    np.testing.assert_allclose(maps, expected(peer, cross, "the cat", "sat"), atol=1e-5)


def test_errors(dense: str, cross: str) -> None:
    with pytest.raises(ValueError, match="layer"):
        SentenceTransformer(dense).attention("cat", layers=[7])
    with pytest.raises(ValueError, match="head"):
        CrossEncoder(cross).attention("cat", "sat", heads=[4])
    with pytest.raises(TypeError):
        SentenceTransformer(dense).attention(5)  # type: ignore[arg-type]
