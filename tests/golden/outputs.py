"""What sentence-transformers makes of the texts of tiny-bert: the options of `encode`, quantization, similarities, spans.

Reads ../fixtures/tiny-bert and ../fixtures/tiny_sentences.json (`tiny_models.py` writes them). The model gets the prompts
PROMPTS. Writes ../fixtures/sentence_outputs.safetensors with
    truncated, truncated_normalized   f32 (8, 7): truncate_dim=7 of mean pooling without Normalize; the same and
                                      normalize_embeddings=True
    normalized                        f32 (8, 24): normalize_embeddings=True
    prompt, query, document           f32 (8, 24) of the whole model: the prompt "hello ", encode_query, encode_document
    tokens.<i>                        f32 (tokens, 24): output_value="token_embeddings" of text i after the prompt "hello "
    floats, calibration               f32 (9, 21), (40, 21): random embeddings, the last feature of `floats` constant
    int8, uint8, binary, ubinary      `floats` quantized, with its own ranges
    int8.ranges, uint8.calibration    `floats` quantized with the ranges of `calibration`, and with `calibration`
    <function>, <function>.pairwise   similarities of floats[:4] with floats[4:], and with floats[4:8]
    spans, spans.bytes                late chunking of LONG with max_seq_length=40: f32 (5, 24) and i64 (5, 2). The mean of
                                      the vectors of the tokens that share a character with the span, then Normalize

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0 (stored in the metadata).
Re-run:  python tests/golden/outputs.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, quantize_embeddings

from common import FIXTURES, save

PROMPTS = {"query": "the cat ", "passage": "this text "}
LONG = "The cat sat on the mat. Caf\u00e9 \u4f60\u597d: a dog reads, and 12 birds sat!"
# In characters of LONG: a sentence, a part of a word, all of it, one character of two bytes, the end.
SPANS = [(0, 23), (9, 10), (0, len(LONG)), (27, 28), (45, len(LONG))]
NAMES = ["cosine", "dot", "euclidean", "manhattan"]


def main():
    torch.set_num_threads(1)
    texts = json.loads((FIXTURES / "tiny_sentences.json").read_text())
    out = {}
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / "model"
        shutil.copytree(FIXTURES / "tiny-bert", folder)
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
        model = SentenceTransformer(str(folder), device="cpu")

    bare = SentenceTransformer(modules=[model[0], model[1]], device="cpu")
    keep = dict(convert_to_tensor=True, show_progress_bar=False)
    out["truncated"] = bare.encode(texts, truncate_dim=7, **keep)
    out["truncated_normalized"] = bare.encode(texts, truncate_dim=7, normalize_embeddings=True, **keep)
    out["normalized"] = bare.encode(texts, normalize_embeddings=True, **keep)
    out["prompt"] = model.encode(texts, prompt="hello ", **keep)
    out["query"] = model.encode_query(texts, **keep)
    out["document"] = model.encode_document(texts, **keep)
    # 6.2 finds no fallback for documents: every model has a prompt `document`, if an empty one.
    assert torch.equal(out["document"], model.encode(texts, prompt="", **keep))
    tokens = model.encode(texts, prompt="hello ", output_value="token_embeddings")
    out |= {f"tokens.{i}": vectors.clone() for i, vectors in enumerate(tokens)}

    rng = np.random.default_rng(3)
    floats = rng.normal(size=(9, 21)).astype(np.float32)
    floats[:, -1] = 0.25
    calibration = rng.normal(scale=0.7, size=(40, 21)).astype(np.float32)
    ranges = np.stack([calibration.min(axis=0), calibration.max(axis=0)])
    arrays = {"floats": floats, "calibration": calibration}
    arrays |= {name: quantize_embeddings(floats, name) for name in ["int8", "uint8", "binary", "ubinary"]}
    arrays["int8.ranges"] = quantize_embeddings(floats, "int8", ranges=ranges)
    arrays["uint8.calibration"] = quantize_embeddings(floats, "uint8", calibration_embeddings=calibration)
    # Signed bytes in a dtype that candle has.
    out |= {name: torch.from_numpy(x.astype(np.int64) if x.dtype == np.int8 else x) for name, x in arrays.items()}
    for name in NAMES:
        model.similarity_fn_name = name
        out[name] = model.similarity(floats[:4], floats[4:])
        out[f"{name}.pairwise"] = model.similarity_pairwise(floats[:4], floats[4:8])

    model.max_seq_length = 40
    vectors = model.encode(LONG, output_value="token_embeddings")
    offsets = model.tokenizer(LONG, return_offsets_mapping=True)["offset_mapping"]
    assert len(offsets) == len(vectors) > 20
    pooled = [torch.stack([v for v, (a, b) in zip(vectors, offsets) if a < end and b > start]).mean(0)
              for start, end in SPANS]
    out["spans"] = torch.nn.functional.normalize(torch.stack(pooled))
    out["spans.bytes"] = torch.tensor([[len(LONG[:i].encode()) for i in span] for span in SPANS])
    save("sentence_outputs.safetensors", out, ["torch", "transformers", "sentence-transformers", "tokenizers"],
         f"tiny-bert on tiny_sentences.json with the prompts {json.dumps(PROMPTS)}; spans of {json.dumps(LONG)}",
         framework="torch")


if __name__ == "__main__":
    main()
