"""Our side and the peers in PyTorch: started, compared, and timed in turns."""

import statistics
import sys
import time

from sides import Side
from turns import turns

# The largest ‖ours − theirs‖ / ‖theirs‖ with which a case is timed. Both sides round.
AGREE = {"f32": 1e-3, "f16": 2e-2, "bf16": 1e-1}
# In the place of a time of ours; the part's log says why.
FAILED = "failed"
REST = 0
WARM = 0.04


def kinds():
    import torch

    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


class Ours:
    """Our side on the device, after these commands. It starts when it is first used, and again after `reset`."""

    def __init__(self, options, *commands):
        self.options, self.commands, self.side = options, commands, None

    def load(self, *words):
        if self.side is None:
            self.side = Side(self.options.ours, **self.options.environment)
            # No other call runs on the kernels that the card is to prove: they are not the default before it has.
            kernels = [("backend", "cuda")] if self.options.device == "cuda" else []
            for command in (("device", self.options.device), *kernels, *self.commands):
                self.side.say(*command)
        self.side.say(*words)

    def check(self, want, dtype):
        """Compares what it computes with what is wanted."""
        from safetensors.torch import load_file

        path = self.options.scratch / "output.safetensors"
        self.side.say("save", path)
        found = difference(load_file(path)["output"], want)
        path.unlink()
        if not found <= AGREE[dtype]:
            raise ValueError(f"the sides differ by {found:.2g}, at most {AGREE[dtype]} is allowed")

    def reset(self):
        if self.side is not None:
            self.side.process.kill()
            self.side.process.wait()
            self.side = None


def synchronize(options):
    import torch

    if options.device == "cuda":
        torch.cuda.synchronize()


def alone(options, call):
    """A call of PyTorch as a side: the fastest of three runs, each with its wait for the device."""

    def run():
        best = float("inf")
        for _ in range(3):
            begin = time.perf_counter()
            call()
            synchronize(options)
            best = min(best, time.perf_counter() - begin)
        return best

    return run


def queued(options, call, times):
    """A call of PyTorch as a side: one of `times` runs, between which nothing waits for the device."""

    def run():
        begin = time.perf_counter()
        for _ in range(times):
            call()
        synchronize(options)
        return (time.perf_counter() - begin) / times

    return run


def difference(got, want):
    """‖got − want‖ / ‖want‖; NaN where either has one."""
    got, want = got.float().cpu(), want.float().cpu()
    if got.shape != want.shape:
        raise ValueError(f"the sides differ: {tuple(got.shape)}, expected {tuple(want.shape)}")
    return ((got - want).norm() / want.norm()).item()


def medians(sides, rounds):
    """Side → median seconds. A side that fails is left out, and says why on standard error."""
    import torch

    working = {}
    with torch.inference_mode():
        for name, run in sides.items():
            try:
                run()
                working[name] = run
            except Exception as error:  # Whatever a peer raises for what it does not have.
                print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        times = turns(working, rounds, REST, WARM)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def ratio(found, ours):
    """Our time over the best of the others, None if there is none."""
    others = [seconds for name, seconds in found.items() if not name.startswith("ours")]
    return found[ours] / min(others) if others and ours in found else None
