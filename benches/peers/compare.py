"""Ours against other libraries on this machine's CPU, taking turns in one run.

Run: python3 benches/peers/compare.py --minilm FOLDER
     FOLDER is all-MiniLM-L6-v2 (see the README for where to get it).

The first run makes a virtual environment under target/ from requirements.txt. Each run builds our side with
`cargo build --release` in benches/. Every side is a process of its own, with the same number of threads. Each case is first
checked: all sides must agree with PyTorch in f32. Then they alternate, round by round. The machine rests a moment between
two turns, so that no side pays for the other's spinning threads. Each turn starts with runs that are not counted, because
threads that have just been woken share a core until the system spreads them out.

A whole run merges its rows into benches/peers/results/PROCESSOR.md and draws the chart beside it. A partial run (one with
--only, --peers, --threads, --dtypes or --rounds) prints its table; with --write it is merged as well.

--isa avx2 measures what a processor without AVX-512 would do, on one that has it: all sides are held to AVX2, and those that
cannot be are left out. The rows go to a table of their own. Whoever changes a kernel measures this, too.

--rust-peers needs a C compiler, and compiles rten, fastembed and candding. fastembed uses the library of the Python
package of ONNX Runtime. --llama-cpp needs a C++ compiler. --memory needs Linux.

sentences.txt holds 1,000 sentences and paragraphs of The Rust Programming Language (The Rust Project Developers, MIT or
Apache 2.0; in six of them the name of a host is paraphrased), 6 to 217 tokens of MiniLM's.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from options import arguments
from peers import HELD
from sides import BENCHES, ROOT

HERE = Path(__file__).resolve().parent
VENV = ROOT / "target" / "peers-venv"
RESULTS = BENCHES / "peers" / "results"
LLAMA_CPP = ("llama-cpp-python==0.3.36", "gguf==0.19.0")


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


def measured(options, folder, rows):
    """Adds a row of cells for each case, dtype and number of threads."""
    from files import Files
    from measure import Comparison, memory
    from peers import peers_of
    from table import row_key

    files, expected = Files(folder, options.minilm), {}
    for threads in options.threads:
        comparison = Comparison(files, threads, options.rounds, expected)
        for dtype in options.dtypes:
            for case in options.cases:
                peers = peers_of(case, dtype, options.peers)
                if not peers:
                    continue
                if options.memory:
                    cells = memory(files, case, dtype, threads, peers)
                else:
                    cells = comparison.case(case, dtype, peers)
                rows[row_key(case.name, dtype, threads)] = cells
                shown = ", ".join(f"{column} {cell}" for column, cell in cells.items())
                print(f"{dtype}, {threads} threads, {case.name}: {shown}", file=sys.stderr, flush=True)
        comparison.stop()


def report(options, rows):
    """Prints the rows of a partial run, or merges them into the processor's table and chart."""
    import chart
    import machine
    from cases import all_cases
    from files import CALIBRATION
    from table import Tables

    order = [case.name for case in all_cases()]
    described = machine.description(options.isa)
    new = Tables(memory=rows) if options.memory else Tables(times=rows)
    if options.partial and not options.write:
        print(new.markdown(described, order, CALIBRATION), end="")
        return
    path = RESULTS / f"{machine.slug(options.isa)}.md"
    tables = Tables.read(path)
    for line in tables.merge(new):
        print(line, file=sys.stderr)
    RESULTS.mkdir(exist_ok=True)
    path.write_text(tables.markdown(described, order, CALIBRATION))
    chart.draw(tables.times, order, described, path.with_suffix(".svg"))
    print(f"merged into {path}", file=sys.stderr)


def main():
    options = arguments(__doc__)
    enter_venv()
    subprocess.check_call(["cargo", "build", "--release", "-q"], cwd=BENCHES)
    if options.llama_cpp:
        subprocess.check_call([sys.executable, "-m", "pip", "install", "-q", *LLAMA_CPP])
    if options.rust_peers:
        subprocess.check_call(["cargo", "build", "--release", "-q"], cwd=BENCHES / "rust-peers")
    # No bars and advice of transformers between our lines.
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    os.environ |= HELD.get(options.isa, {})
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            measured(options, Path(folder), rows)
        finally:
            # A run that is cut short still reports what it measured.
            if rows:
                report(options, rows)


if __name__ == "__main__":
    main()
