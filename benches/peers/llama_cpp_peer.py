"""llama.cpp through llama-cpp-python: texts to embeddings."""

from pathlib import Path

import llama_cpp
import numpy

# Tokens that run together: as many as MiniLM reads of a text. 512 and 2,048 take longer, because llama.cpp computes scores
# between all of them and masks those between texts.
TOGETHER = 256


def load(work, _peer):
    model = llama_cpp.Llama(
        work["gguf_" + work["dtype"]],
        embedding=True,
        n_ctx=TOGETHER,
        n_batch=TOGETHER,
        n_ubatch=TOGETHER,
        n_threads=work["threads"],
        n_threads_batch=work["threads"],
        verbose=False,
    )
    texts = Path(work["texts"]).read_text().splitlines()
    return lambda: numpy.array(model.embed(texts, normalize=True), dtype=numpy.float32)
