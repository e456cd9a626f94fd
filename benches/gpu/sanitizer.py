"""A short part of tests/devices under compute-sanitizer, which reports bad accesses and races of threads."""

import re
import shutil
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import tests
from results import Results

TOOLS = ("memcheck", "racecheck")
# The cases of the matrix that run, one of so many; and the whole tests.
THIN = 60
WHOLE = ("few_queries_over_many_keys", "layer_on_ragged_batches")
PLACES = ("/usr/local/cuda/bin", "/opt/nvidia/compute-sanitizer", "/usr/local/cuda/compute-sanitizer")


def program():
    places = [shutil.which("compute-sanitizer"), *(f"{place}/compute-sanitizer" for place in PLACES)]
    return next((place for place in places if place and Path(place).is_file()), None)


def run(options):
    results = Results(options.output, "sanitizer", ["tool", "test", "ended", "found"])
    sanitizer = program()
    if sanitizer is None:
        results.add("compute-sanitizer", "", "not installed", "")
        return 0
    jobs = [(tool, name) for tool in TOOLS for name in (tests.MATRIX, *WHOLE)]

    def one(job):
        tool, name = job
        # Not an error: calls that the driver refuses, which programs ask and handle.
        before = [sanitizer, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9"]
        words = tests.exactly(f"{name}::{options.device}")
        output, ended = tests.finished(options, words, before, CANDLE_ATTENTION_THIN=str(THIN))
        (options.output / f"{tool}-{name}.log").write_text(output)
        return tool, name, ended, output

    wrong = 0
    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in as_completed([pool.submit(one, job) for job in jobs]):
            tool, name, ended, output = done.result()
            summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", output)
            first = re.findall(r"=+ (Invalid .*|.*[Hh]azard.*|Error: .*)", output)
            results.add(tool, name, ended, "; ".join([*summary[-1:], *first[:1]]) or "no summary")
            wrong += ended != "passed"
    return 1 if wrong else 0
