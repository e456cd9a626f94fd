"""A layer of the embedded model on tensors of a file, by transformers: what `attend` reads, and what it should write.

Writes tests/fixtures/attend/in.safetensors (`query` (1, 5, 128), `attention_mask` (1, 5)) and want.safetensors
(`output` (1, 5, 128), `weights` (1, 4, 5, 5)). Pins: requirements-torch.txt.
Run: python tests/golden/attend.py
"""

import numpy as np
import torch
from transformers import AutoModel

from common import FIXTURES, normal, save

if __name__ == "__main__":
    inputs = {"query": normal(np.random.default_rng(51), 1, 5, 128), "attention_mask": np.array([[1, 1, 1, 1, 0]])}
    weights = FIXTURES.parent.parent / "weights"
    attention = AutoModel.from_pretrained(weights, dtype=torch.float32, attn_implementation="eager").encoder.layer[0].attention
    with torch.no_grad():
        # The mask of transformers: 0 where a key is seen, the lowest number where it is hidden.
        hidden = torch.from_numpy(1 - inputs["attention_mask"])[:, None, None] * torch.finfo(torch.float32).min
        context, weights = attention.self(torch.from_numpy(inputs["query"]), hidden)[:2]
        output = attention.output.dense(context)
    (FIXTURES / "attend").mkdir(exist_ok=True)
    save("attend/in.safetensors", inputs, ["numpy"], "see tests/golden/attend.py")
    want = {"output": output.numpy(), "weights": weights.numpy()}
    save("attend/want.safetensors", want, ["torch", "transformers"], "see tests/golden/attend.py")
