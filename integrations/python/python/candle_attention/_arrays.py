"""Arrays of NumPy, and tensors of PyTorch where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def torch_for(argument: str) -> Any:
    """The module torch, or an error that names the argument that needs it."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{argument} needs PyTorch, which is not installed: pip install torch") from error
    return torch


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of PyTorch, without importing it."""
    return any(kind.__module__ == "torch" and kind.__name__ == "Tensor" for kind in type(value).__mro__)


def tensors(arrays: Any) -> list[Any]:
    """Each array as a tensor, of the same memory."""
    torch = torch_for("convert_to_tensor=True or convert_to_numpy=False")
    return [torch.from_numpy(array) for array in arrays]


def converted(array: npt.NDArray[Any], convert_to_numpy: bool, convert_to_tensor: bool) -> Any:
    """Rows as an array, a tensor, or a list of tensors."""
    if convert_to_tensor:
        return torch_for("convert_to_tensor=True").from_numpy(array)
    if convert_to_numpy:
        return array
    return list(torch_for("convert_to_numpy=False").from_numpy(array)) if len(array) else []


def as_rows(embeddings: Any) -> npt.NDArray[Any]:
    """Embeddings as an array of float64 if they are, else of float32; tensors and lists of rows too."""
    if is_tensor(embeddings):
        array = _of_tensor(embeddings)
    elif isinstance(embeddings, (list, tuple)) and embeddings and is_tensor(embeddings[0]):
        array = np.stack([_of_tensor(row) for row in embeddings])
    else:
        array = np.asarray(embeddings)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"the embeddings have dtype {array.dtype}, expected numbers")
    return array if array.dtype == np.float64 else array.astype(np.float32, copy=False)


def _of_tensor(tensor: Any) -> npt.NDArray[Any]:
    """NumPy has no bfloat16: what is not float64 is float32."""
    tensor = tensor.detach().cpu()
    array: npt.NDArray[Any] = (tensor if str(tensor.dtype) == "torch.float64" else tensor.float()).numpy()
    return array


def as_matrix(embeddings: Any) -> npt.NDArray[Any]:
    """Embeddings as rows; one embedding is a row."""
    rows = as_rows(embeddings)
    return rows[np.newaxis] if rows.ndim == 1 else rows


def like(array: npt.NDArray[Any], *embeddings: Any) -> Any:
    """The array as a tensor, if some of the embeddings are tensors."""
    of_torch = any(is_tensor(some) or (isinstance(some, list) and some and is_tensor(some[0])) for some in embeddings)
    return tensors([array])[0] if of_torch else array
