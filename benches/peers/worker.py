"""A Python peer as a process of its own. Run: worker.py PEER; it takes commands as main.rs does.

`load PATH` names a JSON file that `Files.work` wrote. Each peer imports only its own library.
"""

import json
import os
import sys
import time

import numpy
from safetensors.numpy import save_file


def loader(peer):
    if peer.startswith("OpenVINO"):
        import openvino_peer

        return openvino_peer.load
    if peer.startswith("ONNX Runtime"):
        import onnx_peer

        return onnx_peer.load
    if peer == "llama.cpp":
        import llama_cpp_peer

        return llama_cpp_peer.load
    import torch_peers

    return torch_peers.load


def timed(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_of(call):
    """Bytes of resident memory at the peak of a call (Linux)."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    call()
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main():
    peer = sys.argv[1]
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    load = loader(peer)
    call = None
    for line in sys.stdin:
        command, *words = line.rstrip("\n").split("\t")
        if command == "load":
            call = None
            with open(words[0]) as file:
                call = load(json.load(file), peer)
            answer = "ready"
        elif command == "run":
            answer = " ".join(str(timed(call)) for _ in range(int(words[0])))
        elif command == "save":
            save_file({"output": numpy.array(call(), dtype=numpy.float32)}, words[0])
            answer = "saved"
        elif command == "memory":
            answer = str(peak_of(call))
        else:
            raise ValueError(f"unknown command: {line}")
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
