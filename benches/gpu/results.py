"""What the parts of a run have found: a file for each part, written anew with each row, and the table of them all."""

import json

# The longest line of the table, in characters.
WIDEST = 150


def replace(path, text):
    """Writes a file at once, so that a run that is cut off leaves a whole one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


class Results:
    """The rows of one part. `note` stands above them in the table."""

    def __init__(self, folder, part, columns, note=""):
        self.path = folder / f"{part}.json"
        self.found = {"part": part, "note": note, "columns": list(columns), "rows": [], "left out": []}
        self.write()

    def add(self, *cells, in_table=True):
        """Adds a row. The table has room for the most telling ones only."""
        cells = [shown(cell) for cell in cells]
        self.found["rows" if in_table else "left out"].append(cells)
        self.write()
        named = (f"{column} {cell}" for column, cell in zip(self.found["columns"][1:], cells[1:]) if cell)
        print(f"{cells[0]}: {', '.join(named)}", flush=True)

    def sum_up(self, *cells):
        """The first row, which stands for those that need no row of their own."""
        self.found["rows"][:1] = [[shown(cell) for cell in cells]]
        self.write()

    def write(self):
        replace(self.path, json.dumps(self.found, indent=1, ensure_ascii=False) + "\n")


def shown(cell):
    """A number with three digits; nothing for None."""
    if isinstance(cell, float):
        return f"{cell:.0f}" if cell >= 100 else f"{cell:.3g}"
    return "" if cell is None else str(cell)


def table(folder, endings, most):
    """The lines of all parts that have run, at most `most`. `endings`: part → how it ended."""
    blocks = []
    for part, ending in endings.items():
        path = folder / f"{part}.json"
        found = json.loads(path.read_text()) if path.exists() else {"note": "", "rows": [], "left out": []}
        head = [f"{part}: {ending}. {found['note']}".rstrip()]
        if found["rows"]:
            head += [line(found["columns"]), "|" + "---|" * len(found["columns"])]
        blocks.append((part, head, [line(row) for row in found["rows"]], len(found["left out"])))
    # The longest blocks give up their last rows. A line more says how many rows are not there.
    kept = [len(rows) for _, _, rows, _ in blocks]
    missing = lambda: [len(rows) + out - count for count, (_, _, rows, out) in zip(kept, blocks)]
    lines = lambda: sum(kept) + sum(len(head) for _, head, _, _ in blocks) + sum(map(bool, missing()))
    while lines() > most and max(kept, default=0) > 0:
        kept[kept.index(max(kept))] -= 1
    table = []
    for count, gone, (part, head, rows, _) in zip(kept, missing(), blocks):
        table += head + rows[:count] + [f"{gone} more in {part}.json"] * bool(gone)
    return [text if len(text) <= WIDEST else text[: WIDEST - 1] + "…" for text in table]


def line(cells):
    return "| " + " | ".join(cells) + " |"
