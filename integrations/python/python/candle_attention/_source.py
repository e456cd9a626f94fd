"""Where a model comes from: a folder, the hub, or this package."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from . import _native

DTYPES = ("auto", "float32", "bfloat16", "float16", "int8", "q8_0", "q4_0")


@dataclass(frozen=True)
class Source:
    """What another process needs to load the same model. It holds no token: a pickle may be read by others."""

    name: str | None
    """A folder or GGUF file, by its absolute path; the id of a model of the hub; None for the model of this package."""
    is_folder: bool = False
    revision: str | None = None
    cache_folder: str | None = None
    local_files_only: bool = False
    dtype: str = "auto"
    device: str = "cpu"

    @classmethod
    def of(cls, name: str | os.PathLike[str] | None, organization: str, **settings: Any) -> Source:
        """The source that a user names. A name that is no folder and has no owner is of the organization."""
        if name is None:
            raise ValueError(
                "model_name_or_path is None, expected a folder or the id of a model of the hub; "
                "SentenceTransformer.embedded() is the model of this package"
            )
        name = os.fspath(name)
        if os.path.isdir(name) or (os.path.isfile(name) and name.endswith(".gguf")):
            return cls(os.path.abspath(name), is_folder=True, **settings)
        if os.path.isfile(name):
            expected = "expected a folder of a model, a .gguf file or the id of a model of the hub"
            raise NotADirectoryError(f"{name} is a file, {expected}")
        if name.count("/") > 1 or (os.sep == "\\" and "\\" in name):
            raise FileNotFoundError(f"{name}: no such folder")
        return cls(name if "/" in name else f"{organization}/{name}", **settings)

    def folder(self, token: str | None = None) -> str:
        """The model's folder on this machine, downloaded if it is not there."""
        assert self.name is not None
        if not self.is_folder:
            revision, cache, offline = self.revision, self.cache_folder, self.local_files_only
            return str(_native.locate(self.name, revision, token, cache, offline, True))
        if not os.path.exists(self.name):
            raise FileNotFoundError(f"{self.name}: no such folder on this machine; a pickled model is loaded by its path")
        return self.name


def settings(
    *,
    device: object,
    cache_folder: str | os.PathLike[str] | None,
    revision: str | None,
    local_files_only: bool,
    model_kwargs: dict[str, Any] | None,
    backend: str,
) -> dict[str, Any]:
    """The arguments of a constructor that say which model is loaded and how."""
    if backend != "torch":
        # The default of sentence-transformers, which stands for "no other format of the weights".
        raise NotImplementedError(f"backend is {backend!r}: this package has one, candle, and reads no other weights")
    cache_folder = cache_folder if cache_folder is not None else os.getenv("SENTENCE_TRANSFORMERS_HOME")
    return {
        "revision": revision,
        "cache_folder": None if cache_folder is None else os.path.abspath(cache_folder),
        "local_files_only": local_files_only,
        "dtype": dtype(model_kwargs),
        "device": "cpu" if device is None else str(device),
    }


def dtype(model_kwargs: dict[str, Any] | None) -> str:
    """The dtype of the weights: `dtype` or `torch_dtype`, a name or a `torch.dtype`. int8, q8_0 and q4_0 are formats of
    few bits, on the CPU; auto is float32, with weights that are stored in few bits as they are."""
    stated = dict(model_kwargs or {})
    found = [stated.pop(key) for key in ("dtype", "torch_dtype") if stated.get(key) is not None]
    if stated:
        raise NotImplementedError(f"model_kwargs has {', '.join(stated)}: this package takes dtype alone")
    name = str(found[0]).removeprefix("torch.") if found else "auto"
    if name not in DTYPES:
        raise ValueError(f"the dtype is {name!r}, expected {', '.join(DTYPES)}")
    return name


def token_text(token: bool | str | None) -> str | None:
    """The token to send; None takes that of the environment."""
    if token is False:
        raise NotImplementedError("token is False: set HF_HUB_DISABLE_IMPLICIT_TOKEN=1 to send none")
    return token if isinstance(token, str) else None
