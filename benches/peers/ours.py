"""Our side of the comparisons: the program of main.rs, which takes commands line by line."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BENCHES = ROOT / "benches"
PROGRAM = BENCHES / "target" / "release" / "peers"


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
