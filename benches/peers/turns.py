"""Sides that take turns, round by round."""

import time


def turns(sides, rounds, rest, warm):
    """Seconds of each side in each round but the first. A side is a call that runs and returns its seconds; in its turn it
    rests, then runs until it is warm, and the last run counts."""
    times = {name: [] for name in sides}
    for turn in range(1 + rounds):
        for name, run in sides.items():
            time.sleep(rest)
            begin = time.perf_counter()
            while time.perf_counter() - begin < warm:
                seconds = run()
            if seconds < warm:
                seconds = run()
            if turn:
                times[name].append(seconds)
    return times
