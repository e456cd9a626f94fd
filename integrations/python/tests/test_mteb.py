"""Tasks of mteb with this package as their encoder, against the same tasks with sentence-transformers."""

from __future__ import annotations

from typing import Any

import mteb
import numpy as np
import pytest
import sentence_transformers
from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask
from mteb.mocks.mock_tasks.sts import MockSTSTask
from mteb.models import ModelMeta
from mteb.models.models_protocols import EncoderProtocol
from mteb.types import PromptType

import candle_attention


class Encoder:
    """mteb's protocol of an encoder, over a model of either library."""

    def __init__(self, model: Any, revision: str | None = None, *, device: str | None = None, **kwargs: Any) -> None:
        self.model = model
        name = f"test/{type(model).__module__.split('.')[0]}"
        self.mteb_model_meta = ModelMeta.create_empty({"name": name, "revision": "1"})

    def encode(self, inputs: Any, *, prompt_type: PromptType | None = None, batch_size: int = 32, **kwargs: Any) -> Any:
        texts = [text for batch in inputs for text in batch["text"]]
        names = {PromptType.query: "encode_query", PromptType.document: "encode_document"}
        return getattr(self.model, names.get(prompt_type, "encode"))(texts, batch_size=batch_size)  # type: ignore[arg-type]

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        return self.model.similarity_pairwise(embeddings1, embeddings2)


def scores(task: Any, model: Any) -> dict[str, float]:
    encoder = Encoder(model)
    assert isinstance(encoder, EncoderProtocol)
    results = mteb.evaluate(encoder, task, cache=None, overwrite_strategy="always", show_progress_bar=False)
    (result,) = results.task_results
    return {
        f"{split} {name}": value
        for split, subsets in result.scores.items()
        for name, value in subsets[0].items()
        if isinstance(value, float)
    }


@pytest.mark.parametrize("task", [MockSTSTask, MockRetrievalTask])
@pytest.mark.parametrize("folder", ["dense", "prompted", "minilm"])
def test_scores_are_those_of_sentence_transformers(request: pytest.FixtureRequest, task: Any, folder: str) -> None:
    path = request.getfixturevalue(folder)
    ours = scores(task(), candle_attention.SentenceTransformer(path))
    peers = scores(task(), sentence_transformers.SentenceTransformer(path, device="cpu"))
    assert len(ours) > 3 and ours.keys() == peers.keys()
    for name in ours:
        if "time" not in name:
            np.testing.assert_allclose(ours[name], peers[name], atol=1e-4, equal_nan=True, err_msg=name)
