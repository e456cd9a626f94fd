"""A provider for `embed_text` of Daft, which ships the model as a pickle of its path and not as weights."""

import daft
from daft.ai.protocols import TextEmbedderDescriptor
from daft.ai.provider import Provider
from daft.ai.typing import EmbeddingDimensions
from daft.functions import cosine_distance, embed_text

from candle_attention import SentenceTransformer


class Embedder(TextEmbedderDescriptor):
    def __init__(self, model: str | None, dimensions: int | None) -> None:
        self.name = model
        opened = SentenceTransformer.embedded() if model is None else SentenceTransformer(model)
        opened.truncate_dim = dimensions
        self.model = opened

    def get_provider(self) -> str: return "candle-attention"
    def get_model(self) -> str: return self.name or "embedded"
    def get_options(self) -> dict: return {}
    def get_dimensions(self) -> EmbeddingDimensions:
        return EmbeddingDimensions(self.model.get_embedding_dimension(), daft.DataType.float32())
    def instantiate(self) -> "Embedder": return self
    def embed_text(self, text: list[str]) -> list: return list(self.model.encode(text))


class Candle(Provider):
    name = "candle-attention"

    def get_text_embedder(self, model=None, dimensions=None, **options) -> Embedder: return Embedder(model, dimensions)


if __name__ == "__main__":
    frame = daft.from_pydict({"a": ["A cat sleeps on the sofa."] * 2, "b": ["A kitten naps on the couch.", "Stocks fell."]})
    for name in "ab":
        frame = frame.with_column(f"{name}_embedding", embed_text(frame[name], provider=Candle(), dimensions=64))
    print(frame.schema()["a_embedding"].dtype)
    for row in frame.with_column("d", cosine_distance(frame["a_embedding"], frame["b_embedding"])).to_pylist():
        print(f"{1 - row['d']:.3f} {row['b']}")
