"""The peers: what each can run, and how its process is started and told what to load."""

import sys
from dataclasses import dataclass
from pathlib import Path

from sides import PROGRAM, RUST_PEERS, Side

WORKER = Path(__file__).resolve().parent / "worker.py"
OURS = "ours"
# Our side in f32, beside our side with weights in few bits.
OURS_F32 = "ours f32"
# Weights in few bits: outputs differ from those in f32, and are compared by a cosine.
QUANTIZED = ("int8", "q8_0", "q4_0")


@dataclass(frozen=True)
class Peer:
    kinds: tuple[str, ...]
    dtypes: tuple[str, ...] = ("f32",)
    # The option of the command line that builds it from source, if it must be built.
    option: str = ""
    # Whether HELD makes it use the instructions of an older processor.
    can_be_held: bool = False


BOTH = ("f32", "bf16")
# In the order of the table's columns.
PEERS = {
    "PyTorch": Peer(("layer",), BOTH, can_be_held=True),
    "transformers": Peer(("encoder",), BOTH, can_be_held=True),
    "sentence-transformers": Peer(("sentences",), BOTH, can_be_held=True),
    "ONNX Runtime": Peer(("layer", "encoder", "sentences")),
    "OpenVINO": Peer(("layer", "encoder", "sentences"), BOTH, can_be_held=True),
    "OpenVINO int8": Peer(("encoder", "sentences"), ("int8",), can_be_held=True),
    "ONNX Runtime int8": Peer(("encoder", "sentences"), ("int8",)),
    "llama.cpp": Peer(("sentences",), ("q8_0", "q4_0"), option="llama_cpp"),
    OURS_F32: Peer(("encoder", "sentences"), QUANTIZED, can_be_held=True),
    "candle-transformers": Peer(("encoder",)),
    "rten": Peer(("encoder",), option="rust_peers"),
    "fastembed": Peer(("sentences",), option="rust_peers"),
    "candding": Peer(("sentences",), option="rust_peers"),
}
# The environment in which all sides use no newer instructions: those of this crate, of oneDNN (PyTorch and OpenVINO have
# one each), of MKL and of PyTorch's own kernels.
HELD = {
    "avx2": {
        "CANDLE_ATTENTION_ISA": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    }
}
# The peer of each kind whose f32 output is the expected one.
REFERENCE = {"layer": "PyTorch", "encoder": "transformers", "sentences": "sentence-transformers"}


def peers_of(case, dtype, chosen):
    """The chosen peers that can run a case."""
    return [
        name
        for name, peer in PEERS.items()
        if name in chosen and case.kind in peer.kinds and dtype in peer.dtypes and dtype in case.dtypes and name not in case.without
    ]


def start(name, threads):
    """A process for a side, with as many threads as the others have, for the tokenizer too."""
    limits = {key: str(threads) for key in ("RAYON_NUM_THREADS", "CANDLE_NUM_THREADS")}
    if name in (OURS, OURS_F32, "candle-transformers"):
        return Side(PROGRAM, **limits)
    if PEERS[name].option == "rust_peers":
        return Side(RUST_PEERS, ORT_DYLIB_PATH=str(onnxruntime_library()), **limits)
    return Side(sys.executable, WORKER, name, **limits)


def load(side, name, work):
    """Tells a side to load `work`, a description made by `Files.work`."""
    if name in (OURS, OURS_F32):
        inputs = {
            "layer": ("weights", "heads", "input"),
            "encoder": ("folder", "input"),
            "sentences": ("folder", "texts"),
        }
        words = (work["kind"], *(work[key] for key in inputs[work["kind"]]), "f32" if name == OURS_F32 else work["dtype"])
    elif name == "candle-transformers":
        words = ("candle", work["folder"], work["input"], work["dtype"])
    elif name == "rten":
        words = ("rten", work["onnx"], work["input"], work["threads"])
    elif name == "fastembed":
        words = ("fastembed", work["onnx"], work["folder"], work["texts"], work["threads"])
    elif name == "candding":
        words = ("candding", work["folder"], work["texts"])
    else:
        words = ("load", work["description"])
    side.say(*words)


def onnxruntime_library():
    """The library inside the Python package of ONNX Runtime."""
    import onnxruntime

    return next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so*"))
