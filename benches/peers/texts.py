"""Texts to sentence embeddings with a session that only computes hidden states.

optimum, with which sentence-transformers uses ONNX Runtime and OpenVINO, does not install beside this version of
transformers. So this does what sentence-transformers does: the same tokenizer, texts sorted by length and cut into
batches, the mean over tokens, and the norm.
"""

import json
from pathlib import Path

import numpy
from tokenizers import Tokenizer


class Texts:
    def __init__(self, work):
        folder = Path(work["folder"])
        self.texts = Path(work["texts"]).read_text().splitlines()
        self.batch = work["batch"]
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        limit = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
        self.tokenizer.enable_truncation(limit)
        padding = self.tokenizer.padding or {}
        self.tokenizer.enable_padding(pad_id=padding.get("pad_id", 0), pad_token=padding.get("pad_token", "[PAD]"))

    def embed(self, hidden_states):
        """`hidden_states`: token ids and mask (b, s) → (b, s, hidden_size)."""
        order = sorted(range(len(self.texts)), key=lambda i: -len(self.texts[i]))
        pooled = []
        for start in range(0, len(order), self.batch):
            encodings = self.tokenizer.encode_batch([self.texts[i] for i in order[start : start + self.batch]])
            ids = numpy.array([encoding.ids for encoding in encodings])
            mask = numpy.array([encoding.attention_mask for encoding in encodings])
            hidden = hidden_states(ids, mask)
            keep = mask[:, :, None].astype(hidden.dtype)
            pooled.append((hidden * keep).sum(1) / keep.sum(1))
        pooled = numpy.concatenate(pooled)
        output = numpy.empty_like(pooled)
        output[order] = pooled / numpy.linalg.norm(pooled, axis=1, keepdims=True)
        return output
