"""What the card does at best: one large matrix product, and one large copy. Measured once in a run."""

import json

from results import replace
from timing import kinds, queued

COPY = "copy, GB/s read and written"


def measured(options):
    """Name → TFLOP/s of a product in a dtype, or GB/s of a copy."""
    path = options.output / "ceilings.json"
    if path.exists():
        return json.loads(path.read_text())
    import torch

    size, elements = (8192, 1 << 30) if options.device == "cuda" else (512, 1 << 20)
    found = {}
    for dtype in ("bf16", "f16", "f32"):
        a = torch.randn(size, size, device=options.device, dtype=kinds()[dtype])
        found[product(dtype)] = 2 * size**3 / best(options, lambda: a @ a) / 1e12
    source = torch.empty(elements, device=options.device, dtype=torch.bfloat16).normal_()
    copy = torch.empty_like(source)
    found[COPY] = 2 * source.nbytes / best(options, lambda: copy.copy_(source)) / 1e9
    replace(path, json.dumps(found))
    return found


def product(dtype):
    return f"product in {dtype}, TFLOP/s"


def best(options, call):
    """Seconds of the fastest of some runs, the first left out."""
    run = queued(options, call, 5)
    run()
    return min(run() for _ in range(3))
