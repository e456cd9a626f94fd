"""Text encoders of candle-attention, with the names and arguments of sentence-transformers."""

from importlib.metadata import version

from ._native import get_num_threads, set_num_threads
from .cross_encoder import CrossEncoder
from .quantization import quantize_embeddings
from .sentence_transformer import SentenceTransformer

__version__ = version("candle-attention")

__all__ = [
    "CrossEncoder",
    "SentenceTransformer",
    "get_num_threads",
    "quantize_embeddings",
    "set_num_threads",
]
