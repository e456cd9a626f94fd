"""The sides of a comparison: processes that take commands line by line, as main.rs describes them."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BENCHES = ROOT / "benches"
PROGRAM = BENCHES / "target" / "release" / "peers"
RUST_PEERS = BENCHES / "rust-peers" / "target" / "release" / "rust-peers"


class Side:
    """A process with one piece of work loaded. `command` starts it; `environment` is added to this process's own."""

    def __init__(self, *command, **environment):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, **environment),
        )

    def say(self, *words):
        try:
            self.process.stdin.write("\t".join(map(str, words)) + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline().strip()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise RuntimeError(f"{' '.join(self.process.args)} stopped at {words}")
        return answer

    def run(self, times=1):
        """Seconds of the fastest of `times` runs."""
        return min(map(float, self.say("run", times).split()))

    def queue(self, times):
        """Seconds of one of `times` runs, between which nothing waits for the device."""
        return float(self.say("queue", times))

    def memory(self):
        """Bytes of resident memory at the peak of one run."""
        return int(self.say("memory"))

    def stop(self):
        self.process.stdin.close()
        self.process.wait()
