"""Ours against PyTorch and ONNX Runtime on this machine's CPU, taking turns in one run.

Run: python3 benches/peers/compare.py --minilm FOLDER
     FOLDER is all-MiniLM-L6-v2 (see the README for where to get it).

The first run makes a virtual environment under target/ from requirements.txt and builds our side with
`cargo build --release --manifest-path benches/Cargo.toml`. Each case is first checked: all sides must agree. Then they alternate, round
by round; the report has the median of each side and the median of the ratios per round. The machine rests a moment between
two turns, so that no side pays for the other's spinning threads. Each turn starts with runs that are not counted, because
threads that have just been woken share a core until the system spreads them out.

Writes benches/peers.md (the table) and benches/peers.svg (the chart).

sentences.txt holds 1,000 sentences and paragraphs of The Rust Programming Language (The Rust Project Developers, MIT or
Apache 2.0; in six of them the name of a host is paraphrased), 6 to 217 tokens of MiniLM's.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ours import BENCHES, PROGRAM, ROOT, Ours

HERE = Path(__file__).resolve().parent
VENV = ROOT / "target" / "peers-venv"

LAYERS = [
    (10, 20, 512, 8),
    (1, 16, 384, 12),
    (1, 128, 768, 12),
    (8, 128, 768, 12),
    (1, 512, 768, 12),
    (1, 2048, 768, 12),
    (1, 4096, 512, 8),
    (32, 128, 384, 12),
]
ENCODERS = [(1, 16), (1, 128), (8, 128), (32, 128), (4, 512)]
# Largest difference allowed before anything is timed.
AGREE = {"f32": 5e-5, "bf16": 2e-1}
# The shapes that candle-transformers is timed on too, in f32: it is slow.
CANDLE = [(8, 128), (32, 128)]
# Seconds of rest before a turn, and of runs that are not counted in it.
REST = 0.05
WARM = 0.06


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minilm", required=True, type=Path, help="the folder of all-MiniLM-L6-v2")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=["f32", "bf16"], default=["f32", "bf16"])
    parser.add_argument("--rounds", type=int, default=7, help="turns per side")
    parsed = parser.parse_args()
    if not (parsed.minilm / "model.safetensors").exists():
        parser.error(f"{parsed.minilm} holds no model.safetensors")
    return parsed


def enter_venv():
    """Runs this script again inside its own virtual environment, made if it is not there."""
    python = VENV / "bin" / "python"
    done = VENV / "installed"
    if Path(sys.prefix) == VENV:
        return
    if not done.exists():
        subprocess.check_call([sys.executable, "-m", "venv", VENV])
        subprocess.check_call([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"])
        done.touch()
    sys.exit(subprocess.call([python, __file__, *sys.argv[1:]]))


def our_side(threads):
    return Ours(PROGRAM, RAYON_NUM_THREADS=str(threads), CANDLE_NUM_THREADS=str(threads))


def timed(call):
    def run():
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return run


def onnx_session(model, inputs, names, path, threads):
    import onnxruntime
    import torch

    torch.onnx.export(model, inputs, path, input_names=names, output_names=["output"], dynamo=False, opset_version=17)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda *xs: session.run(None, {name: x.numpy() for name, x in zip(names, xs)})[0]


class Comparison:
    def __init__(self, options, threads, folder):
        self.options, self.threads, self.folder = options, threads, folder
        self.ours, self.candle = our_side(threads), our_side(threads)
        self.rows = []

    def path(self, name):
        return str(self.folder / name)

    def case(self, name, dtype, setup, peers, want):
        """`peers`: name → call. `want`: the expected output, in the layout of our side."""
        import torch
        from safetensors.torch import load_file

        assert self.ours.say(*setup) == "ready"
        self.ours.say("save", self.path("output.safetensors"))
        got = load_file(self.path("output.safetensors"))["output"]
        difference = (got - want.float()).abs().max().item()
        if not difference < AGREE[dtype]:
            raise RuntimeError(f"{name}: the sides differ by {difference}")
        sides = {"ours": self.ours.run} | {peer: timed(call) for peer, call in peers.items()}
        if "candle-transformers" in sides:
            sides["candle-transformers"] = self.candle.run
        times = {side: [] for side in sides}
        with torch.inference_mode():
            for turn in range(1 + self.options.rounds):
                for side, run in sides.items():
                    time.sleep(REST)
                    start = time.perf_counter()
                    while time.perf_counter() - start < WARM:
                        seconds = run()
                    if seconds < WARM:
                        seconds = run()
                    if turn >= 1:
                        times[side].append(seconds)
        best = min(peers, key=lambda peer: statistics.median(times[peer]))
        ratio = statistics.median(a / b for a, b in zip(times["ours"], times[best]))
        medians = {side: statistics.median(seconds) * 1e3 for side, seconds in times.items()}
        self.rows.append((name, dtype, self.threads, medians, best, ratio, difference))
        shown = ", ".join(f"{side} {ms:.2f} ms" for side, ms in medians.items())
        print(f"{dtype}, {self.threads} threads, {name}: {shown}: {ratio:.2f} of {best}", flush=True)

    def layers(self, dtype):
        import torch
        from safetensors.torch import save_file

        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        for b, s, hidden, heads in LAYERS:
            torch.manual_seed(0)
            layer = torch.nn.MultiheadAttention(hidden, heads, batch_first=True).eval().to(kind)
            xs = torch.randn(b, s, hidden).to(kind)
            save_file(layer.state_dict(), self.path("layer.safetensors"))
            save_file({"query": xs}, self.path("in.safetensors"))
            setup = ("layer", self.path("layer.safetensors"), heads, self.path("in.safetensors"), dtype)
            with torch.inference_mode():
                want = layer(xs, xs, xs, need_weights=False)[0]
            peers = {"PyTorch": lambda: layer(xs, xs, xs, need_weights=False)}
            if dtype == "f32":
                peers["ONNX Runtime"] = self.onnx_layer(layer, xs)
            self.case(f"layer {b}×{s}×{hidden}, {heads}", dtype, setup, peers, want)

        torch.manual_seed(1)
        lengths = (8 + torch.randint(0, 121, (32,)) * torch.rand(32) * 0.8).long()
        lengths[0] = 128
        keep = torch.arange(128)[None] < lengths[:, None]
        layer = torch.nn.MultiheadAttention(384, 12, batch_first=True).eval().to(kind)
        xs = torch.randn(32, 128, 384).to(kind)
        save_file(layer.state_dict(), self.path("layer.safetensors"))
        save_file({"query": xs[keep].contiguous(), "lengths": lengths}, self.path("in.safetensors"))
        call = lambda: layer(xs, xs, xs, key_padding_mask=~keep, need_weights=False)[0]  # noqa: E731
        with torch.inference_mode():
            want = call()[keep]
        setup = ("layer", self.path("layer.safetensors"), 12, self.path("in.safetensors"), dtype)
        name = f"layer, 32 ragged rows of {lengths.min()} to 128 (mean {lengths.float().mean():.0f}), 384, 12"
        self.case(name, dtype, setup, {"PyTorch": call}, want)

    def onnx_layer(self, layer, xs):
        import torch

        class SelfAttention(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, xs):
                return self.layer(xs, xs, xs, need_weights=False)[0]

        torch.backends.mha.set_fastpath_enabled(False)
        run = onnx_session(SelfAttention(), (xs,), ["xs"], self.path("layer.onnx"), self.threads)
        torch.backends.mha.set_fastpath_enabled(True)
        return lambda: run(xs)

    def encoders(self, dtype):
        import torch
        from safetensors.torch import save_file
        from transformers import BertModel

        folder = str(self.options.minilm)
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        model = BertModel.from_pretrained(folder, attn_implementation="sdpa", dtype=kind).eval()

        class Hidden(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()

            def forward(self, ids, mask):
                return self.model(ids, attention_mask=mask).last_hidden_state

        for b, s in ENCODERS:
            torch.manual_seed(2)
            ids = torch.randint(1000, 20000, (b, s))
            save_file({"ids": ids}, self.path("in.safetensors"))
            with torch.inference_mode():
                want = model(ids).last_hidden_state
            peers = {"transformers": lambda: model(ids)}
            if dtype == "f32":
                mask = torch.ones_like(ids)
                run = onnx_session(Hidden(), (ids, mask), ["ids", "mask"], self.path("bert.onnx"), self.threads)
                peers["ONNX Runtime"] = lambda: run(ids, mask)
            if dtype == "f32" and (b, s) in CANDLE:
                assert self.candle.say("candle", folder, self.path("in.safetensors"), dtype) == "ready"
                peers["candle-transformers"] = None
            setup = ("encoder", folder, self.path("in.safetensors"), dtype)
            self.case(f"MiniLM-L6 {b}×{s}", dtype, setup, peers, want)


    def sentences(self, dtype):
        import torch
        from sentence_transformers import SentenceTransformer

        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        folder, file = str(self.options.minilm), HERE / "sentences.txt"
        model = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": kind})
        texts = file.read_text().splitlines()
        call = lambda: model.encode(texts, batch_size=32, show_progress_bar=False, convert_to_tensor=True)  # noqa: E731
        setup = ("sentences", folder, str(file), dtype)
        name = "MiniLM-L6, 1,000 texts of 6 to 217 tokens, tokenizing included"
        self.case(name, dtype, setup, {"sentence-transformers": call}, call().clone())


def machine():
    names = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "").split()
    sets = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {', '.join(sets)}"


def write_table(rows):
    peers = ["PyTorch", "transformers", "sentence-transformers", "ONNX Runtime", "candle-transformers"]
    lines = [f"Milliseconds, median; machine: {machine()}. Ratio: ours ÷ the best peer, median over rounds.", ""]
    lines += ["| | dtype | threads | ours | " + " | ".join(peers) + " | ratio |", "|---" * (5 + len(peers)) + "|"]
    for name, dtype, threads, medians, _, ratio, _ in rows:
        times = " | ".join(f"{medians[peer]:.2f}" if peer in medians else "" for peer in peers)
        lines.append(f"| {name} | {dtype} | {threads} | {medians['ours']:.2f} | {times} | {ratio:.2f} |")
    (HERE.parent / "peers.md").write_text("\n".join(lines) + "\n")


def draw_chart(rows):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # The same bytes for the same numbers, and text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "peers", "svg.fonttype": "none"})
    threads = rows[0][2]
    shown = [row for row in rows if row[2] == threads]
    names = list(dict.fromkeys(row[0] for row in shown))
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(names) + 1))
    for dtype, color, up in (("f32", "#3b6ea5", -0.2), ("bf16", "#c57b2c", 0.2)):
        of = {row[0]: row[5] for row in shown if row[1] == dtype}
        places = [names.index(name) + up for name in of]
        axes.barh(places, of.values(), height=0.38, color=color, label=dtype)
        for place, ratio in zip(places, of.values()):
            inside = ratio > 0.15
            at, text = (0.01, "white") if inside else (ratio + 0.01, "black")
            axes.text(at, place, f"{ratio:.2f}", va="center", fontsize=7, color=text)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_yticks(range(len(names)), [name.replace(", tokenizing included", "") for name in names], fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * max([1.0, *[row[5] for row in shown]]))
    axes.set_xlabel(f"our time ÷ the best peer's (threads: {threads}); left of the line is faster", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(HERE.parent / "peers.svg", facecolor="white", metadata={"Date": None})


def main():
    options = arguments()
    enter_venv()
    import torch

    subprocess.check_call(["cargo", "build", "--release", "-q"], cwd=BENCHES)
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        with tempfile.TemporaryDirectory() as folder:
            comparison = Comparison(options, threads, Path(folder))
            for dtype in options.dtypes:
                comparison.layers(dtype)
                comparison.encoders(dtype)
                comparison.sentences(dtype)
            comparison.ours.stop()
            comparison.candle.stop()
            rows += comparison.rows
    write_table(rows)
    draw_chart(rows)


if __name__ == "__main__":
    main()
