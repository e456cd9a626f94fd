"""Golden values of a notebook-sized run: padded ids -> Embedding -> d2l self-attention.

Ten ragged id lists (ids 1..99) padded with 0 to 20 tokens, torch.nn.Embedding(100, 512),
then d2l.torch.MultiHeadAttention(512, 8 heads, no bias), with and without valid lengths.

Writes tests/fixtures/notebook.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/notebook.py

`embedding.weight` and `layer.*` are BF16 (rounded before the run, which is in f32).
To keep the file small `masked.output` and `unmasked.output` (f32) hold only sequences
0..2 and token positions 0..7, 18, 19.
"""

import json

import numpy as np
import torch
from d2l import torch as d2l

from common import save

VOCABULARY, HIDDENS, HEADS, LONGEST = 100, 512, 8, 20
SEQUENCES = [0, 1, 2]
POSITIONS = [0, 1, 2, 3, 4, 5, 6, 7, 18, 19]


def main():
    torch.set_num_threads(1)
    rng = np.random.default_rng(512)
    lengths = rng.integers(1, LONGEST + 1, 10)
    lengths[1] = LONGEST
    lists = [rng.integers(1, VOCABULARY, n).tolist() for n in lengths]
    ids = torch.tensor([ids + [0] * (LONGEST - len(ids)) for ids in lists])
    lengths = torch.from_numpy(lengths)

    # PyTorch's own initial values, as a notebook has them, rounded.
    torch.manual_seed(512)
    embedding = torch.nn.Embedding(VOCABULARY, HIDDENS)
    layer = d2l.MultiHeadAttention(HIDDENS, HEADS, 0.5, bias=False)
    layer.eval()
    tensors = {"ids": ids, "lengths": lengths}
    with torch.no_grad():
        layer(*[embedding(ids)] * 3, None)  # the first call gives the lazy layers their sizes
        for prefix, module in (("embedding", embedding), ("layer", layer)):
            rounded = {key: weight.bfloat16() for key, weight in module.state_dict().items()}
            module.load_state_dict({key: weight.float() for key, weight in rounded.items()})
            tensors |= {f"{prefix}.{key}": weight for key, weight in rounded.items()}
        X = embedding(ids)
        for name, valid_lens in (("masked", lengths), ("unmasked", None)):
            output = layer(X, X, X, valid_lens)
            tensors[f"{name}.output"] = output[SEQUENCES][:, POSITIONS].contiguous()
    save(
        "notebook.safetensors",
        tensors,
        ["torch", "d2l", "numpy", "safetensors"],
        "outputs (f32) hold only the sequences and token positions listed here",
        framework="torch",
        sequences=json.dumps(SEQUENCES),
        positions=json.dumps(POSITIONS),
        pad_id="0",
        num_heads=str(HEADS),
    )


if __name__ == "__main__":
    main()
