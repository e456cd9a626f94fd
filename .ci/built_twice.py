#!/usr/bin/env python3
"""Counts the crates that the two commands of the README compile twice, because they ask for other features; wants none.

Cargo's graph of units says what a command would compile, and with what: nothing is built.
"""

import json
import os
import subprocess
import sys

COMMANDS = (
    ["build", "--release", "--example", "encode"],  # what `cargo run` compiles
    ["test", "--release", "--workspace"],
)


def units(command):
    """The units of a command: what tells each apart, and the name of its crate."""
    # The graph is an unstable option, which asks for the nightly compiler or for this variable.
    environment = dict(os.environ, RUSTC_BOOTSTRAP="1")
    graph = subprocess.run(
        ["cargo", *command, "--locked", "-Z", "unstable-options", "--unit-graph"],
        env=environment, check=True, stdout=subprocess.PIPE,
    )
    graph = json.loads(graph.stdout)["units"]
    known = {}

    def key(index):
        if index not in known:
            unit = graph[index]
            parts = [unit["pkg_id"], unit["target"]["name"], unit["target"]["kind"], unit["mode"], unit["platform"]]
            parts += [unit["profile"], sorted(unit["features"])]
            parts.append(sorted(key(part["index"]) for part in unit["dependencies"]))
            known[index] = str(hash(json.dumps(parts, sort_keys=True)))
        return known[index]

    name = lambda unit: (unit["pkg_id"], unit["target"]["name"], unit["mode"])
    return {key(index): name(unit) for index, unit in enumerate(graph)}


def main():
    first, second = map(units, COMMANDS)
    shared = set(first.values()) & set(second.values())
    twice = sorted(name for key, name in first.items() if key not in second and name in shared)
    for package, target, mode in twice:
        print(f"compiled twice: {target} ({package.rsplit('#', 1)[-1]}, {mode})")
    print(f"{len(first)} and {len(second)} units, {len(first.keys() & second.keys())} in both, {len(twice)} twice")
    return 1 if twice or not shared else 0


if __name__ == "__main__":
    sys.exit(main())
