"""`CrossEncoder`: scores of pairs of texts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import converted, is_tensor, torch_for
from ._model import Model, as_list, max_length_of, refuse, renamed
from ._native import CrossEncoder as NativeEncoder
from ._source import Source, settings, token_text


def sigmoid(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The activation of models with one label."""
    # Of the absolute value, because the exponential of a large number overflows.
    small = np.exp(-np.abs(logits))
    probabilities: npt.NDArray[np.float32] = np.where(logits >= 0, np.float32(1), small) / (1 + small)
    return probabilities


def identity(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The activation of models with several labels."""
    return logits


class CrossEncoder(Model):
    """An encoder of pairs with the arguments and results of `sentence_transformers.CrossEncoder`.

    `model_name_or_path`, dtypes, threads and pickles are those of `SentenceTransformer`; a name without an owner is of
    `cross-encoder`. `num_labels` must be that of the model: a new head would not be trained.
    """

    default_huggingface_organization = "cross-encoder"
    _native: NativeEncoder

    @renamed(model_name="model_name_or_path", cache_dir="cache_folder", default_activation_function="activation_fn")
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
        model_kwargs: dict[str, Any] | None = None,
        processor_kwargs: dict[str, Any] | None = None,
        config_kwargs: dict[str, Any] | None = None,
        model_card_data: object = None,
        backend: str = "torch",
        num_labels: int | None = None,
        max_length: int | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        keep_in_fp32_modules: list[str] | None = None,
    ) -> None:
        refuse(
            modules=modules,
            processor_kwargs=processor_kwargs,
            config_kwargs=config_kwargs,
            model_card_data=model_card_data,
            keep_in_fp32_modules=keep_in_fp32_modules,
        )
        how = settings(
            device=device,
            cache_folder=cache_folder,
            revision=revision,
            local_files_only=local_files_only,
            model_kwargs=model_kwargs,
            backend=backend,
        )
        self._source = Source.of(model_name_or_path, self.default_huggingface_organization, **how)
        self._max_length = None
        self._native = self._load(token_text(token))
        self._set_prompts({}, prompts, default_prompt_name)
        if num_labels is not None and num_labels != self.num_labels:
            raise ValueError(f"num_labels is {num_labels}, expected {self.num_labels}, that of the model")
        self.max_seq_length = max_length
        self.activation_fn = activation_fn or (sigmoid if self._native.has_sigmoid else identity)

    def _load(self, token: str | None = None) -> NativeEncoder:
        source = self._source
        return NativeEncoder.from_folder(source.folder(token), source.dtype, source.device)

    @property
    def num_labels(self) -> int:
        """The number of scores of a pair."""
        return self._native.num_labels

    @renamed(sentences="inputs", activation_fct="activation_fn")
    def predict(
        self,
        inputs: Sequence[Sequence[str]] | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        apply_softmax: bool | None = False,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        pool: object = None,
        chunk_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """The scores of pairs of texts, `(pairs,)` or with several labels `(pairs, labels)`; of one pair, without the first
        dimension.

        `activation_fn` gets the logits `(pairs, labels)`: as a tensor if it is of PyTorch, else as an array.
        """
        self._check_call(batch_size, device, pool, chunk_size)
        max_length = max_length_of(kwargs.pop("processing_kwargs", None))
        if kwargs:
            raise ValueError(f"predict() takes no argument {', '.join(kwargs)}")
        is_single = self.is_singular_input(inputs)
        pairs = [as_list(inputs)] if is_single else as_list(inputs)
        options: Any = {
            "prompt": self._resolve_prompt(prompt, prompt_name) or "",
            "task": None,
            "batch_size": batch_size,
            "max_length": max_length if max_length is not None else self._max_length,
            "truncate_dim": None,
            "normalize_embeddings": False,
        }
        with self._progress(show_progress_bar, len(pairs)) as progress:
            logits = self._native.logits(pairs, options, progress)
        scores = _activated(activation_fn or self.activation_fn, logits)
        if self.num_labels == 1 and scores.ndim > 1:
            scores = scores.squeeze(-1)
        if apply_softmax and scores.ndim > 1:
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        result = converted(scores, convert_to_numpy, convert_to_tensor)
        return result[0] if is_single else result

    @renamed(activation_fct="activation_fn")
    def rank(
        self,
        query: str,
        documents: Sequence[str],
        top_k: int | None = None,
        return_documents: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        activation_fn: Callable[[Any], Any] | None = None,
        device: object = None,
        pool: object = None,
        chunk_size: int | None = None,
    ) -> list[dict[str, Any]]:
        """The documents by their score with `query`, the best first: dictionaries of `corpus_id`, `score`, and, with
        `return_documents`, `text`."""
        if self.num_labels != 1:
            raise ValueError(
                "CrossEncoder.rank() only works for models with num_labels=1. "
                "Consider using CrossEncoder.predict() with input pairs instead."
            )
        listed = as_list(documents)
        scores = self.predict(
            [(query, document) for document in listed],
            prompt_name=prompt_name,
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=show_progress_bar,
            activation_fn=activation_fn,
            device=device,
            pool=pool,
            chunk_size=chunk_size,
        )
        ranked: list[dict[str, Any]] = [{"corpus_id": i, "score": score} for i, score in enumerate(scores.tolist())]
        if return_documents:
            for hit, document in zip(ranked, listed):
                hit["text"] = document
        return sorted(ranked, key=lambda hit: hit["score"], reverse=True)[:top_k]

    def attention(
        self, query: str, document: str, *, layers: list[int] | None = None, heads: list[int] | None = None
    ) -> tuple[list[str], npt.NDArray[np.float32]]:
        """The tokens of a pair of texts, and the attention weights `(layers, heads, tokens, tokens)`: each row is a query,
        and sums to 1. `layers` and `heads` select some by their index."""
        return self._native.attention(query, document, layers, heads)

    @staticmethod
    def is_singular_input(inputs: Any) -> bool:
        """Whether the input is one pair, not a list of them."""
        if isinstance(inputs, np.ndarray):
            return inputs.size > 0 and inputs.ndim < 2
        return isinstance(inputs, (list, tuple)) and len(inputs) > 0 and isinstance(inputs[0], str)


def _activated(activation_fn: Callable[[Any], Any], logits: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """What the function makes of the logits, in its own kind of array."""
    owners = (activation_fn, type(activation_fn), getattr(activation_fn, "__self__", None))
    names = [str(getattr(owner, "__module__", None) or "") for owner in owners]
    if any(name.split(".")[0] == "torch" for name in names):
        made = activation_fn(torch_for("activation_fn").from_numpy(logits))
    else:
        made = activation_fn(logits)
    made = made.detach().cpu().numpy() if is_tensor(made) else np.asarray(made)
    if made.shape[:1] != logits.shape[:1]:
        raise ValueError(f"activation_fn made {made.shape} of logits {logits.shape}, expected as many rows")
    return made
