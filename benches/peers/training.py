"""Training one attention layer against PyTorch: forward and backward, with gradients of the input and of all weights, f32, one
thread. The sides take turns; the table has medians in ms, the median ratio of the turns, and by how much each side's peak memory
grows, each in a process of its own.

Run: python3 benches/peers/training.py [ROUNDS [WORK…]], in an environment with PyTorch (compare.py makes one: target/peers-venv)
"""

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from sides import BENCHES

HEAD_DIM = 64
RUNS = 3
WORKS = ["32x64x384 full", "8x128x768 full", "8x128x768 causal", "8x128x768 padded", "8x128x768 ragged", "4x256x768/4 causal",
         "2x512x768 full", "2x512x768 causal", "2x512x768 padded", "2x512x768 ragged", "1x2048x768 full", "1x2048x768 causal"]


class Layer:
    """The layer as one writes it in PyTorch: one product for queries, keys and values, and sequences of unequal length under a
    mask."""

    def __init__(self, work):
        sizes, self.kind = work.split(" ")
        sizes, _, kv_heads = sizes.partition("/")
        self.batch, self.tokens, hidden = map(int, sizes.split("x"))
        self.heads = hidden // HEAD_DIM
        self.kv_heads = int(kv_heads or self.heads)
        rows = (self.heads + 2 * self.kv_heads) * HEAD_DIM
        variable = lambda *shape: (torch.randn(*shape) / hidden**0.5).requires_grad_()
        self.qkv, self.qkv_bias = variable(rows, hidden), variable(rows)
        self.out, self.out_bias = variable(hidden, hidden), variable(hidden)
        self.xs = torch.randn(self.batch, self.tokens, hidden).requires_grad_()
        part = self.tokens // 4
        lengths = [part + (self.tokens - part) * i // self.batch for i in range(1, self.batch + 1)]
        self.keep = None
        if self.kind in ("padded", "ragged"):
            self.keep = (torch.arange(self.tokens)[None] < torch.tensor(lengths)[:, None])[:, None, None]

    def seconds(self):
        variables = [self.qkv, self.qkv_bias, self.out, self.out_bias, self.xs]
        for variable in variables:
            variable.grad = None
        start = time.perf_counter()
        heads = F.linear(self.xs, self.qkv, self.qkv_bias).view(self.batch, self.tokens, -1, HEAD_DIM).transpose(1, 2)
        queries, keys, values = heads.split([self.heads, self.kv_heads, self.kv_heads], 1)
        grouped = self.kv_heads != self.heads
        context = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.keep,
                                                 is_causal=self.kind == "causal", enable_gqa=grouped)
        context = context.transpose(1, 2).reshape(self.batch, self.tokens, -1)
        F.linear(context, self.out, self.out_bias).sum().backward()
        seconds = time.perf_counter() - start
        assert all(variable.grad is not None for variable in variables)
        return seconds


def peak():
    """The most memory that this process has had since `reset_peak`, in bytes."""
    return int(re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def torch_peak(work):
    """By how many bytes a process grows that imports PyTorch, then trains."""
    torch.ones(1).requires_grad_().sum().backward()
    reset_peak()
    before = peak()
    layer = Layer(work)
    for _ in range(RUNS):
        layer.seconds()
    print(peak() - before)


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--peak"]:
        return torch_peak(sys.argv[2])
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    program = os.environ.get("TRAINING_PROGRAM")
    if program is None:
        subprocess.check_call(["cargo", "build", "--release", "--quiet", "--locked", "--bin", "training"], cwd=BENCHES)
        program = BENCHES / "target" / "release" / "training"
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "CANDLE_NUM_THREADS": "1"}

    print("| layer | ours, ms | PyTorch, ms | ours / PyTorch | ours, MB | PyTorch, MB |\n|---|---|---|---|---|---|")
    for work in sys.argv[2:] or WORKS:
        theirs = Layer(work)
        ours = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

        def run():
            print(work, RUNS, file=ours.stdin, flush=True)
            *seconds, peak = ours.stdout.readline().split()
            return statistics.median(map(float, seconds)), int(peak)

        turns = []
        for _ in range(rounds + 1):
            seconds, our_peak = run()
            turns.append((seconds, statistics.median(theirs.seconds() for _ in range(RUNS))))
        turns = turns[1:]
        ours.stdin.close()
        ours.wait()
        their_peak = int(subprocess.check_output([sys.executable, __file__, "--peak", work]))
        medians = [statistics.median(side) * 1e3 for side in zip(*turns)]
        ratio = statistics.median(a / b for a, b in turns)
        print(f"| {work} | {medians[0]:.1f} | {medians[1]:.1f} | {ratio:.2f} | {our_peak / 1e6:.0f} | {their_peak / 1e6:.0f} |",
              flush=True)


if __name__ == "__main__":
    main()
