"""The peers once more, compiled by torch.compile with CUDA graphs: the fastest that PyTorch has for one shape."""

import sys
import time

import models
from results import Results
from timing import FAILED, Ours, alone, kinds, medians

CASES = {"cuda": [("MiniLM-L6", 1, 16), ("BERT-base", 32, 128)], "cpu": [("MiniLM-L6", 1, 16)]}
DTYPE = "bf16"


def run(options):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel

    columns = ["model", "ours, ms", "transformers", "compiled", "÷ compiled", "seconds to compile"]
    results = Results(options.output, "compiled", columns, f"{DTYPE}, ids in and hidden states out.")
    ours = Ours(options)
    for name, b, s in CASES[options.device]:
        folder = models.folder(options, name)
        model = AutoModel.from_pretrained(folder, dtype=kinds()[DTYPE], attn_implementation="sdpa")
        model = model.eval().to(options.device)
        compiled = torch.compile(model, mode="reduce-overhead" if options.device == "cuda" else "default")
        torch.manual_seed(7)
        ids = torch.randint(5, model.config.vocab_size, (b, s))
        path = options.scratch / "ids.safetensors"
        save_file({"ids": ids}, path)
        there = ids.to(options.device)
        forward = lambda: model(there).last_hidden_state
        sides = {"transformers": alone(options, forward)}
        seconds = None
        with torch.inference_mode():
            try:
                # Graphs are recorded in the second and third run.
                run_compiled = alone(options, lambda: compiled(there).last_hidden_state)
                begin = time.perf_counter()
                run_compiled()
                seconds = time.perf_counter() - begin
                sides["compiled"] = run_compiled
            except Exception as error:  # Whatever the compiler raises for what is not installed.
                print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            try:
                ours.load("encoder", folder, path, DTYPE)
                ours.check(forward(), DTYPE)
                sides["ours"] = lambda: ours.side.run(3)
            except (RuntimeError, ValueError) as error:
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                ours.reset()
        found = medians(sides, options.rounds)
        cells = [found[side] * 1e3 if side in found else FAILED for side in ("ours", "transformers", "compiled")]
        both = {"ours", "compiled"} <= found.keys()
        results.add(f"{name}, {b} × {s}", *cells, found["ours"] / found["compiled"] if both else None, seconds)
    return 0
