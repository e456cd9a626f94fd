"""The part that is compiled. Use the classes of `candle_attention`: these check no arguments."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "CrossEncoder",
    "locate",
    "SentenceEncoder",
    "quantize",
    "similarity",
    "similarity_pairwise",
    "get_num_threads",
    "set_num_threads",
]

class _Options(TypedDict):
    prompt: str | None
    task: str | None
    batch_size: int
    max_length: int | None
    truncate_dim: int | None
    normalize_embeddings: bool

@final
class SentenceEncoder:
    @staticmethod
    def from_folder(folder: str | PathLike[str], dtype: str, device: str) -> SentenceEncoder: ...
    @staticmethod
    def embedded(dtype: str, device: str) -> SentenceEncoder: ...
    def encode(
        self, inputs: list[str], options: _Options, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]: ...
    def encode_tokens(
        self, inputs: list[str], options: _Options, progress: Callable[[int], None] | None = None
    ) -> list[npt.NDArray[np.float32]]: ...
    def token_ids(self, inputs: list[str], options: _Options) -> list[npt.NDArray[np.int64]]: ...
    def attention(
        self, text: str, pair: str | None, prompt: str, layers: list[int] | None, heads: list[int] | None
    ) -> tuple[list[str], npt.NDArray[np.float32]]: ...
    @property
    def max_seq_length(self) -> int | None: ...
    @property
    def truncate_dim(self) -> int | None: ...
    @property
    def similarity_fn_name(self) -> str: ...
    @property
    def prompts(self) -> dict[str, str]: ...
    @property
    def default_prompt_name(self) -> str | None: ...
    @property
    def tasks(self) -> list[str]: ...

@final
class CrossEncoder:
    @staticmethod
    def from_folder(folder: str | PathLike[str], dtype: str, device: str) -> CrossEncoder: ...
    def logits(
        self, inputs: list[Any], options: _Options, progress: Callable[[int], None] | None = None
    ) -> npt.NDArray[np.float32]: ...
    def attention(
        self, query: str, document: str, layers: list[int] | None, heads: list[int] | None
    ) -> tuple[list[str], npt.NDArray[np.float32]]: ...
    @property
    def num_labels(self) -> int: ...
    @property
    def has_sigmoid(self) -> bool: ...
    @property
    def max_seq_length(self) -> int: ...
    @property
    def prompts(self) -> dict[str, str]: ...
    @property
    def default_prompt_name(self) -> str | None: ...

def locate(
    id: str,
    revision: str | None,
    token: str | None,
    cache_folder: str | PathLike[str] | None,
    local_files_only: bool,
    progress: bool,
) -> Path: ...
def similarity(name: str, embeddings1: npt.NDArray[Any], embeddings2: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
def similarity_pairwise(
    name: str, embeddings1: npt.NDArray[Any], embeddings2: npt.NDArray[Any]
) -> npt.NDArray[Any]: ...
def quantize(
    embeddings: npt.NDArray[Any], precision: str, ranges: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]: ...
def get_num_threads() -> int: ...
def set_num_threads(num_threads: int) -> None: ...
