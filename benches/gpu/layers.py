"""An attention layer beside nn.MultiheadAttention, and beside its products around each kernel of PyTorch.

`eager` is this crate's eager backend, forced.
"""

import sys

from attention import backends, by
from ceilings import measured, product
from results import Results
from timing import FAILED, Ours, alone, kinds, medians, ratio

HIDDEN, HEADS = 768, 12
SHAPES = {"cuda": [(1, 128), (32, 128), (8, 512), (4, 4096), (1, 16384)], "cpu": [(2, 32)]}
DTYPES = ("bf16", "f16")


def run(options):
    import torch
    from safetensors.torch import save_file

    columns = ["layer", "ours, ms", "share of a product", "eager", "MultiheadAttention", *backends(), "÷ best"]
    results = Results(options.output, "layers", columns, f"Hidden size {HIDDEN}, {HEADS} heads.")
    ours, eager = Ours(options), Ours(options, ("backend", "eager"))
    weights, inputs = options.scratch / "layer.safetensors", options.scratch / "in.safetensors"
    for dtype in DTYPES:
        for b, s in SHAPES[options.device]:
            if options.left() <= 0:
                return 0
            name = f"{dtype}, {b} × {s}"
            torch.manual_seed(0)
            layer = torch.nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True).eval().to(kinds()[dtype])
            xs = torch.randn(b, s, HIDDEN).to(kinds()[dtype])
            save_file(layer.state_dict(), weights)
            save_file({"query": xs}, inputs)
            layer, xs = layer.to(options.device), xs.to(options.device)
            call = by_hand(layer, xs)
            peers = {"MultiheadAttention": lambda: layer(xs, xs, xs, need_weights=False)[0]}
            peers |= {backend: by(kernel, call) for backend, kernel in backends().items()}
            sides = {}
            with torch.inference_mode():
                want = call()
            for side, process in {"ours": ours, "eager": eager}.items():
                # The eager backend holds three to four score matrices in f32.
                if side == "eager" and 16 * b * HEADS * s * s > 60e9:
                    continue
                try:
                    process.load("layer", weights, HEADS, inputs, dtype)
                    process.check(want, dtype)
                    sides[side] = lambda process=process: process.side.run(3)
                except (RuntimeError, ValueError) as error:
                    print(f"{name}, {side}: {error}", file=sys.stderr, flush=True)
                    process.reset()
            sides |= {peer: alone(options, peer_call) for peer, peer_call in peers.items()}
            found = medians(sides, options.rounds)
            work = b * s * (8 * HIDDEN**2 + 4 * s * HIDDEN) / 1e12
            share = f"{work / found['ours'] / measured(options)[product(dtype)]:.0%}" if "ours" in found else None
            cells = [found[side] * 1e3 if side in found else None for side in ("eager", *peers)]
            others = {side: seconds for side, seconds in found.items() if side != "eager"}
            time = found["ours"] * 1e3 if "ours" in found else FAILED
            results.add(name, time, share, *cells, ratio(others, "ours"), in_table=dtype == DTYPES[0])
    return 0


def by_hand(layer, xs):
    import torch

    b, s, _ = xs.shape

    def call():
        qkv = torch.nn.functional.linear(xs, layer.in_proj_weight, layer.in_proj_bias)
        q, k, v = qkv.view(b, s, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4)
        context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return layer.out_proj(context.transpose(1, 2).reshape(b, s, HIDDEN))

    return call
