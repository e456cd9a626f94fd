"""Our side of the comparisons: the program of main.rs, told what to do line by line."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def newest():
    """The program that was built last, None if there is none."""
    built = [path for path in (ROOT / "target/release/deps").glob("peers-*") if not path.suffix]
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


class Ours:
    def __init__(self, program, **environment):
        self.process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, **environment),
        )

    def say(self, *words):
        self.process.stdin.write("\t".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise RuntimeError(f"our side stopped at {words}")
        return answer

    def run(self, times=1):
        return min(map(float, self.say("run", times).split()))

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
