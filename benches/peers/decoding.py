"""Decoding against PyTorch, with 16 heads and 8 key-value heads. The sides take turns; the tables have medians in ms and the
median ratio of the turns to the fastest peer of the row:

- batch: one layer with 8 running sequences in a cache, hidden_size 1024, heads of 64 values, f32
- attend: attention alone, one query per sequence over cached keys and values, heads of 128 values; and which part of the bandwidth
  of a plain loop over a buffer of the size of keys and values this is
- layer: a step of one layer after so many tokens, hidden_size 1024, heads of 128 values
- prompt: 2,048 tokens through this layer in chunks, and by how much longer that takes than one run

Run: python3 benches/peers/decoding.py [--rounds N] [--threads N] [--only TABLE…], in an environment with PyTorch (compare.py makes
one: target/peers-venv). DECODING_PROGRAM is another build of our side.
"""

import argparse

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
BATCHES, TOKENS, WIDE = [1, 4, 16], [128, 1024, 8192], 128
CACHED, LONG_PROMPT, CHUNKS = [128, 1024, 4096], 2048, [128, 256, 512]
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


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


def timed(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def attend_peers(batch, tokens, dtype):
    """The ways to write attention of one query in PyTorch, by name."""
    make = lambda heads, s: torch.randn(batch, heads, s, WIDE, dtype=dtype)
    q, k, v = make(HEADS, 1), make(KV_HEADS, tokens), make(KV_HEADS, tokens)
    grouped = q.view(batch, KV_HEADS, HEADS // KV_HEADS, WIDE)

    def products():
        weights = (grouped @ k.transpose(2, 3) * WIDE**-0.5).softmax(-1)
        return (weights @ v).view(q.shape)

    peers = {
        "SDPA with enable_gqa": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "SDPA, a group's heads as queries": lambda: F.scaled_dot_product_attention(grouped, k, v).view(q.shape),
        "products and softmax": products,
    }
    results = [peer().float() for peer in peers.values()]
    assert all((result - results[0]).abs().max() < 2e-2 for result in results)
    return peers


class GroupedLayer:
    """A layer with a cache for one sequence, keys and values in place."""

    def __init__(self, capacity, dtype):
        self.qkv = (torch.randn((HEADS + 2 * KV_HEADS) * WIDE, HIDDEN) / 32).to(dtype)
        self.out = (torch.randn(HIDDEN, HEADS * WIDE) / 32).to(dtype)
        self.cache = torch.randn(2, 1, KV_HEADS, capacity, WIDE).to(dtype)
        self.masks = {}

    def add(self, xs, start):
        """The tokens `xs` (1, s, hidden) after `start` cached ones."""
        s = xs.shape[1]
        heads = F.linear(xs, self.qkv).view(1, s, HEADS + 2 * KV_HEADS, WIDE).transpose(1, 2)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
        self.cache[0, :, :, start : start + s], self.cache[1, :, :, start : start + s] = k, v
        k, v = self.cache[:, :, :, : start + s]
        mask = self.masks.get((s, start)) if s > 1 and start > 0 else None
        causal = s > 1 and start == 0
        ys = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        return F.linear(ys.transpose(1, 2).reshape(1, s, -1), self.out)

    def chunks(self, xs, chunk):
        """A run of all of `xs` by chunks. Masks are made before."""
        parts = list(enumerate(xs.split(chunk, 1)))
        for i, _ in parts:
            start = i * chunk
            rows, columns = torch.arange(chunk)[:, None], torch.arange(start + chunk)[None]
            self.masks[chunk, start] = columns <= start + rows
        return lambda: [self.add(part, i * chunk) for i, part in parts]


class Ours:
    def __init__(self, threads):
        program = os.environ.get("DECODING_PROGRAM")
        if program is None:
            subprocess.check_call(["cargo", "build", "--release", "--quiet", "--locked", "--bin", "decoding"], cwd=BENCHES)
            program = BENCHES / "target" / "release" / "decoding"
        environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "CANDLE_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def seconds(self, work, runs=RUNS):
        print(work, runs, file=self.process.stdin, flush=True)
        return statistics.median(float(second) for second in self.process.stdout.readline().split())


def turns(rounds, sides):
    """The seconds of each side in each round but the first."""
    return [[side() for side in sides] for _ in range(rounds + 1)][1:]


def medians(turns):
    return [statistics.median(side) for side in zip(*turns)]


def fastest(turns, first):
    """The index of the fastest of the sides from `first` on, and the median ratio of side 0 to it."""
    sides = medians(turns)
    best = min(range(first, len(sides)), key=sides.__getitem__)
    return best, statistics.median(turn[0] / turn[best] for turn in turns)


def batch_table(ours, rounds):
    theirs = Layer()
    print("| work | ours, ms | PyTorch, ms | ours / PyTorch |\n|---|---|---|---|")
    for work in ["alone", "join", "append", "step"]:
        peer = lambda: statistics.median(theirs.seconds(work) for _ in range(RUNS))
        seen = turns(rounds, [lambda: ours.seconds(work), peer])
        (own, other), (_, ratio) = medians(seen), fastest(seen, 1)
        print(f"| {work} | {own * 1e3:.2f} | {other * 1e3:.2f} | {ratio:.2f} |", flush=True)


def attend_table(ours, rounds):
    print("| batch × tokens | dtype | ours, ms | GB/s | of a plain loop | fastest peer | ms | ours / peer |")
    print("|---|---|---|---|---|---|---|---|")
    for dtype, batch, tokens in [(d, b, t) for d in DTYPES for b in BATCHES for t in TOKENS]:
        bytes = 2 * batch * tokens * KV_HEADS * WIDE * DTYPES[dtype].itemsize
        runs = max(3, min(200, int(4e8 / bytes)))
        peers = attend_peers(batch, tokens, DTYPES[dtype])
        sides = [lambda: ours.seconds(f"attend {batch} {tokens} {dtype}", runs), lambda: ours.seconds(f"read {bytes}", runs)]
        sides += [lambda peer=peer: statistics.median(timed(peer) for _ in range(runs)) for peer in peers.values()]
        seen = turns(rounds, sides)
        own, loop, *_ = medians(seen)
        best, ratio = fastest(seen, 2)
        share = statistics.median(turn[1] / turn[0] for turn in seen)
        name, other = list(peers)[best - 2], medians(seen)[best]
        print(f"| {batch} × {tokens} | {dtype} | {own * 1e3:.3f} | {bytes / own / 1e9:.0f} | {share:.2f} | {name} | "
              f"{other * 1e3:.3f} | {ratio:.2f} |", flush=True)


def layer_table(ours, rounds):
    print("| cached tokens | dtype | ours, ms | PyTorch, ms | ours / PyTorch |\n|---|---|---|---|---|")
    for dtype, tokens in [(d, t) for d in DTYPES for t in CACHED]:
        theirs, token = GroupedLayer(tokens + 1, DTYPES[dtype]), torch.randn(1, 1, HIDDEN).to(DTYPES[dtype])
        peer = lambda: statistics.median(timed(lambda: theirs.add(token, tokens)) for _ in range(4 * RUNS))
        seen = turns(rounds, [lambda: ours.seconds(f"layer {tokens} {dtype}", 4 * RUNS), peer])
        (own, other), (_, ratio) = medians(seen), fastest(seen, 1)
        print(f"| {tokens} | {dtype} | {own * 1e3:.2f} | {other * 1e3:.2f} | {ratio:.2f} |", flush=True)


def prompt_table(ours, rounds):
    print("| chunks of | dtype | ours, ms | ÷ one run | PyTorch, ms | ÷ one run | ours / PyTorch |\n|---|---|---|---|---|---|---|")
    for dtype in DTYPES:
        theirs = GroupedLayer(LONG_PROMPT, DTYPES[dtype])
        prompt = torch.randn(1, LONG_PROMPT, HIDDEN).to(DTYPES[dtype])
        sizes, sides = [LONG_PROMPT, *CHUNKS], []
        for chunk in sizes:
            run = theirs.chunks(prompt, chunk)
            sides += [lambda chunk=chunk: ours.seconds(f"prompt {chunk} {dtype}", 1), lambda run=run: timed(run)]
        seen = turns(rounds, sides)
        own, other = medians(seen)[::2], medians(seen)[1::2]
        for i, chunk in enumerate(sizes):
            to_one = [statistics.median(turn[2 * i + side] / turn[side] for turn in seen) for side in (0, 1)]
            ratio = statistics.median(turn[2 * i] / turn[2 * i + 1] for turn in seen)
            print(f"| {chunk} | {dtype} | {own[i] * 1e3:.1f} | {to_one[0]:.2f} | {other[i] * 1e3:.1f} | {to_one[1]:.2f} | "
                  f"{ratio:.2f} |", flush=True)


def main():
    tables = {"batch": batch_table, "attend": attend_table, "layer": layer_table, "prompt": prompt_table}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=tables, default=list(tables))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ours = Ours(arguments.threads)
    with torch.inference_mode():
        for name in arguments.only:
            print(f"\n{name}, {arguments.threads} threads\n")
            tables[name](ours, arguments.rounds)
    ours.process.stdin.close()
    ours.process.wait()


if __name__ == "__main__":
    main()
