"""Models for the tests. Nothing here or in the tests uses a network."""

from __future__ import annotations

import os

# Before any import of a library that would ask the hub.
os.environ["HF_HUB_OFFLINE"] = "1"

from pathlib import Path

import models
import pytest

CHECKPOINT = "CANDLE_ATTENTION_MINILM"


@pytest.fixture(scope="session")
def minilm() -> str:
    """The folder of all-MiniLM-L6-v2, which `ci` downloads."""
    folder = os.environ.get(CHECKPOINT)
    if folder is None:
        pytest.skip(f"{CHECKPOINT} names no folder with all-MiniLM-L6-v2: see README.md")
    return folder


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sentence encoder that averages tokens."""
    return models.save_dense(tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="session")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sentence encoder with prompts, one of them the default, that takes the first token and normalizes."""
    prompts = {"query": "query: ", "passage": "the house: ", "other": "sleeping "}
    folder = tmp_path_factory.mktemp("prompted")
    return models.save_dense(folder, "cls", normalize=True, prompts=prompts, default_prompt_name="other")


@pytest.fixture(scope="session")
def truncated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A sentence encoder whose folder states a truncation and a similarity."""
    return models.save_dense(
        tmp_path_factory.mktemp("truncated"), "max", truncate_dim=12, similarity_fn_name="euclidean"
    )


@pytest.fixture(scope="session")
def cross(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cross-encoder with one label."""
    return models.save_cross(tmp_path_factory.mktemp("cross"), 1)


@pytest.fixture(scope="session")
def cross_three(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cross-encoder with three labels."""
    return models.save_cross(tmp_path_factory.mktemp("cross_three"), 3)


@pytest.fixture()
def examples() -> Path:
    """The folder of the examples."""
    return Path(__file__).parent.parent / "examples"
