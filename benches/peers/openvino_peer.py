"""OpenVINO on the CPU: one stream, the hint for latency, and the dtype as the hint for precision."""

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


def runner(work, model):
    settings = {
        # What is not quantized in an int8 model.
        "INFERENCE_PRECISION_HINT": "f32" if work["dtype"] == "int8" else work["dtype"],
        "INFERENCE_NUM_THREADS": work["threads"],
        "NUM_STREAMS": "1",
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()

    def run(*xs):
        request.infer(dict(enumerate(xs)), share_inputs=True)
        return request.get_output_tensor(0).data

    return run
