"""ONNX Runtime on the CPU."""

import onnxruntime
from safetensors.numpy import load_file

from texts import Texts


def load(work, peer):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = work["threads"]
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    model = work["onnx_int8" if peer.endswith("int8") else "onnx"]
    if work["kind"] == "sentences":
        texts = Texts(work)
        run = runner(model, options)
        return lambda: texts.embed(run)
    inputs = load_file(work["input"])
    if work["kind"] == "layer":
        run = runner(model, options)
        xs = inputs.get("padded", inputs.get("query"))
        return lambda: run(xs)
    ids = inputs["ids"]
    for name, size in zip(("batch", "tokens"), ids.shape):
        options.add_free_dimension_override_by_name(name, size)
    run = runner(model, options)
    mask = ids * 0 + 1
    return lambda: run(ids, mask)


def runner(model, options):
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *xs: session.run(None, dict(zip(names, xs)))[0]
