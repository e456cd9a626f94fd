"""ONNX Runtime on the CPU."""

import onnxruntime
from safetensors.numpy import load_file

from texts import Texts


def load(work, _peer):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = work["threads"]
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    if work["kind"] == "sentences":
        texts = Texts(work)
        run = runner(work, options)
        return lambda: texts.embed(run)
    inputs = load_file(work["input"])
    if work["kind"] == "layer":
        run = runner(work, options)
        xs = inputs.get("padded", inputs.get("query"))
        return lambda: run(xs)
    ids = inputs["ids"]
    for name, size in zip(("batch", "tokens"), ids.shape):
        options.add_free_dimension_override_by_name(name, size)
    run = runner(work, options)
    mask = ids * 0 + 1
    return lambda: run(ids, mask)


def runner(work, options):
    session = onnxruntime.InferenceSession(work["onnx"], options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return lambda *xs: session.run(None, dict(zip(names, xs)))[0]
