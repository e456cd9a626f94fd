"""A decoding step: one query per sequence over a long cache, which reads each key and value once."""

import sys

from attention import backends, expected, peers
from ceilings import COPY, measured
from results import Results
from timing import FAILED, Ours, kinds, medians, queued, ratio

DTYPE = "bf16"
# Query heads, key-value heads and their size, as in Qwen3-0.6B.
HEADS, KV_HEADS, D = 16, 8, 128
HIDDEN = 1024
SHAPES = {"cuda": [(1, 16384), (8, 4096), (32, 4096), (64, 1024)], "cpu": [(2, 128)]}


def run(options):
    columns = ["step", "ours, µs", "share of the copy's GB/s", *backends(), "by hand", "÷ best"]
    note = f"{DTYPE}, {HEADS} query heads and {KV_HEADS} key-value heads of {D}."
    results = Results(options.output, "decoding", columns, note)
    bandwidth = measured(options)[COPY] * 1e9
    times = 50 if options.device == "cuda" else 2
    ours = Ours(options)
    for b, tokens in SHAPES[options.device]:
        for kind in (attention, layer):
            if options.left() <= 0:
                return 0
            name, words, check, sides, size = kind(options, b, tokens, times)
            try:
                ours.load(*words)
                ours.check(check(), DTYPE)
                sides = {"ours": lambda: ours.side.queue(times)} | sides
            except (RuntimeError, ValueError) as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                ours.reset()
            found = medians(sides, options.rounds)
            share = f"{size / found['ours'] / bandwidth:.0%}" if "ours" in found else None
            micro = {side: seconds * 1e6 for side, seconds in found.items()}
            cells = [micro.get(side) for side in (*backends(), "by hand")]
            results.add(name, micro.get("ours", FAILED), share, *cells, ratio(found, "ours"))
    return 0


def random(options, *shape):
    import torch

    return torch.randn(*shape, device=options.device, dtype=kinds()[DTYPE])


def attention(options, b, tokens, times):
    """Attention of one query per sequence."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(b)
    q = random(options, b, HEADS, D)
    k, v = (random(options, b * tokens, KV_HEADS, D) for _ in range(2))
    path = options.scratch / "decoding.safetensors"
    save_file({"query": q, "key": k, "value": v}, path)
    views = [t.view(b, -1, t.shape[1], D).transpose(1, 2) for t in (q, k, v)]
    call = lambda: torch.nn.functional.scaled_dot_product_attention(*views, enable_gqa=True)
    size = 2 * (k.numel() + v.numel() + 2 * q.numel())
    check = lambda: expected(call).transpose(1, 2)
    words = ("attention", path, b, "full", DTYPE)
    return f"attention, {b} × {tokens}", words, check, peers(options, call, times), size


def layer(options, b, tokens, times):
    """A step of a whole layer: projections, a longer cache, attention."""
    import torch
    from safetensors.torch import save_file
    from torch.nn.functional import linear, scaled_dot_product_attention

    torch.manual_seed(b)
    widths = {"q": HEADS * D, "k": KV_HEADS * D, "v": KV_HEADS * D}
    weights = {f"{name}_proj.weight": random(options, width, HIDDEN) / HIDDEN**0.5 for name, width in widths.items()}
    weights["o_proj.weight"] = random(options, HIDDEN, HEADS * D) / (HEADS * D) ** 0.5
    save_file(weights, options.scratch / "layer.safetensors")
    xs = random(options, b * tokens, HIDDEN)
    save_file({"query": xs}, options.scratch / "decoding.safetensors")

    def project(name, xs):
        return linear(xs, weights[f"{name}_proj.weight"]).view(b, -1, widths[name] // D, D).transpose(1, 2)

    xs = xs.view(b, tokens, HIDDEN)
    k, v = (project(name, xs).contiguous() for name in ("k", "v"))
    token = xs[:, -1:].contiguous()

    def call():
        k[:, :, -1:] = project("k", token)
        v[:, :, -1:] = project("v", token)
        context = scaled_dot_product_attention(project("q", token), k, v, enable_gqa=True)
        return linear(context.transpose(1, 2).reshape(b, 1, HEADS * D), weights["o_proj.weight"])

    def check():
        with torch.inference_mode():
            return call()

    size = 2 * (k.numel() + v.numel() + sum(weight.numel() for weight in weights.values()))
    words = ("step", options.scratch / "layer.safetensors", HEADS, options.scratch / "decoding.safetensors", b, DTYPE)
    return f"layer, {b} × {tokens}", words, check, {"by hand": queued(options, call, times)}, size
