"""The card, the driver, the versions, and what the card does at best."""

import platform
import shutil
import subprocess

import ceilings
from results import Results, shown
from sides import ROOT

FACTS = "name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"


def said(*command):
    """What a command prints, or why it does not."""
    if shutil.which(command[0]) is None:
        return f"no {command[0]}"
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"exit status {done.returncode}"


def commit(options):
    """Of the programs if they were packed with it, else of this checkout."""
    packed = options.ours.parent / "commit"
    return packed.read_text().strip() if packed.exists() else said("git", "rev-parse", "HEAD")


def run(options):
    results = Results(options.output, "card", ["what", "found"])
    results.add("card", said("nvidia-smi", f"--query-gpu={FACTS}", "--format=csv,noheader"))
    results.add("commit", commit(options))
    results.add("nvcc", said("nvcc", "--version"))
    results.add("libraries", options.environment.get("LD_LIBRARY_PATH", "the system's"))
    import sentence_transformers
    import torch
    import transformers

    versions = f"Python {platform.python_version()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
    versions += f"cuDNN {torch.backends.cudnn.version()}, transformers {transformers.__version__}, "
    results.add("versions", versions + f"sentence-transformers {sentence_transformers.__version__}")
    found = ceilings.measured(options)
    results.add("at best", ", ".join(f"{name} {shown(value)}" for name, value in found.items()))
    return 0
