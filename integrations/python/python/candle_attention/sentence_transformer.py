"""`SentenceTransformer`: embeddings of texts."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _native
from ._arrays import as_matrix, converted, like, tensors
from ._model import Model, as_list, max_length_of, refuse, renamed
from ._native import SentenceEncoder as NativeEncoder
from ._source import Source, settings, token_text
from .quantization import PRECISIONS, quantize_embeddings

OutputValue = Literal["sentence_embedding", "token_embeddings"] | None
Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]

SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# More than any embedding has: no truncation, also where the model's folder states one.
NO_TRUNCATION = 2**31
# The names under which models with an adapter per task have the tasks of a search.
RETRIEVAL = {"query": "retrieval.query", "document": "retrieval.passage"}


class SentenceTransformer(Model):
    """A sentence encoder with the arguments and results of `sentence_transformers.SentenceTransformer`.

    `model_name_or_path` is a folder or the id of a model of the hub; a name without an owner is of `sentence-transformers`.
    Weights are read, code is not: `trust_remote_code` allows what never happens. `model_kwargs` may hold `dtype`. Other
    arguments that this package cannot honour raise NotImplementedError.

    Any number of threads may share a model. It is pickled by its path or id, and a copy shares the weights.
    """

    default_huggingface_organization = "sentence-transformers"
    _native: NativeEncoder

    @renamed(tokenizer_kwargs="processor_kwargs")
    def __init__(
        self,
        model_name_or_path: str | os.PathLike[str] | None = None,
        *,
        modules: object = None,
        device: object = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        trust_remote_code: bool = False,
        revision: str | None = None,
        local_files_only: bool = False,
        token: bool | str | None = None,
        use_auth_token: bool | str | None = None,
        model_kwargs: dict[str, Any] | None = None,
        processor_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
        model_card_data: object = None,
        backend: str = "torch",
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> None:
        refuse(
            modules=modules,
            processor_kwargs=processor_kwargs,
            config_kwargs=config_kwargs,
            model_card_data=model_card_data,
        )
        if use_auth_token is not None:
            warnings.warn("use_auth_token is deprecated: use token", FutureWarning, stacklevel=3)
            if token is not None:
                raise ValueError("both token and use_auth_token are given: give token alone")
            token = use_auth_token
        how = settings(
            device=device,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            model_kwargs=model_kwargs,
            backend=backend,
        )
        source = Source.of(model_name_or_path, self.default_huggingface_organization, **how)
        self._open(source, token_text(token), prompts, default_prompt_name, similarity_fn_name, truncate_dim)

    @classmethod
    def embedded(
        cls,
        *,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        similarity_fn_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> SentenceTransformer:
        """The model that is part of this package: English, 128 features, 3 MB; no file and no network."""
        model = object.__new__(cls)
        model._open(Source(None), None, prompts, default_prompt_name, similarity_fn_name, truncate_dim)
        return model

    def _open(
        self,
        source: Source,
        token: str | None,
        prompts: dict[str, str] | None,
        default_prompt_name: str | None,
        similarity_fn_name: str | None,
        truncate_dim: int | None,
    ) -> None:
        self._source, self._max_length = source, None
        self._native = self._load(token)
        self._set_prompts({"query": None, "document": None}, prompts, default_prompt_name)
        self.similarity_fn_name = similarity_fn_name or self._native.similarity_fn_name
        self.truncate_dim = truncate_dim if truncate_dim is not None else self._native.truncate_dim

    def _load(self, token: str | None = None) -> NativeEncoder:
        source = self._source
        if source.name is None:
            return NativeEncoder.embedded(source.dtype, source.device)
        return NativeEncoder.from_folder(source.folder(token), source.dtype, source.device)

    @renamed(sentences="inputs")
    def encode_query(
        self,
        inputs: Sequence[str] | str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """`encode` for texts that search: with the prompt `query` unless another is given, and the task `query`."""
        if prompt_name is None and prompt is None and "query" in self.prompts:
            prompt_name = "query"
        return self.encode(
            inputs=inputs,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            output_value=output_value,
            precision=precision,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            device=device,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            pool=pool,
            chunk_size=chunk_size,
            task="query",
            **kwargs,
        )

    @renamed(sentences="inputs")
    def encode_document(
        self,
        inputs: Sequence[str] | str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """`encode` for texts that are searched: with the first of the prompts `document`, `passage` and `corpus` that the
        model has unless another is given, and the task `document`."""
        if prompt_name is None and prompt is None:
            prompt_name = next((name for name in ("document", "passage", "corpus") if name in self.prompts), None)
        return self.encode(
            inputs=inputs,
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            output_value=output_value,
            precision=precision,
            convert_to_numpy=convert_to_numpy,
            convert_to_tensor=convert_to_tensor,
            device=device,
            normalize_embeddings=normalize_embeddings,
            truncate_dim=truncate_dim,
            pool=pool,
            chunk_size=chunk_size,
            task="document",
            **kwargs,
        )

    @renamed(sentences="inputs")
    def encode(
        self,
        inputs: Sequence[str] | str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: OutputValue = "sentence_embedding",
        precision: Precision | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Embeddings `(texts, dimension)`, or `(dimension,)` for a single text.

        `inputs` is a text or a list, tuple, array or column of texts. With `output_value="token_embeddings"` each text gives
        the vectors of its tokens `(tokens, width)`; with None a dictionary of `input_ids`, `attention_mask`,
        `token_embeddings` and `sentence_embedding`. All are NumPy arrays; `convert_to_tensor` gives one tensor of PyTorch,
        `convert_to_numpy=False` a list of tensors. A text's vector is the same, bit for bit, in any batch.

        `task` names a route or task of a model that has some; `processing_kwargs={"text": {"max_length": N}}` cuts texts
        at another length.
        """
        self._check_call(batch_size, device, pool, chunk_size)
        task, max_length = kwargs.pop("task", None), max_length_of(kwargs.pop("processing_kwargs", None))
        if kwargs:
            raise ValueError(
                f"{type(self).__name__}.encode() has been called with additional keyword arguments that this model does "
                f"not use: {list(kwargs)}."
            )
        if precision is not None and precision not in PRECISIONS:
            raise ValueError(f"Precision {precision!r} is not supported, must be one of {PRECISIONS}")
        is_single = isinstance(inputs, str)
        texts: list[Any] = [inputs] if is_single else as_list(inputs)
        options = self._options(self._resolve_prompt(prompt, prompt_name), task, max_length)
        options["batch_size"], options["normalize_embeddings"] = batch_size, normalize_embeddings
        if truncate_dim is None:
            truncate_dim = self.truncate_dim
        if truncate_dim is not None and truncate_dim < 1:
            raise ValueError(f"truncate_dim is {truncate_dim}, expected at least 1")
        options["truncate_dim"] = NO_TRUNCATION if truncate_dim is None else truncate_dim

        with self._progress(show_progress_bar, len(texts)) as progress:
            if output_value == "sentence_embedding":
                embeddings = self._native.encode(texts, options, progress)
                result = self._finish(embeddings, precision or "float32", convert_to_numpy, convert_to_tensor)
            elif output_value == "token_embeddings":
                tokens = self._native.encode_tokens(texts, options, progress)
                rows = _quantized_tokens(tokens, precision or "float32")
                result = tensors(rows) if convert_to_tensor or not convert_to_numpy else rows
            elif output_value is None and precision in (None, "float32"):
                # Sentence embeddings as the model gives them, as in sentence-transformers.
                result = self._features(texts, {**options, "normalize_embeddings": False}, progress)
                if convert_to_tensor or not convert_to_numpy:
                    result = [dict(zip(features, tensors(features.values()))) for features in result]
            else:
                raise ValueError(
                    f"output_value is {output_value!r} with precision {precision!r}, expected sentence_embedding, "
                    "token_embeddings, or None in float32"
                )
        return result[0] if is_single else result

    def _options(self, prompt: str | None, task: str | None, max_length: int | None) -> Any:
        """The options of a call that its texts alone need."""
        retrieval = RETRIEVAL.get(task or "")
        if retrieval in self._native.tasks:
            task = retrieval
        # A task of the checkpoint has an instruction of its own, in place of an empty prompt.
        has_instruction = task in self._native.tasks and not prompt
        return {
            "prompt": None if has_instruction else prompt or "",
            "task": task,
            "batch_size": 32,
            "max_length": max_length if max_length is not None else self._max_length,
            "truncate_dim": None,
            "normalize_embeddings": False,
        }

    @staticmethod
    def _finish(
        embeddings: npt.NDArray[np.float32], precision: str, convert_to_numpy: bool, convert_to_tensor: bool
    ) -> Any:
        if not len(embeddings):
            # The shapes of sentence-transformers.
            return converted(np.array([], dtype=np.float32), convert_to_numpy, convert_to_tensor)
        if precision != "float32":
            embeddings = quantize_embeddings(embeddings, precision)
        return converted(embeddings, convert_to_numpy, convert_to_tensor)

    def _features(self, texts: list[str], options: Any, progress: Any) -> list[dict[str, npt.NDArray[Any]]]:
        """What `output_value=None` gives of each text."""
        ids = self._native.token_ids(texts, options)
        tokens = self._native.encode_tokens(texts, options)
        embeddings = self._native.encode(texts, options, progress)
        return [
            {
                "input_ids": of_ids,
                "attention_mask": np.ones_like(of_ids),
                "token_embeddings": of_tokens,
                "sentence_embedding": embedding,
            }
            for of_ids, of_tokens, embedding in zip(ids, tokens, embeddings)
        ]

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None) -> dict[str, list[npt.NDArray[np.int64]]]:
        """The ids of the tokens of each text, special tokens included, as `input_ids` and their `attention_mask`: one array
        per text, without padding."""
        ids = self._native.token_ids(as_list(inputs), self._options(prompt, None, None))
        return {"input_ids": ids, "attention_mask": [np.ones_like(of_text) for of_text in ids]}

    def tokenize(self, texts: Sequence[str]) -> dict[str, list[npt.NDArray[np.int64]]]:
        """`preprocess`, by its earlier name."""
        return self.preprocess(texts)

    def attention(
        self,
        text: str,
        pair: str | None = None,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        layers: list[int] | None = None,
        heads: list[int] | None = None,
    ) -> tuple[list[str], npt.NDArray[np.float32]]:
        """The tokens of a text or a pair of texts, and the attention weights `(layers, heads, tokens, tokens)`: each row is
        a query, and sums to 1. `layers` and `heads` select some by their index."""
        resolved = self._resolve_prompt(prompt, prompt_name) or ""
        return self._native.attention(text, pair, resolved, layers, heads)

    @property
    def similarity_fn_name(self) -> str:
        """`cosine`, `dot`, `euclidean` or `manhattan`."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: Any) -> None:
        # The enumeration of sentence-transformers has the name as its value.
        name = str(getattr(value, "value", value))
        if name not in SIMILARITIES:
            raise ValueError(
                f"{type(self).__name__} only supports similarity_fn_name in {SIMILARITIES}, got {name!r}."
            )
        self._similarity_fn_name = name

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """How similar embeddings `(n, d)` and `(m, d)` are, each with each: `(n, m)`. A tensor if one of them is."""
        compared = _native.similarity(self.similarity_fn_name, as_matrix(embeddings1), as_matrix(embeddings2))
        return like(compared, embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """How similar embeddings, twice `(n, d)`, are row by row: `(n,)`. A tensor if one of them is."""
        compared = _native.similarity_pairwise(self.similarity_fn_name, as_matrix(embeddings1), as_matrix(embeddings2))
        return like(compared, embeddings1, embeddings2)

    def get_embedding_dimension(self) -> int:
        """The number of features of an embedding, after truncation."""
        options = self._options("", None, None)
        options["truncate_dim"] = NO_TRUNCATION if self.truncate_dim is None else self.truncate_dim
        return int(self._native.encode([], options).shape[1])

    def get_sentence_embedding_dimension(self) -> int:
        """`get_embedding_dimension`, by its earlier name."""
        return self.get_embedding_dimension()

    @contextmanager
    def truncate_embeddings(self, truncate_dim: int | None) -> Iterator[None]:
        """Within this context, embeddings are truncated to `truncate_dim` features."""
        before = self.truncate_dim
        self.truncate_dim = truncate_dim
        try:
            yield
        finally:
            self.truncate_dim = before


def _quantized_tokens(tokens: list[npt.NDArray[Any]], precision: str) -> list[npt.NDArray[Any]]:
    """The vectors of all texts with one range for each feature."""
    if precision == "float32" or not tokens:
        return tokens
    ends = np.cumsum([len(of_text) for of_text in tokens])[:-1]
    return list(np.split(quantize_embeddings(np.concatenate(tokens), precision), ends))
