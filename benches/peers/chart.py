"""The chart of one processor's ratios, for the smallest number of threads in its table."""


def draw(rows, order, path):
    """`rows`: those of `Tables.times`."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # The same bytes for the same numbers, and text as text.
    matplotlib.rcParams.update({"svg.hashsalt": "peers", "svg.fonttype": "none"})
    rows = {key: float(cells["ratio"]) for key, cells in rows.items() if "ratio" in cells}
    if not rows:
        return
    threads = min((key[2] for key in rows), key=int)
    shown = {key[:2]: ratio for key, ratio in rows.items() if key[2] == threads}
    names = list(dict.fromkeys(name for name, _ in shown))
    names.sort(key=lambda name: order.index(name) if name in order else len(order))
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(names) + 1))
    for dtype, color, up in (("f32", "#3b6ea5", -0.27), ("bf16", "#c57b2c", 0.0), ("int8", "#5a8f4e", 0.27)):
        of = {name: shown[name, dtype] for name in names if (name, dtype) in shown}
        if not of:
            continue
        places = [names.index(name) + up for name in of]
        axes.barh(places, of.values(), height=0.25, color=color, label=dtype)
        for place, ratio in zip(places, of.values()):
            inside = ratio > 0.15
            at, text = (0.01, "white") if inside else (ratio + 0.01, "black")
            axes.text(at, place, f"{ratio:.2f}", va="center", fontsize=6, color=text)
    axes.axvline(1, color="#444444", linewidth=1)
    axes.set_yticks(range(len(names)), [name.replace(", tokenizing included", "") for name in names], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * max([1.0, *shown.values()]))
    axes.set_xlabel(f"our time ÷ the best peer's (threads: {threads}); left of the line is faster", fontsize=9)
    axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, facecolor="white", metadata={"Date": None})
    plt.close(figure)
