"""Attention alone: the forward pass of 16k tokens in f16, hidden size 2048, as FlashAttention-3's paper measures it."""

import sys

from results import Results
from timing import FAILED, Ours, kinds, medians, queued, ratio

DTYPE = "f16"
# FlashAttention 2 on an H100 in TFLOP/s, by head size, mask and length (Shah 2024, figure 5, read off the pictures).
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
IN_TABLE = (512, 2048, 16384)
PUBLISHED = {
    (64, "full"): (282, 306, 318, 321, 322, 324),
    (64, "causal"): (180, 229, 262, 284, 295, 299),
    (128, "full"): (309, 350, 362, 368, 370, 370),
}


def backends():
    """The kernels of `scaled_dot_product_attention` by name."""
    from torch.nn.attention import SDPBackend

    return {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cuDNN": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }


def by(backend, call):
    """The call with only this kernel allowed."""
    from torch.nn.attention import sdpa_kernel

    def run():
        with sdpa_kernel(backend):
            return call()

    return run


def peers(options, call, times):
    """The call by each kernel, as sides."""
    return {name: queued(options, by(backend, call), times) for name, backend in backends().items()}


def expected(call):
    """The result by the first kernel that runs it."""
    import torch

    errors = []
    for backend in (*backends().values(), None):
        try:
            with torch.inference_mode():
                return call() if backend is None else by(backend, call)()
        except RuntimeError as error:
            errors.append(str(error).splitlines()[0])
    raise RuntimeError("; ".join(errors))


def run(options):
    import torch
    from safetensors.torch import save_file

    tokens, hidden, times = (16384, 2048, 20) if options.device == "cuda" else (512, 128, 2)
    lengths = [length for length in LENGTHS if length <= tokens]
    columns = ["attention", "ours", *backends(), "FlashAttention 2, published", "ours ÷ published", "our time ÷ best"]
    results = Results(options.output, "attention", columns, f"TFLOP/s in {DTYPE}, {tokens} tokens.")
    path = options.scratch / "attention.safetensors"
    ours = Ours(options)
    for d in (64, 128):
        torch.manual_seed(d)
        heads = hidden // d
        names = ("query", "key", "value")
        q, k, v = (torch.randn(tokens, heads, d, device=options.device, dtype=kinds()[DTYPE]) for _ in names)
        save_file({"query": q, "key": k, "value": v}, path)
        for mask in ("full", "causal"):
            for length in lengths:
                if options.left() <= 0:
                    return 0
                b = tokens // length
                name = f"d {d}, {mask}, {b} × {length}"
                batched = [t.view(b, length, heads, d).transpose(1, 2) for t in (q, k, v)]
                sdpa = torch.nn.functional.scaled_dot_product_attention
                call = lambda: sdpa(*batched, is_causal=mask == "causal")
                sides = peers(options, call, times)
                try:
                    ours.load("attention", path, b, mask, DTYPE)
                    # The largest and the smallest batch: a comparison takes longer than its timing.
                    if length in (lengths[0], lengths[-1]):
                        ours.check(expected(call).transpose(1, 2), DTYPE)
                    sides = {"ours": lambda: ours.side.queue(times)} | sides
                except (RuntimeError, ValueError) as error:
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
                    ours.reset()
                found = medians(sides, options.rounds)
                work = 4 * b * length**2 * hidden / (2 if mask == "causal" else 1) / 1e12
                rates = {side: work / seconds for side, seconds in found.items()}
                # The figures hold for the size that was published.
                known = PUBLISHED.get((d, mask)) if tokens == 16384 else None
                known = known and known[LENGTHS.index(length)]
                share = rates["ours"] / known if known and "ours" in rates else None
                cells = [rates.get(side) for side in backends()]
                row = [name, rates.get("ours", FAILED), *cells, known, share, ratio(found, "ours")]
                results.add(*row, in_table=length in IN_TABLE)
    return 0
