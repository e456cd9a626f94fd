"""Embeddings in fewer bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import as_rows

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def quantize_embeddings(
    embeddings: Any,
    precision: str,
    ranges: npt.ArrayLike | None = None,
    calibration_embeddings: Any = None,
) -> npt.NDArray[Any]:
    """Embeddings `(n, d)` in another precision, bit for bit as `sentence_transformers.util.quantize_embeddings`.

    `int8` and `uint8` divide the range of each feature into 256 steps: the `ranges` `(2, d)`, the least and the largest
    values, or else those of the calibration embeddings, or else those of the embeddings themselves.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"Precision {precision!r} is not supported, must be one of {PRECISIONS}")
    rows = as_rows(embeddings)
    if ranges is None and calibration_embeddings is not None:
        calibration = as_rows(calibration_embeddings)
        ranges = np.vstack((calibration.min(axis=0), calibration.max(axis=0)))
    bounds = None if ranges is None else np.asarray(ranges, dtype=np.float32)
    return _native.quantize(rows.astype(np.float32, copy=False), precision, bounds)
