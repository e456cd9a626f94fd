"""Each example as a program of its own, as README.md runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The cosines of the embedded model, which README.md of the repository prints too.
OUTPUTS = {
    "embed_with_ray.py": ["(300, 128)", "0.507 0.134"],
    "embed_with_spark.py": ["300 128", "0.507 0.134"],
    "embed_with_daft.py": ["Embedding[Float32; 64]", "0.642 A kitten naps on the couch.", "0.164 Stocks fell."],
    "embed_with_langchain.py": ["0.507 A cat sleeps on the sofa.", "0.237 Stocks fell sharply today."],
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_example(examples: Path, name: str) -> None:
    # Ray and Spark start workers with the `python` that is first in the path.
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    ran = subprocess.run(
        [sys.executable, examples / name], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    assert [line.strip() for line in ran.stdout.splitlines() if line.strip()] == OUTPUTS[name]


def test_all_examples_are_tested_and_short(examples: Path) -> None:
    files = {file.name: len(file.read_text().splitlines()) for file in examples.glob("*.py")}
    assert files.keys() == OUTPUTS.keys()
    assert max(files.values()) <= 40
