#!/usr/bin/env python3
"""All that is to know about this project on one NVIDIA GPU, the most important first: right, then fast.

Run: python3 benches/gpu/run.py --output FOLDER
     where PyTorch for CUDA, transformers and sentence-transformers are installed.

The programs are those that `.ci/devices cuda-build` has packed on another machine, or those that cargo builds here:
    cargo test --release --features cuda --no-run --test devices
    cargo build --release --manifest-path benches/Cargo.toml --features cuda

Each part runs in a process of its own with a time limit and writes its rows as they come, into FOLDER/PART.json. What
it and the programs print is in FOLDER/PART.log. The table of all parts comes last, and is in FOLDER/gpu.md too.
"""

import argparse
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "peers")]

import results
import unpack
from options import Parser, positive
from sides import PROGRAM, ROOT

# In this order, each with its time limit in seconds.
PARTS = {
    "card": 40,
    "tests": 125,
    "sanitizer": 60,
    "encoders": 150,
    "attention": 50,
    "decoding": 30,
    "layers": 40,
    "compiled": 45,
}
ARCHIVE = ROOT / "target" / "devices" / "programs.tar.xz"
MOST_LINES = 100
# Seconds that a part has to end by itself before it is killed.
GRACE = 3
# What the process of a part is told: its seconds, and a folder for models and inputs.
SECONDS, SCRATCH = "GPU_SECONDS", "GPU_SCRATCH"


def arguments(scratch):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="the folder for the results")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="run only these, in their order")
    parser.add_argument("--minutes", type=float, default=9, help="the time of all parts (default: 9)")
    parser.add_argument("--rounds", type=positive, default=4, help="turns per side (default: 4)")
    parser.add_argument("--programs", type=Path, help="the archive of cuda-build, or its folder")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu tries the script, on tiny sizes")
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.output = options.output.resolve()
    options.scratch = Path(scratch)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        options.devices, options.ours = programs(options)
        # For our programs only: PyTorch finds its own libraries. Without backtraces an error is one line.
        options.environment = {"RUST_BACKTRACE": "0"}
        if options.device == "cuda":
            options.environment["LD_LIBRARY_PATH"] = unpack.library_path()
    except OSError as error:
        parser.error(str(error))
    return options


def programs(options):
    """The programs of the tests and of our side of the timings."""
    given = options.programs or (ARCHIVE if ARCHIVE.exists() and options.device == "cuda" else None)
    if given is None:
        built = (ROOT / "target" / "release" / "deps").glob("devices-*")
        built = sorted((path for path in built if not path.suffix), key=lambda path: path.stat().st_mtime)
        found = [*built[-1:], PROGRAM]
    elif given.is_dir():
        found = [given / "devices", given / "peers"]
    else:
        if not options.inside:
            unpack.unpack(given, options.scratch)
        found = [options.scratch / "programs" / name for name in ("devices", "peers")]
    if len(found) < 2 or not all(path.is_file() for path in found):
        names = ", ".join(str(path) for path in found)
        raise FileNotFoundError(f"the programs are missing, found only {names}: build them with the commands in --help")
    return found


def run(part, options, end):
    """Runs a part in a process of its own; returns how it ended."""
    limit = min(PARTS[part], end - time.monotonic())
    if limit < GRACE:
        return "not run, the time is over"
    begin = time.monotonic()
    command = [sys.executable, str(HERE / "run.py"), *sys.argv[1:], "--inside", part]
    environment = dict(os.environ, PYTHONUNBUFFERED="1", **{SECONDS: str(limit - GRACE), SCRATCH: str(options.scratch)})
    with open(options.output / f"{part}.log", "w") as log:
        # A session of its own, so that its programs end with it.
        process = subprocess.Popen(command, stderr=log, env=environment, start_new_session=True)
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds = f"{time.monotonic() - begin:.0f} s"
    if process.returncode == -signal.SIGKILL:
        return f"cut off after {seconds}"
    return seconds if process.returncode == 0 else f"failed after {seconds}, see {part}.log"


def inside(options):
    """One part, in its own process."""
    begin = time.monotonic()
    options.left = lambda: float(os.environ[SECONDS]) - (time.monotonic() - begin)
    return importlib.import_module(options.inside).run(options)


def main():
    with tempfile.TemporaryDirectory() as scratch:
        options = arguments(os.environ.get(SCRATCH, scratch))
        if options.inside:
            return inside(options)
        end, endings = time.monotonic() + 60 * options.minutes, {}
        parts = [part for part in PARTS if part in options.part]
        # What an earlier run has found, perhaps on another card.
        for earlier in ["ceilings", *parts]:
            (options.output / f"{earlier}.json").unlink(missing_ok=True)
        for part in parts:
            print(f"== {part}", flush=True)
            endings[part] = run(part, options, end)
            lines = results.table(options.output, endings, MOST_LINES)
            results.replace(options.output / "gpu.md", "\n".join(lines) + "\n")
    print("\n".join(["==", *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
