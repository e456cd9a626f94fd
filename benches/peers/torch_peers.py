"""PyTorch's attention layer, transformers and sentence-transformers on PyTorch."""

import torch
from safetensors.torch import load_file

KINDS = {"f32": torch.float32, "bf16": torch.bfloat16}


class Output:
    """A tensor that becomes an array only where one is asked for."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __array__(self, dtype=None, copy=None):
        return self.tensor.float().numpy()


def load(work, _peer):
    torch.set_num_threads(work["threads"])
    call = {"layer": layer, "encoder": encoder, "sentences": sentences}[work["kind"]](work, KINDS[work["dtype"]])

    @torch.inference_mode()
    def run():
        return Output(call())

    return run


def layer(work, kind):
    inputs = load_file(work["input"])
    xs = inputs.get("padded", inputs["query"]).to(kind)
    layer = torch.nn.MultiheadAttention(xs.shape[2], work["heads"], batch_first=True)
    layer.load_state_dict(load_file(work["weights"]))
    layer = layer.eval().to(kind)
    drop = inputs["keep"] == 0 if "keep" in inputs else None
    return lambda: layer(xs, xs, xs, key_padding_mask=drop, need_weights=False)[0]


def encoder(work, kind):
    from transformers import AutoModel

    model = AutoModel.from_pretrained(work["folder"], attn_implementation="sdpa", dtype=kind).eval()
    ids = load_file(work["input"])["ids"]
    return lambda: model(ids).last_hidden_state


def sentences(work, kind):
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(work["folder"], device="cpu", model_kwargs={"dtype": kind})
    texts = Path(work["texts"]).read_text().splitlines()
    return lambda: model.encode(texts, batch_size=work["batch"], show_progress_bar=False, convert_to_tensor=True)
