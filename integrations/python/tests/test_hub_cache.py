"""Models by their id on the hub, from its cache. Downloads are tests of the crate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from candle_attention import SentenceTransformer


def test_hub_cache(dense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is in the cache of the hub is found by its id, in the folder of the argument or the environment."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--owner--name"
    (cached / "snapshots").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    (cached / "snapshots" / commit).symlink_to(dense)
    expected = SentenceTransformer(dense).encode("a cat")
    model = SentenceTransformer("owner/name", cache_folder=tmp_path, local_files_only=True)
    np.testing.assert_array_equal(model.encode("a cat"), expected)
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
    np.testing.assert_array_equal(SentenceTransformer("owner/name", local_files_only=True).encode("a cat"), expected)
    np.testing.assert_array_equal(
        SentenceTransformer("owner/name", revision=commit, local_files_only=True).encode("a cat"), expected
    )
    with pytest.raises(OSError, match="owner/other"):
        SentenceTransformer("owner/other", local_files_only=True)
