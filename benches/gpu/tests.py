"""tests/devices on the card: one line per case that fails, with its number; the whole lines are in failures.txt.

CANDLE_ATTENTION_CASE=NUMBER runs a case of the matrix again.
"""

import os
import re
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from results import Results, replace
from sides import ROOT

# The test with the most cases, which several processes share.
MATRIX = "every_pair_of_properties"
SHARES = 8


def names(options):
    """The tests of the device."""
    listed = finished(options, ["--list", options.device])[0].splitlines()
    return [line.removesuffix(": test") for line in listed if line.endswith(f"::{options.device}: test")]


def finished(options, words, before=(), **environment):
    """The output of the program of the tests, and how it ended; `before` stands before its command."""
    # A file: what a killed program has started would keep a pipe open.
    with tempfile.TemporaryFile("w+", errors="replace", dir=options.scratch) as said:
        process = subprocess.Popen(
            [*before, str(options.devices), *words],
            # The tests read fixtures below the root.
            cwd=ROOT,
            env=dict(os.environ, **options.environment, **environment),
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(max(options.left(), 0.1))
            ended = {0: "passed", 101: "failed"}.get(code, f"ended with {code}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = "cut off"
        said.seek(0)
        return said.read(), ended


def exactly(name):
    return ["--exact", name, "--nocapture", "--test-threads", "1"]


def failures(output):
    """The lines of a panic: each case that `Verdict` found wrong, or the message."""
    lines, found = output.splitlines(), []
    for i, line in enumerate(lines):
        if " panicked at " not in line:
            continue
        for said in lines[i + 1 :]:
            if said.startswith(("note: ", "test ")):
                break
            if said.strip() and not re.match(r"\d+ wrong on ", said):
                found.append(said)
    return found


def short(line):
    """A case as its number and what is wrong."""
    line = re.sub(r"Case \{ number: (\d+), dtype: (\w+), mask: (\w+).*? \}+ by", r"case \1, \2, \3 by", line)
    return re.sub(r"Case \{ number: (\d+), .*? \}\}?:", r"case \1:", line)


def run(options):
    results = Results(options.output, "tests", ["test", "ended", "seconds", "said"])
    results.sum_up("all", "", "", "")
    jobs = []
    for name in names(options):
        if name.startswith(f"{MATRIX}::"):
            share = lambda i: {"CANDLE_ATTENTION_THIN": str(SHARES), "CANDLE_ATTENTION_FIRST": str(i)}
            jobs += [(f"{name} {i + 1}/{SHARES}", name, share(i)) for i in range(SHARES)]
        else:
            jobs.append((name, name, {}))
    start_of_all = time.monotonic()
    whole, passed, compared, worst = [], 0, 0, 0.0

    def one(job):
        shown, name, environment = job
        begin = time.monotonic()
        if options.left() <= 0:
            return shown, "", "not run", 0.0
        output, ended = finished(options, exactly(name), **environment)
        return shown, output, ended, time.monotonic() - begin

    # Most of their time goes to the compiler of kernels and to the references, on one core or all.
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            shown, output, ended, seconds = done.result()
            wrong = failures(output)
            for count, error in re.findall(r"(\d+) results, largest error ([\d.]+) of its tolerance", output):
                compared, worst = compared + int(count), max(worst, float(error))
            passed += ended == "passed"
            said = f"{compared} results, the largest error of those that passed is {worst} of its tolerance"
            results.sum_up("all", f"{passed} of {len(jobs)} passed", time.monotonic() - start_of_all, said)
            if ended == "passed":
                print(f"{shown}: passed in {seconds:.1f} s", flush=True)
                continue
            results.add(shown, ended, seconds, f"{len(wrong)} wrong")
            for line in wrong:
                results.add("", "", None, short(line))
            whole += [f"== {shown}: {ended}", *(wrong or output.splitlines()[-20:]), ""]
            replace(options.output / "failures.txt", "\n".join(whole))
    return 1 if whole else 0
