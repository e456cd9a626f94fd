"""One side of bench.py that runs in Python: a library alone, or in the actors of Ray Data.

Run: worker.py LIBRARY ENGINE MODEL INPUT OUTPUT THREADS
     LIBRARY is candle_attention or sentence_transformers, ENGINE is alone or ray, INPUT a folder of Parquet files with a
     column `text`. Writes the embeddings to OUTPUT (.npy) in the order of the texts, and prints one JSON object:
     seconds of the job, seconds until its first batch, seconds inside `encode` (all actors together), and actors.

Both libraries have the class `SentenceTransformer`, so that this file does the same with either.
"""

import importlib
import json
import sys
import time

import numpy
import pyarrow.dataset

# Rows that an actor gets at a time. Each library makes its own batches of them.
ROWS = 256


class Embed:
    """A model, in an actor of its own."""

    def __init__(self, library, model, threads):
        # PyTorch takes all cores otherwise. The crate reads RAYON_NUM_THREADS.
        if library == "sentence_transformers":
            import torch

            torch.set_num_threads(threads)
        self.model = importlib.import_module(library).SentenceTransformer(model, device="cpu")
        self.model.encode(["warm"])

    def __call__(self, batch):
        start = time.time()
        embeddings = self.model.encode([str(text) for text in batch["text"]])
        rows = len(embeddings)
        return {
            "row": batch["row"],
            "embedding": embeddings,
            "start": numpy.full(rows, start),
            # Counted once a batch.
            "seconds": numpy.array([time.time() - start] + [0.0] * (rows - 1)),
        }


def alone(library, model, folder, threads):
    begin = time.time()
    table = pyarrow.dataset.dataset(folder).to_table()
    embed = Embed(library, model, threads)
    batch = {"text": table["text"].to_pylist(), "row": table["row"].to_numpy()}
    return begin, [embed(batch)], 1


def under_ray(library, model, folder, threads):
    import ray

    # An actor for each core, and a slot for the tasks that read files, which would wait forever otherwise.
    environment = {"env_vars": {"RAYON_NUM_THREADS": "1"}}
    ray.init(num_cpus=threads + 1, include_dashboard=False, log_to_driver=False, logging_level="error", runtime_env=environment)
    ray.data.DataContext.get_current().enable_progress_bars = False
    begin = time.time()
    actors = ray.data.ActorPoolStrategy(size=threads)
    data = ray.data.read_parquet(folder).map_batches(
        Embed, fn_constructor_args=(library, model, 1), compute=actors, num_cpus=1, batch_size=ROWS
    )
    return begin, list(data.iter_batches(batch_size=None)), threads


def main():
    library, engine, model, folder, output, threads = sys.argv[1:]
    run = {"alone": alone, "ray": under_ray}[engine]
    begin, batches, actors = run(library, model, folder, int(threads))
    end = time.time()
    joined = {name: numpy.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    numpy.save(output, joined["embedding"][numpy.argsort(joined["row"])])
    first = joined["start"].min()
    print(json.dumps({"job": end - first, "start": first - begin, "encoding": joined["seconds"].sum(), "actors": actors}))


if __name__ == "__main__":
    main()
