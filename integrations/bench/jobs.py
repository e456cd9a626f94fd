"""The sides of bench.py: each embeds the same texts in processes of its own."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy
import pyarrow
import pyarrow.dataset
import pyarrow.parquet

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DATAFUSION = ROOT / "integrations" / "datafusion"
PROGRAMS = DATAFUSION / "target" / "light"
# Sides differ in the order of their sums.
TOLERANCE = 1e-5
FILES = 8


@dataclass
class Run:
    """One run of a side. `seconds` are those from the first batch to the end, `start` those before."""

    seconds: float
    start: float
    # Inside the encoder, of all workers together.
    encoding: float
    workers: int

    def engine_share(self):
        return 1 - self.encoding / (self.seconds * self.workers)


class Work:
    """The texts as Parquet files, and what the sides made of them."""

    def __init__(self, folder, options):
        self.folder, self.model, self.threads = folder, options.model, options.threads
        self.input = folder / "texts"
        self.input.mkdir()
        sentences = (ROOT / "benches" / "peers" / "sentences.txt").read_text().splitlines()
        texts = [sentences[row % len(sentences)] for row in range(options.texts)]
        rows = numpy.array_split(numpy.arange(options.texts), FILES)
        for number, part in enumerate(part for part in rows if len(part)):
            table = pyarrow.table({"row": part, "text": [texts[row] for row in part]})
            pyarrow.parquet.write_table(table, self.input / f"{number}.parquet")
        self.made = {}


def build():
    """Builds the programs of integrations/datafusion, unless they are there."""
    if all((PROGRAMS / name).is_file() for name in ("embed", "embed-scheduler", "embed-executor")):
        return
    command = ["cargo", "build", "--quiet", "--locked", "--profile", "light", "--manifest-path", DATAFUSION / "Cargo.toml", "--bins"]
    subprocess.check_call(command)


def python(library, engine):
    """A library alone, or under Ray."""

    def run(work):
        output = work.folder / "embeddings.npy"
        command = [sys.executable, HERE / "worker.py", library, engine, work.model, work.input, output, str(work.threads)]
        threads = {"RAYON_NUM_THREADS": str(work.threads), "TOKENIZERS_PARALLELISM": "false"}
        began = time.monotonic()
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | threads)
        whole = time.monotonic() - began
        said = json.loads(done.stdout.splitlines()[-1])
        work.made[library, engine] = numpy.load(output)
        return Run(said["job"], whole - said["job"], said["encoding"], said["actors"])

    return run


def fields(line):
    """`texts: 5, seconds: 1.2` as a dictionary."""
    return dict(field.split(": ") for field in line.strip().split(", "))


def embed(work, name, *arguments):
    """Runs `embed`; gives its own seconds, those of its encoder, and those before it began."""
    output = work.folder / f"embedded-{time.monotonic_ns()}"
    command = [PROGRAMS / "embed", "--input", f"{work.input}/*.parquet", "--column", "text", "--output", output]
    command += ["--model", f"default={work.model}", "--batch-rows", "1024", *arguments]
    began = time.monotonic()
    said = fields(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    whole = time.monotonic() - began
    table = pyarrow.dataset.dataset(output, format="parquet").to_table().sort_by("row")
    column = table["embedding"].combine_chunks()
    work.made[name] = column.flatten().to_numpy().reshape(len(table), -1)
    return float(said["seconds"]), said["encoder seconds"], whole - float(said["seconds"])


def one_process(work):
    seconds, encoding, start = embed(work, "datafusion", "--threads", str(work.threads))
    return Run(seconds, start, float(encoding), 1)


def cluster(work):
    """A scheduler and two executors, which share the threads."""

    def node(program, *arguments):
        process = subprocess.Popen([PROGRAMS / program, *arguments], stdout=subprocess.PIPE, text=True)
        ready = process.stdout.readline()
        if " ready at " not in ready:
            raise RuntimeError(f"{program}: {ready or 'ended before it was ready'}")
        return process, ready.split()[-1]

    model = ["--model", f"default={work.model}"]
    began, nodes = time.monotonic(), []
    try:
        scheduler, address = node("embed-scheduler", *model, "--bind", "127.0.0.1:0")
        nodes.append(scheduler)
        share = ["--threads", str(work.threads // 2), "--scheduler", address]
        for _ in range(2):
            nodes.append(node("embed-executor", *model, *share)[0])
        up = time.monotonic() - began
        seconds, _, start = embed(work, "ballista", "--cluster", f"df://{address}")
        encoding = 0.0
        for executor in nodes[1:]:
            executor.terminate()
            encoding += float(fields(executor.communicate(timeout=60)[0].splitlines()[-1])["encoder seconds"])
    finally:
        for process in nodes:
            process.kill()
            process.wait()
    return Run(seconds, up + start, encoding, 2)


SIDES = {
    "the wheel": python("candle_attention", "alone"),
    "the wheel under Ray": python("candle_attention", "ray"),
    "sentence-transformers": python("sentence_transformers", "alone"),
    "sentence-transformers under Ray": python("sentence_transformers", "ray"),
    "`embed`, one process": one_process,
    "`embed`, scheduler and two executors": cluster,
}


def compare(work):
    """Stops if two sides differ."""
    want = work.made["sentence_transformers", "alone"]
    for name, got in work.made.items():
        if got.shape != want.shape:
            raise RuntimeError(f"{name}: shape {got.shape}, expected {want.shape}")
        difference = numpy.abs(got - want).max()
        if not difference < TOLERANCE:
            raise RuntimeError(f"{name} differs from sentence-transformers by {difference}, expected below {TOLERANCE}")
