"""OpenVINO on the CPU: one stream, the hint for latency, and the dtype as the hint for precision."""

import os

import openvino
from safetensors.numpy import load_file

from texts import Texts


def load(work, peer):
    model = openvino.Core().read_model(work["openvino_int8" if peer.endswith("int8") else "openvino"])
    if work["kind"] == "sentences":
        texts = Texts(work)
        run = runner(work, model)
        return lambda: texts.embed(run)
    inputs = load_file(work["input"])
    if work["kind"] == "layer":
        run = runner(work, model)
        xs = inputs.get("padded", inputs.get("query"))
        return lambda: run(xs)
    ids = inputs["ids"]
    mask = ids * 0 + 1
    model.reshape({each.any_name: list(ids.shape) for each in model.inputs})
    run = runner(work, model)
    return lambda: run(ids, mask)


def precision(dtype):
    # What is not quantized in an int8 model.
    if dtype == "int8":
        return "f32"
    # Without AVX-512 it computes models in bf16 as in f32. Where it is held to less, it does not see that by itself.
    return "f32" if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2" else dtype


def runner(work, model):
    settings = {
        "INFERENCE_PRECISION_HINT": precision(work["dtype"]),
        "INFERENCE_NUM_THREADS": work["threads"],
        "NUM_STREAMS": "1",
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()

    def run(*xs):
        request.infer(dict(enumerate(xs)), share_inputs=True)
        return request.get_output_tensor(0).data

    return run
