"""Texts a second of the integrations on this machine, and what of the time is the engine's.

Run: python3 integrations/bench.py --model FOLDER --wheel FILE
     FOLDER is all-MiniLM-L6-v2 (see the README for where to get it), FILE the wheel of integrations/python.

Six sides embed the same texts in turns, each in new processes, with as many threads as --threads says in all: the wheel and
sentence-transformers, alone and in the actors of Ray Data, and `embed` of integrations/datafusion, in one process and on a
scheduler with two executors. All embeddings must agree before anything is reported. The engine's share is the part of the
workers' time, from the first batch to the end of the job, that is not spent inside the encoder; starting processes and
loading models is a column of its own.

The first run makes a virtual environment under target/. Programs of integrations/datafusion are built with its profile
`light`, unless they are there. --write saves the table in integrations/bench/results.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENV = ROOT / "target" / "bench-venv"
sys.path[:0] = [str(HERE / "bench"), str(ROOT / "benches" / "peers")]


def enter_venv(wheel):
    """Runs this script again inside its own virtual environment, made if it is not there."""
    python = VENV / "bin" / "python"
    if Path(sys.prefix) == VENV:
        return
    if not (VENV / "installed").exists():
        subprocess.check_call([sys.executable, "-m", "venv", VENV])
        requirements = HERE / "bench" / "requirements.txt"
        subprocess.check_call([python, "-m", "pip", "install", "-q", "-r", requirements])
        (VENV / "installed").touch()
    subprocess.check_call([python, "-m", "pip", "install", "-q", "--force-reinstall", "--no-deps", wheel])
    sys.exit(subprocess.call([python, __file__, *sys.argv[1:]]))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of a sentence-transformers model")
    parser.add_argument("--wheel", type=Path, required=True, help="the built wheel of integrations/python")
    parser.add_argument("--texts", type=int, default=4000, help="number of texts [default: 4000]")
    parser.add_argument("--threads", type=int, default=2, help="threads of each side in all [default: 2]")
    parser.add_argument("--rounds", type=int, default=3, help="rounds [default: 3]")
    parser.add_argument("--write", action="store_true", help="save the table in integrations/bench/results")
    options = parser.parse_args()
    if not (options.model / "modules.json").is_file():
        parser.error(f"--model {options.model}: expected a folder with modules.json")
    if not options.wheel.is_file():
        parser.error(f"--wheel {options.wheel}: expected the file that maturin built")
    for name in ("texts", "threads", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} {getattr(options, name)}: expected at least 1")
    if options.threads % 2:
        parser.error(f"--threads {options.threads}: expected an even number, for two executors")
    options.model = options.model.resolve()
    return options


def table(sides, runs, options):
    """The rows of the report as Markdown."""
    import machine

    base = statistics.median(run.seconds for run in runs["sentence-transformers under Ray"])
    lines = [
        f"{options.texts} texts with {options.model.parent.name}/{options.model.name}, f32, {options.threads} threads in all, "
        f"median of {options.rounds} rounds in turns; {machine.description()}.",
        "",
        "| | texts a second | ÷ sentence-transformers under Ray | the engine's share | seconds to the first batch |",
        "|---|---|---|---|---|",
    ]
    for side in sides:
        seconds = statistics.median(run.seconds for run in runs[side])
        share = statistics.median(run.engine_share() for run in runs[side])
        start = statistics.median(run.start for run in runs[side])
        lines.append(f"| {side} | {options.texts / seconds:.0f} | {base / seconds:.2f} | {share:.1%} | {start:.1f} |")
    return "\n".join(lines) + "\n"


def main():
    options = arguments()
    enter_venv(options.wheel)
    import machine
    from jobs import SIDES, Work, build, compare

    build()
    runs = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder), options)
        for number in range(options.rounds):
            for name, side in SIDES.items():
                run = side(work)
                runs[name].append(run)
                print(f"round {number + 1}: {name}: {run.seconds:.2f} s", flush=True)
            compare(work)
    report = table(SIDES, runs, options)
    print(report)
    if options.write:
        results = HERE / "bench" / "results"
        results.mkdir(exist_ok=True)
        (results / f"{machine.slug()}.md").write_text(report)


if __name__ == "__main__":
    main()
