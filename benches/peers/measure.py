"""One case: all sides are checked, then they take turns; or the memory of each is measured."""

import statistics

import numpy
from safetensors.numpy import load_file

from peers import OURS, OURS_F32, QUANTIZED, REFERENCE, load, start
from table import BEST
from turns import turns

# Largest difference from PyTorch's f32 output allowed before anything is timed.
AGREE = {"f32": 5e-5, "bf16": 2e-1}
# The least mean cosine to it of our output from weights in few bits.
AGREES_IN_FEW_BITS = 0.95
# Seconds of rest before a turn, and of runs that are not counted in it.
REST = 0.05
WARM = 0.06


class Comparison:
    """The sides with one number of threads. They stay until `stop`, and load one case after another."""

    def __init__(self, files, threads, rounds, expected):
        self.files, self.threads, self.rounds = files, threads, rounds
        # Case → expected output; shared by all comparisons.
        self.expected = expected
        self.sides = {}

    def side(self, name):
        if name not in self.sides:
            self.sides[name] = start(name, self.threads)
        return self.sides[name]

    def stop(self):
        for side in self.sides.values():
            side.stop()

    def output(self, case, side):
        path = str(self.files.path("output.safetensors"))
        side.say("save", path)
        output = load_file(path)["output"]
        if case.ragged and output.ndim == 3:
            output = output[load_file(self.files.path("in.safetensors"))["keep"] == 1]
        return output

    def want(self, case):
        if case.name not in self.expected:
            name = REFERENCE[case.kind]
            side = self.side(name)
            load(side, name, self.files.work(case, "f32", self.threads, []))
            self.expected[case.name] = self.output(case, side)
        return self.expected[case.name]

    def case(self, case, dtype, peers):
        """The cells of the case's row."""
        want = self.want(case)
        names = [OURS, *peers]
        work = self.files.work(case, dtype, self.threads, peers)
        cosines = {}
        for name in names:
            load(self.side(name), name, work)
            got = self.output(case, self.side(name)).reshape(want.shape)
            if dtype in QUANTIZED and name != OURS_F32:
                cosines[name] = mean_cosine(got, want)
                if name == OURS and not cosines[name] > AGREES_IN_FEW_BITS:
                    raise RuntimeError(f"{case.name}, {dtype}: the mean cosine of {name} is {cosines[name]}")
                continue
            difference = float(numpy.abs(got - want).max())
            if not difference < AGREE["f32" if name == OURS_F32 else dtype]:
                raise RuntimeError(f"{case.name}, {dtype}: {name} differs by {difference}")
        sides = {name: self.side(name).run for name in names}
        times = turns(sides, min(self.rounds, case.rounds or self.rounds), REST, WARM)
        cells = {name: f"{statistics.median(seconds) * 1e3:.2f}" for name, seconds in times.items()}
        others = [name for name in peers if name != OURS_F32]
        if others:
            best = min(others, key=lambda name: statistics.median(times[name]))
            cells[BEST], cells["ratio"] = best, ratio(times, best)
        if OURS_F32 in peers:
            cells["to f32"] = ratio(times, OURS_F32)
        if cosines:
            cells["cosines"] = ", ".join(f"{cosine:.4f}" for cosine in cosines.values())
        return cells


def mean_cosine(got, want):
    """Of the vectors along the last dimension."""
    lengths = numpy.linalg.norm(got, axis=-1) * numpy.linalg.norm(want, axis=-1)
    return float(((got * want).sum(-1) / lengths).mean())


def ratio(times, peer):
    return f"{statistics.median(a / b for a, b in zip(times[OURS], times[peer])):.2f}"


def memory(files, case, dtype, threads, peers):
    """The cells of the case's row: for each side, the peak of a process of its own."""
    work = files.work(case, dtype, threads, peers)
    cells = {}
    for name in (OURS, *peers):
        side = start(name, threads)
        load(side, name, work)
        cells[name] = f"{side.memory() / 2**20:.0f}"
        side.stop()
    return cells
