"""One attention layer of a decoder against PyTorch, with 8 running sequences in a cache: hidden_size 1024, 16 heads, 8 key-value
heads, f32, one thread. The sides take turns; the table has medians in ms and the median ratio of the turns.

Run: python3 benches/peers/decoding.py [ROUNDS], in an environment with PyTorch (compare.py makes one: target/peers-venv)
"""

import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

from sides import BENCHES

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 1024, 16, 8, 64
PROMPT, CAPACITY = 300, 1024
LENGTHS = torch.arange(100, 801, 100)
RUNS = 5


class Layer:
    """The layer and the cache of the running sequences, as one writes them in PyTorch: keys and values in place."""

    def __init__(self):
        self.qkv = torch.randn((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN) / 32
        self.out = torch.randn(HIDDEN, HEADS * HEAD_DIM) / 32
        self.cache = torch.randn(2, len(LENGTHS), KV_HEADS, CAPACITY, HEAD_DIM)

    def project(self, xs):
        b, s, _ = xs.shape
        heads = F.linear(xs, self.qkv).view(b, s, HEADS + 2 * KV_HEADS, HEAD_DIM).transpose(1, 2)
        return heads.split([HEADS, KV_HEADS, KV_HEADS], 1)

    def joined(self, heads):
        b, _, s, _ = heads.shape
        return F.linear(heads.transpose(1, 2).reshape(b, s, -1), self.out)

    def prefill(self, xs, cache):
        """The prompt `xs` (1, s, hidden) into the first row of `cache`."""
        queries, keys, values = self.project(xs)
        cache[0, 0, :, : xs.shape[1]], cache[1, 0, :, : xs.shape[1]] = keys[0], values[0]
        return self.joined(F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True))

    def step(self, xs):
        queries, keys, values = self.project(xs)
        rows, longest = torch.arange(len(LENGTHS)), int(LENGTHS.max()) + 1
        self.cache[0][rows, :, LENGTHS], self.cache[1][rows, :, LENGTHS] = keys[:, :, 0], values[:, :, 0]
        keep = (torch.arange(longest)[None] <= LENGTHS[:, None])[:, None, None]
        keys, values = self.cache[:, :, :, :longest]
        return self.joined(F.scaled_dot_product_attention(queries, keys, values, attn_mask=keep, enable_gqa=True))

    def seconds(self, work):
        prompt, own = torch.randn(1, PROMPT, HIDDEN), torch.zeros(2, 1, KV_HEADS, CAPACITY, HEAD_DIM)
        tokens = torch.randn(len(LENGTHS), 1, HIDDEN)
        works = {
            "alone": lambda: self.prefill(prompt, own),
            "join": lambda: self.prefill(prompt, self.cache),
            "append": lambda: torch.cat([self.cache, own], 1),
            "step": lambda: self.step(tokens),
        }
        start = time.perf_counter()
        works[work]()
        return time.perf_counter() - start


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.set_num_threads(1)
    subprocess.check_call(["cargo", "build", "--release", "--quiet", "--locked", "--bin", "decoding"], cwd=BENCHES)
    program = BENCHES / "target" / "release" / "decoding"
    environment = os.environ | {"RAYON_NUM_THREADS": "1"}
    ours = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ours_seconds(work):
        print(work, RUNS, file=ours.stdin, flush=True)
        return statistics.median(float(second) for second in ours.stdout.readline().split())

    theirs = Layer()
    print("| work | ours, ms | PyTorch, ms | ours / PyTorch |\n|---|---|---|---|")
    with torch.inference_mode():
        for work in ["alone", "join", "append", "step"]:
            turns = []
            for _ in range(rounds + 1):
                turns.append((ours_seconds(work), statistics.median(theirs.seconds(work) for _ in range(RUNS))))
            turns = turns[1:]
            medians = [statistics.median(side) * 1e3 for side in zip(*turns)]
            ratio = statistics.median(a / b for a, b in turns)
            print(f"| {work} | {medians[0]:.2f} | {medians[1]:.2f} | {ratio:.2f} |", flush=True)
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()
