"""What the mechanisms of newer models cost: a layer with one of them against the same layer without, f32, one thread; and a
step of latent attention against the same layer with expanded keys and values, and against transformers. The sides take turns;
the table has medians in ms and the median ratio of the turns.

Run: python3 benches/peers/mechanisms.py [ROUNDS], in an environment with transformers (compare.py makes one: target/peers-venv)
"""

import os
import statistics
import subprocess
import sys
import time

import torch
from transformers import DynamicCache
from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding

from sides import BENCHES

RUNS = 5
# A layer, and the one without the mechanism.
PAIRS = [("norms after rotation", "rotary"), ("gate per element", "plain"), ("gate per head", "plain"),
         ("norm of the context", "plain"), ("DeBERTa", "plain"), ("Shaw", "plain"), ("Transformer-XL", "plain"),
         ("SAM", "plain"), ("WavLM", "plain")]
CACHED = [1024, 4096]


class Transformers:
    """A step of transformers' DeepSeek-V2 layer with the sizes of DeepSeek-V2-Lite after `cached` tokens."""

    def __init__(self, cached):
        config = DeepseekV2Config(hidden_size=2048, num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None,
                                  kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
                                  num_hidden_layers=1)
        config._attn_implementation = "sdpa"
        self.layer = DeepseekV2Attention(config, 0).eval()
        self.rotary, self.cache, self.cached = DeepseekV2RotaryEmbedding(config), DynamicCache(), cached
        self.call(torch.randn(1, cached, 2048), 0)

    def call(self, xs, start):
        places = torch.arange(start, start + xs.shape[1])[None]
        return self.layer(xs, attention_mask=None, cache=self.cache, position_embeddings=self.rotary(xs, places))

    def seconds(self):
        xs = torch.randn(1, 1, 2048)
        start = time.perf_counter()
        self.call(xs, self.cached)
        seconds = time.perf_counter() - start
        self.cache.crop(-1)
        return seconds


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    torch.set_num_threads(1)
    subprocess.check_call(["cargo", "build", "--release", "--quiet", "--locked", "--bin", "mechanisms"], cwd=BENCHES)
    program = BENCHES / "target" / "release" / "mechanisms"
    environment = os.environ | {"RAYON_NUM_THREADS": "1"}
    ours = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def seconds(work):
        print(work, RUNS, file=ours.stdin, flush=True)
        return statistics.median(float(second) for second in ours.stdout.readline().split())

    def compare(name, other, first, second):
        turns = [(first(), second()) for _ in range(rounds + 1)][1:]
        medians = [statistics.median(side) * 1e3 for side in zip(*turns)]
        ratio = statistics.median(a / b for a, b in turns)
        print(f"| {name} | {medians[0]:.2f} | {other} | {medians[1]:.2f} | {ratio:.2f} |", flush=True)

    print("| layer | ms | against | ms | ratio |\n|---|---|---|---|---|")
    for name, without in PAIRS:
        compare(name, without, lambda: seconds(name), lambda: seconds(without))
    with torch.inference_mode():
        for cached in CACHED:
            latent, theirs = f"latent {cached}", Transformers(cached)
            compare(latent, f"expanded {cached}", lambda: seconds(latent), lambda: seconds(f"expanded {cached}"))
            peer = lambda: statistics.median(theirs.seconds() for _ in range(RUNS))
            compare(latent, f"transformers {cached}", lambda: seconds(latent), peer)
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()
