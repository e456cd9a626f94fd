"""Encoders: texts in and vectors out beside sentence-transformers, ids in and hidden states out beside transformers.

Both pad a ragged batch; ours computes nothing for padding.
"""

import sys

import models
from results import Results
from timing import FAILED, Ours, alone, kinds, medians

SHAPES = {"cuda": [(1, 16), (1, 128), (8, 128), (32, 128), (64, 512)], "cpu": [(1, 16), (3, 24)]}
DTYPES = {"cuda": ("bf16", "f16"), "cpu": ("bf16",)}
# In the order of the columns.
PAIRS = {"ours, texts": "sentence-transformers", "ours, ids": "transformers"}


def run(options):
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    columns = ["model", "texts"] + [f"{side}, ms" for pair in PAIRS.items() for side in pair] + ["texts ÷", "ids ÷"]
    results = Results(options.output, "encoders", columns, "Random weights; ragged: an eighth of the longest and more.")
    ours = {name: Ours(options) for name in PAIRS}
    for dtype in DTYPES[options.device]:
        for name in models.NAMES:
            if options.left() <= 0:
                return 0
            folder = models.folder(options, name)
            settings = {"dtype": kinds()[dtype], "attn_implementation": "sdpa"}
            encoder = SentenceTransformer(str(folder), device=options.device, model_kwargs=settings)
            hidden = AutoModel.from_pretrained(folder, **settings).eval().to(options.device)
            for b, longest in SHAPES[options.device]:
                for ragged in (False, True) if b > 1 else (False,):
                    if options.left() <= 0:
                        return 0
                    shown = f"{b} × {longest}{' ragged' if ragged else ''}"
                    counts = models.lengths(b, longest, ragged)
                    found = case(options, ours, folder, encoder, hidden, counts, dtype, f"{name}, {shown}, {dtype}")
                    sides = [side for pair in PAIRS.items() for side in pair]
                    milliseconds = [found[side] * 1e3 if side in found else FAILED for side in sides]
                    both = lambda pair: found[pair[0]] / found[pair[1]] if set(pair) <= found.keys() else None
                    in_table = dtype == "bf16" or (b, longest) == (32, 128)
                    results.add(f"{name} {dtype}", shown, *milliseconds, *map(both, PAIRS.items()), in_table=in_table)
    return 0


def case(options, ours, folder, encoder, hidden, counts, dtype, name):
    """Side → seconds."""
    import torch
    from safetensors.torch import save_file

    b, longest = len(counts), max(counts)
    texts = models.texts(counts)
    (options.scratch / "texts.txt").write_text("\n".join(texts))
    encode = lambda: encoder.encode(texts, batch_size=b, show_progress_bar=False, convert_to_tensor=True)
    torch.manual_seed(7)
    keep = torch.arange(longest)[None] < torch.tensor(counts)[:, None]
    ids = torch.randint(5, hidden.config.vocab_size, (b, longest)) * keep
    ragged = not keep.all()
    inputs = {"ids": ids[keep], "lengths": torch.tensor(counts)} if ragged else {"ids": ids}
    save_file(inputs, options.scratch / "ids.safetensors")
    there, mask = ids.to(options.device), keep.to(options.device) if ragged else None
    forward = lambda: hidden(there, attention_mask=mask).last_hidden_state
    sides = {}
    with torch.inference_mode():
        wants = {"ours, texts": encode, "ours, ids": lambda: forward().cpu()[keep] if ragged else forward()}
        words = {
            "ours, texts": ("sentences", folder, options.scratch / "texts.txt", dtype),
            "ours, ids": ("encoder", folder, options.scratch / "ids.safetensors", dtype),
        }
        for us, side in ours.items():
            try:
                side.load(*words[us])
                side.check(wants[us](), dtype)
                sides[us] = lambda side=side: side.side.run(3)
            except (RuntimeError, ValueError) as error:
                print(f"{name}, {us}: {error}", file=sys.stderr, flush=True)
                side.reset()
    peers = {"sentence-transformers": alone(options, encode), "transformers": alone(options, forward)}
    return medians(sides | peers, options.rounds)
