"""The chart of one processor's ratios, for the smallest number of threads in its table.

Run: target/peers-venv/bin/python benches/peers/chart.py
draws the charts in results/ anew from the tables there.
"""

import re

from table import BEST


def label(name):
    """The name of a case in words."""
    name = name.replace(", tokenizing included", "")
    name = re.sub(r"^layer (\d+)×(\d+)×(\d+), (\d+)$", r"layer \3, \4 heads: \1×\2 tokens", name)
    name = re.sub(r"^layer, (\d+ ragged rows of .*) (\(.*\)), (\d+), (\d+)$", r"layer \3, \4 heads: \1 tokens", name)
    return re.sub(r" (\d+×\d+)$", r": \1 tokens", name)


def draw(rows, order, machine, path):
    """`rows`: those of `Tables.times`; `machine`: the processor and its features."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # The same bytes for the same numbers, and text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "peers", "svg.fonttype": "none"})
    rows = {key: (float(cells["ratio"]), cells[BEST]) for key, cells in rows.items() if "ratio" in cells}
    if not rows:
        return
    threads = min((key[2] for key in rows), key=int)
    shown = {key[:2]: found for key, found in rows.items() if key[2] == threads}
    names = list(dict.fromkeys(name for name, _ in shown))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(names) + 1.6))
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    for dtype, color, up in (("f32", "#3b6ea5", -0.27), ("bf16", "#c57b2c", 0.0), ("int8", "#5a8f4e", 0.27)):
        of = {name: shown[name, dtype] for name in names if (name, dtype) in shown}
        if not of:
            continue
        places = [names.index(name) + up for name in of]
        axes.barh(places, [ratio for ratio, _ in of.values()], height=0.25, color=color, label=dtype)
        for place, (ratio, peer) in zip(places, of.values()):
            axes.text(ratio + 0.01, place, f"{ratio:.2f} of {peer}", va="center", fontsize=6, color="#222222", bbox=behind)
    axes.axvline(1, color="#444444", linewidth=1, zorder=0)
    axes.set_yticks(range(len(names)), [label(name) for name in names], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.25 * max([1.0, *(ratio for ratio, _ in shown.values())]))
    axes.set_xlabel("our time ÷ the time of the fastest other library, which each bar names\nleft of the line: we are faster", fontsize=9)
    counted = "1 thread" if threads == "1" else f"{threads} threads"
    figure.suptitle(f"Time of one run, relative to the fastest other library, {counted}", x=0.02, ha="left", fontsize=11, weight="bold")
    figure.text(0.02, 1 - 0.42 / figure.get_figheight(), machine, fontsize=8, color="#555555", va="top")
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.3 / figure.get_figheight()))
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    from pathlib import Path

    from cases import all_cases
    from table import Tables

    for table in sorted((Path(__file__).parent / "results").glob("*.md")):
        machine = table.read_text().splitlines()[0].removeprefix("# ")
        draw(Tables.read(table).times, [case.name for case in all_cases()], machine, table.with_suffix(".svg"))
