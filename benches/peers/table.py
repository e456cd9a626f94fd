"""The tables of one processor: Markdown that is written, read again, and merged row by row."""

from peers import OURS, PEERS, QUANTIZED

KEYS = ("", "dtype", "threads")
DTYPES = ("f32", "bf16", *QUANTIZED)
BEST = "best peer"
COLUMNS = [*KEYS, OURS, *PEERS, BEST, "ratio", "to f32", "cosines"]
MEMORY = "## Peak resident memory"
TIMES_LEGEND = """Median milliseconds of one run. Ratio: our time ÷ that of the best peer in the row's dtype, median over rounds.
Layer b×s×h, n: b sequences of s tokens, hidden size h, n heads. Models: sequences × tokens.
Int8: weights and inputs of products are int8, all else f32. OpenVINO with ranges that NNCF measures on {calibration} inputs;
ONNX Runtime's dynamic quantization, a scale per channel. q8_0 and q4_0: blocks of 32 of llama.cpp. To f32: our time ÷ our
time in f32. Cosines: to PyTorch's output in f32, the mean over texts, or over tokens where there are no texts, of each side
but ours in f32, in the order of the columns.
The ragged layer: peers compute it padded. ModernBERT: two rounds, and only ours, transformers and OpenVINO, because a run on
one thread takes tens of seconds or more."""
MEMORY_LEGEND = """MiB. Each figure is of a process of its own: the model is loaded, the peak of resident memory is reset
to what is resident then, the case runs once, and the peak is read (VmHWM of Linux). It contains weights, libraries and, on
the peers' sides, Python."""


def row_key(name, dtype, threads):
    return (name, dtype, str(threads))


class Tables:
    """Rows are {column: text} by (case, dtype, threads); `times` and `memory` each hold some."""

    def __init__(self, times=None, memory=None):
        self.times, self.memory = times or {}, memory or {}

    @staticmethod
    def read(path):
        if not path.exists():
            return Tables()
        first, _, second = path.read_text().partition(MEMORY)
        return Tables(parse(first), parse(second))

    def merge(self, other):
        """Takes the rows of `other`. Returns a line for each row that lost a cell by it."""
        lost = []
        for mine, new in ((self.times, other.times), (self.memory, other.memory)):
            for key, cells in new.items():
                gone = [column for column in mine.get(key, {}) if column not in cells]
                if gone:
                    lost.append(f"{', '.join(key)}: no longer has {', '.join(gone)}")
                mine[key] = cells
        return lost

    def markdown(self, machine, order, calibration):
        """`order`: names of cases; rows of others come last."""
        lines = [f"# {machine}", "", TIMES_LEGEND.format(calibration=calibration), "", *grid(self.times, order)]
        if self.memory:
            lines += ["", MEMORY, "", MEMORY_LEGEND, "", *grid(self.memory, order)]
        return "\n".join(lines) + "\n"


def parse(text):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    if not rows:
        return {}
    header, _, *rows = rows
    found = {}
    for row in rows:
        cells = dict(zip(header, row))
        key = tuple(cells.pop(column) for column in KEYS)
        found[key] = {column: cell for column, cell in cells.items() if cell}
    return found


def grid(rows, order):
    columns = [column for column in COLUMNS if column in KEYS or any(column in cells for cells in rows.values())]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]

    def place(key):
        name, dtype, threads = key
        return (int(threads), DTYPES.index(dtype), order.index(name) if name in order else len(order))

    for key in sorted(rows, key=place):
        cells = dict(zip(KEYS, key)) | rows[key]
        lines.append("| " + " | ".join(cells.get(column, "") for column in columns) + " |")
    return lines
