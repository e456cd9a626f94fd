"""Embeds a column with Ray Data: a pool of actors, each of which loads the model once."""

import numpy as np
import ray

from candle_attention import SentenceTransformer

TEXTS = ["A cat sleeps on the sofa.", "A kitten naps on the couch.", "Stocks fell sharply today."]


class Embed:
    """An actor. Ray gives it `OMP_NUM_THREADS`, the number of threads that the model then uses."""

    def __init__(self) -> None:
        self.model = SentenceTransformer.embedded()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {**batch, "embedding": self.model.encode(batch["text"], normalize_embeddings=True)}


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    texts = ray.data.from_items([{"id": i, "text": TEXTS[i % 3]} for i in range(300)], override_num_blocks=4)
    embedded = texts.map_batches(Embed, batch_size=50, concurrency=2)
    rows = sorted(embedded.take_all(), key=lambda row: row["id"])
    embeddings = np.stack([row["embedding"] for row in rows])
    print(embeddings.shape)
    print(f"{embeddings[0] @ embeddings[1]:.3f} {embeddings[0] @ embeddings[2]:.3f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
