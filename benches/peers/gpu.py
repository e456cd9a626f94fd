"""Ours against PyTorch and transformers on one NVIDIA GPU, taking turns in one run.

Run: cargo build --release --manifest-path benches/Cargo.toml --features cuda (or flash-attn)
     python3 benches/peers/gpu.py --output FOLDER
     with PyTorch and transformers installed for CUDA; --ours names our side where it was built elsewhere.

Each case is first checked: the sides must agree. Then they take turns, round by round; the report has the
median of each, the median of the ratios per round, and the rate of the useful arithmetic as a share of what the card does
in one large matrix product of that dtype, measured in the same run. `eager` is this crate's eager backend, forced.

Writes gpu.md into FOLDER.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from sides import PROGRAM, Side

SHAPES = [(1, 128), (32, 128), (8, 512), (1, 4096), (4, 4096), (1, 16384)]
# hidden_size, num_attention_heads, num_hidden_layers, intermediate_size
MODELS = {"MiniLM-L6": (384, 12, 6, 1536), "BERT-base": (768, 12, 12, 3072)}
# Largest difference allowed before anything is timed.
AGREE = {"f32": 1e-3, "bf16": 2e-1}
WARM = 0.1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", default=PROGRAM, type=Path, help="our side")
    parser.add_argument("--output", required=True, type=Path, help="the folder for gpu.md")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu tries the script itself")
    parser.add_argument("--dtypes", nargs="+", choices=["f32", "bf16"], default=["bf16", "f32"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--most-tokens", type=int, default=1 << 20, help="leave larger shapes out")
    parsed = parser.parse_args()
    if not parsed.ours.is_file():
        parser.error(f"our side, {parsed.ours}, is not a file: build it with the command in --help")
    return parsed


def timed(call, synchronize):
    def run():
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            call()
            synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    return run


class Comparison:
    def __init__(self, options, folder):
        import torch

        self.options, self.folder, self.rows = options, folder, []
        self.synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
        # One process per backend: neither shares what the other has compiled or keeps in memory.
        self.ours = {name: Side(options.ours) for name in ("ours", "eager")}
        for ours in self.ours.values():
            ours.say("device", options.device)
        self.ours["eager"].say("backend", "eager")
        self.ceilings = {}

    def path(self, name):
        return str(self.folder / name)

    def ceiling(self, dtype):
        """Arithmetic per second of one large matrix product."""
        import torch

        if dtype not in self.ceilings:
            size = 8192 if self.options.device == "cuda" else 1024
            a = torch.randn(size, size, device=self.options.device, dtype=kind(dtype))
            run = timed(lambda: a @ a, self.synchronize)
            self.ceilings[dtype] = 2 * size**3 / min(run() for _ in range(5))
        return self.ceilings[dtype]

    def case(self, name, dtype, setup, peers, want, arithmetic, eager):
        import torch
        from safetensors.torch import load_file

        sides = {}
        for side, ours in self.ours.items():
            if side == "eager" and not eager:
                continue
            assert ours.say(*setup) == "ready"
            ours.say("save", self.path("output.safetensors"))
            got = load_file(self.path("output.safetensors"))["output"]
            difference = (got - want.float().cpu()).abs().max().item()
            if not difference < AGREE[dtype]:
                raise RuntimeError(f"{name}, {dtype}, {side}: the sides differ by {difference}")
            sides[side] = lambda ours=ours: ours.run(3)
        sides |= {peer: timed(call, self.synchronize) for peer, call in peers.items()}
        times = {side: [] for side in sides}
        with torch.inference_mode():
            for turn in range(1 + self.options.rounds):
                for side, run in sides.items():
                    start = time.perf_counter()
                    while time.perf_counter() - start < WARM:
                        seconds = run()
                    if turn:
                        times[side].append(seconds)
        medians = {side: statistics.median(seconds) * 1e3 for side, seconds in times.items()}
        ratios = {
            side: statistics.median(a / b for a, b in zip(times["ours"], times[side]))
            for side in sides
            if side != "ours"
        }
        share = arithmetic / (medians["ours"] / 1e3) / self.ceiling(dtype)
        self.rows.append((name, dtype, medians, ratios, share, difference))
        shown = ", ".join(f"{side} {ms:.3f} ms" for side, ms in medians.items())
        of = ", ".join(f"{ratio:.2f} of {side}" for side, ratio in ratios.items())
        print(f"{dtype}, {name}: {shown}: {of}; {share:.0%} of the ceiling", flush=True)

    def shapes(self):
        return [(b, s) for b, s in SHAPES if b * s <= self.options.most_tokens]

    def layers(self, dtype):
        import torch
        from safetensors.torch import save_file

        hidden, heads = 768, 12
        for b, s in self.shapes():
            torch.manual_seed(0)
            layer = torch.nn.MultiheadAttention(hidden, heads, batch_first=True).eval()
            save_file(layer.to(kind(dtype)).state_dict(), self.path("layer.safetensors"))
            xs = torch.randn(b, s, hidden).to(kind(dtype))
            save_file({"query": xs}, self.path("in.safetensors"))
            layer, xs = layer.to(self.options.device), xs.to(self.options.device)
            weights = layer.in_proj_weight, layer.in_proj_bias

            def sdpa():
                qkv = torch.nn.functional.linear(xs, *weights).view(b, s, 3, heads, hidden // heads)
                q, k, v = qkv.permute(2, 0, 3, 1, 4)
                context = torch.nn.functional.scaled_dot_product_attention(q, k, v)
                return layer.out_proj(context.transpose(1, 2).reshape(b, s, hidden))

            peers = {"nn.MultiheadAttention": lambda: layer(xs, xs, xs, need_weights=False)[0], "SDPA": sdpa}
            with torch.inference_mode():
                want = sdpa()
            setup = ("layer", self.path("layer.safetensors"), heads, self.path("in.safetensors"), dtype)
            arithmetic = b * s * (8 * hidden**2 + 4 * s * hidden)
            # The eager backend holds three to four score matrices in f32.
            eager = 16 * b * heads * s * s < 60e9
            self.case(f"layer {hidden}, {b}×{s}", dtype, setup, peers, want, arithmetic, eager)

    def encoders(self, dtype):
        import torch
        from safetensors.torch import save_file
        from transformers import BertConfig, BertModel

        for name, (hidden, heads, layers, inner) in MODELS.items():
            torch.manual_seed(1)
            config = BertConfig(
                hidden_size=hidden,
                num_attention_heads=heads,
                num_hidden_layers=layers,
                intermediate_size=inner,
                max_position_embeddings=16384,
                attn_implementation="sdpa",
            )
            model = BertModel(config, add_pooling_layer=False).eval().to(kind(dtype))
            model.save_pretrained(self.path(name))
            model = model.to(self.options.device)
            for b, s in self.shapes():
                ids = torch.randint(1000, 20000, (b, s))
                save_file({"ids": ids}, self.path("in.safetensors"))
                there = ids.to(self.options.device)
                with torch.inference_mode():
                    want = model(there).last_hidden_state
                peers = {"transformers": lambda: model(there).last_hidden_state}
                setup = ("encoder", self.path(name), self.path("in.safetensors"), dtype)
                arithmetic = layers * b * s * (8 * hidden**2 + 4 * s * hidden + 4 * hidden * inner)
                self.case(f"{name}, {b}×{s}", dtype, setup, peers, want, arithmetic, False)


def kind(dtype):
    import torch

    return {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]


def write_table(comparison, path):
    import torch

    card = torch.cuda.get_device_name() if comparison.options.device == "cuda" else "the CPU"
    ceilings = ", ".join(f"{rate / 1e12:.0f} TFLOP/s in {dtype}" for dtype, rate in comparison.ceilings.items())
    lines = [f"Milliseconds, median, on {card}; PyTorch {torch.__version__}; one matrix product: {ceilings}.", ""]
    lines += ["| | dtype | ours | eager | peer | ratio to each | share of the ceiling |", "|---" * 7 + "|"]
    for name, dtype, medians, ratios, share, _ in comparison.rows:
        others = {side: ms for side, ms in medians.items() if side not in ("ours", "eager")}
        peers = "; ".join(f"{side} {ms:.3f}" for side, ms in others.items())
        to = "; ".join(f"{side} {ratio:.2f}" for side, ratio in ratios.items())
        eager = f"{medians['eager']:.3f}" if "eager" in medians else ""
        lines.append(f"| {name} | {dtype} | {medians['ours']:.3f} | {eager} | {peers} | {to} | {share:.0%} |")
    part = path.with_suffix(".part")
    part.write_text("\n".join(lines) + "\n")
    part.replace(path)


def main():
    options = arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(options, Path(folder))
        try:
            for dtype in options.dtypes:
                comparison.layers(dtype)
                comparison.encoders(dtype)
        finally:
            for ours in comparison.ours.values():
                ours.stop()
            # A run that is cut short still reports what it measured.
            if comparison.rows:
                write_table(comparison, options.output / "gpu.md")


if __name__ == "__main__":
    sys.exit(main())
