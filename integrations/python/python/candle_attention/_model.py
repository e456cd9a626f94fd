"""What both kinds of models share: prompts, progress, copies, and the arguments that are refused."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ._source import Source

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("candle_attention")
F = TypeVar("F", bound=Callable[..., Any])


def renamed(**names: str) -> Callable[[F], F]:
    """Takes keyword arguments also under names that sentence-transformers had before."""

    def decorator(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            for old, new in names.items():
                if old in kwargs:
                    kwargs.setdefault(new, kwargs.pop(old))
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorator


def refuse(**arguments: object) -> None:
    """An error for arguments that this package cannot honour: all that are neither None nor empty."""
    for name, value in arguments.items():
        if value is not None and value != {} and value != []:
            raise NotImplementedError(f"{name} is {value!r}: this package cannot do that, leave it out")


def as_list(inputs: Any) -> list[Any]:
    """A list of what is in a sequence, an array or a column."""
    if isinstance(inputs, list):
        return inputs
    if isinstance(inputs, (str, Mapping, set, frozenset, bytes, bytearray)):
        raise TypeError(f"inputs is {type(inputs).__name__}, expected a str or a list of them")
    method = next((name for name in ("tolist", "to_list", "to_pylist", "__iter__") if hasattr(inputs, name)), None)
    listed = getattr(inputs, method)() if method else None
    # An array without dimensions lists as its value.
    if listed is None or isinstance(listed, str):
        raise TypeError(f"inputs is {type(inputs).__name__}, expected a str or a list of them")
    return list(listed)


def max_length_of(processing_kwargs: Mapping[str, Any] | None) -> int | None:
    """The length at which a call cuts texts: `{"text": {"max_length": 64, "truncation": True}}`."""
    stated = {group: dict(settings) for group, settings in (processing_kwargs or {}).items()}
    text = stated.pop("text", {})
    max_length: int | None = text.pop("max_length", None)
    if stated or text.pop("truncation", True) is not True or text:
        raise NotImplementedError(
            f"processing_kwargs is {processing_kwargs!r}: this package takes "
            '{"text": {"max_length": N, "truncation": True}}'
        )
    return max_length


class Model:
    """A model of one of the two kinds. `_native` never changes; all else belongs to the Python object."""

    _native: Any
    _source: Source
    _max_length: int | None
    prompts: dict[str, str]
    default_prompt_name: str | None

    def _load(self, token: str | None = None) -> Any:
        """The model of `_source`."""
        raise NotImplementedError

    def _set_prompts(
        self, defaults: dict[str, str | None], given: dict[str, str] | None, default_prompt_name: str | None
    ) -> None:
        """The prompts of the folder below those that are given. A default that nobody fills is empty."""
        prompts = {**defaults, **(given or {})}
        for name, prompt in self._native.prompts.items():
            if prompts.get(name) is None:
                prompts[name] = prompt
        self.prompts = {name: prompt or "" for name, prompt in prompts.items()}
        if default_prompt_name is None:
            default_prompt_name = self._native.default_prompt_name
        self.default_prompt_name = default_prompt_name
        if default_prompt_name is not None and default_prompt_name not in self.prompts:
            raise ValueError(
                f"Default prompt name '{default_prompt_name}' not found in the configured prompts "
                f"dictionary with keys {list(self.prompts)!r}."
            )

    def _resolve_prompt(self, prompt: str | None, prompt_name: str | None) -> str | None:
        """The prompt of a call, by the rules of sentence-transformers."""
        if prompt is not None:
            if prompt_name is not None:
                logger.warning(
                    "Provide either a `prompt`, a `prompt_name`, or neither, but not both. "
                    "Ignoring the `prompt_name` in favor of `prompt`."
                )
            return prompt
        if prompt_name is None:
            return None if self.default_prompt_name is None else self.prompts.get(self.default_prompt_name)
        if prompt_name not in self.prompts:
            raise ValueError(
                f"Prompt name '{prompt_name}' not found in the configured prompts dictionary "
                f"with keys {list(self.prompts)!r}."
            )
        return self.prompts[prompt_name]

    def _check_call(self, batch_size: int, device: object, pool: object, chunk_size: object) -> None:
        """What every call checks first."""
        if batch_size <= 0:
            raise ValueError(f"batch_size must be a positive integer, got {batch_size}.")
        refuse(pool=pool, chunk_size=chunk_size)
        if device is not None and str(device) != self.device:
            raise NotImplementedError(f"device is {device!r}: the model is on {self.device}, load another one for it")

    @staticmethod
    @contextmanager
    def _progress(show: bool | None, total: int) -> Iterator[Callable[[int], None] | None]:
        """A progress bar on standard error; by default, if the logger shows information."""
        if show is None:
            show = logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
        if not show:
            yield None
            return
        from tqdm.auto import tqdm

        with tqdm(total=total, desc="Texts") as bar:

            def show_done(done: int) -> None:
                bar.update(done - bar.n)

            yield show_done
            show_done(total)

    @property
    def device(self) -> str:
        """The device of the model, such as `cpu`."""
        return self._source.device

    @property
    def max_seq_length(self) -> int | None:
        """The number of tokens at which texts are cut; None if the model has no limit."""
        return self._max_length if self._max_length is not None else self._native.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int | None) -> None:
        if value is not None and value < 1:
            raise ValueError(f"max_seq_length is {value}, expected at least 1")
        self._max_length = value

    def get_max_seq_length(self) -> int | None:
        """`max_seq_length`."""
        return self.max_seq_length

    def get_backend(self) -> str:
        """The name of what computes: `candle`."""
        return "candle"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_native"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._native = self._load()

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(copy.deepcopy(self.__getstate__(), memo), _native=self._native)
        return other
