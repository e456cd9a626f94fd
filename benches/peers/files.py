"""The files that sides load: weights, inputs, and models converted for ONNX Runtime and OpenVINO."""

import contextlib
import json
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file

from cases import BERT, MINILM, MODERNBERT, ragged_lengths

SENTENCES = Path(__file__).resolve().parent / "sentences.txt"
# Texts in a batch of 1,000 texts.
BATCH = 32
# Inputs on which the ranges of the int8 model are measured.
CALIBRATION = 60
# Which peers load which conversion.
CONVERSIONS = {
    "onnx": ("ONNX Runtime", "ONNX Runtime int8", "rten", "fastembed"),
    "onnx_int8": ("ONNX Runtime int8",),
    "openvino": ("OpenVINO", "OpenVINO int8"),
    "openvino_int8": ("OpenVINO int8",),
    "gguf_q8_0": ("llama.cpp",),
    "gguf_q4_0": ("llama.cpp",),
}
ENDINGS = {"onnx": ".onnx", "openvino": ".xml", "gguf": ".gguf"}



class SelfAttention(torch.nn.Module):
    def __init__(self, layer, drop):
        super().__init__()
        self.layer, self.drop = layer, drop

    def forward(self, xs):
        return self.layer(xs, xs, xs, key_padding_mask=self.drop, need_weights=False)[0]


class HiddenStates(torch.nn.Module):
    def __init__(self, folder, attention):
        from transformers import AutoModel

        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32).eval()

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Files:
    """Makes each file when it is first needed, in `folder`."""

    def __init__(self, folder, minilm):
        self.folder, self.minilm = folder, minilm

    def path(self, *parts):
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def work(self, case, dtype, threads, peers):
        """The description of a case for `peers.load`."""
        work = {"kind": case.kind, "dtype": dtype, "threads": threads, "batch": BATCH}
        if case.kind == "layer":
            home, source = case.name, self.layer(case, work)
        else:
            home, source = case.model, self.encoder(case, work)
        for conversion, users in CONVERSIONS.items():
            if not set(users).isdisjoint(peers):
                path = self.path(home, conversion + ENDINGS[conversion.split("_")[0]])
                if not path.exists():
                    print(f"{home}: converting to {conversion}", file=sys.stderr, flush=True)
                    # Standard output is for the table.
                    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(), torch.no_grad():
                        warnings.simplefilter("ignore")
                        getattr(self, f"to_{conversion}")(source, path)
                work[conversion] = str(path)
        work["description"] = str(self.path("work.json"))
        Path(work["description"]).write_text(json.dumps(work))
        return work

    def layer(self, case, work):
        b, s, hidden, heads = case.shape
        torch.manual_seed(0)
        layer = torch.nn.MultiheadAttention(hidden, heads, batch_first=True).eval()
        xs = torch.randn(b, s, hidden)
        inputs, drop = {"query": xs}, None
        if case.ragged:
            lengths = ragged_lengths()
            keep = torch.arange(s)[None] < lengths[:, None]
            inputs = {"query": xs[keep].contiguous(), "lengths": lengths, "padded": xs, "keep": keep.to(torch.uint8)}
            drop = ~keep
        work |= {"weights": str(self.path("layer.safetensors")), "input": str(self.path("in.safetensors")), "heads": heads}
        save_file(layer.state_dict(), work["weights"])
        save_file(inputs, work["input"])
        return SelfAttention(layer, drop), (xs,)

    def encoder(self, case, work):
        folder = self.model_folder(case.model)
        work["folder"] = str(folder)
        if case.kind == "sentences":
            work["texts"] = str(SENTENCES)
        else:
            torch.manual_seed(2)
            work["input"] = str(self.path("in.safetensors"))
            save_file({"ids": torch.randint(1000, 20000, case.shape)}, work["input"])
        return folder, None

    def model_folder(self, model):
        """MiniLM as published; the others with random weights."""
        import transformers

        if model == MINILM:
            return self.minilm
        made = {
            BERT: (transformers.BertModel, transformers.BertConfig),
            MODERNBERT: (transformers.ModernBertModel, transformers.ModernBertConfig),
        }
        folder = self.path(model, "model")
        if not folder.exists():
            torch.manual_seed(3)
            kind, config = made[model]
            kind(config()).save_pretrained(folder)
        return folder

    def to_onnx(self, source, path):
        module, inputs, axes = self.module(source, "eager")
        names = list(axes) or ["xs"]
        with without_fast_path():
            torch.onnx.export(
                module,
                inputs,
                path,
                input_names=names,
                output_names=["output"],
                dynamic_axes=axes or None,
                dynamo=False,
                opset_version=17,
            )

    def to_openvino(self, source, path):
        import openvino

        module, inputs, axes = self.module(source, "sdpa")
        with without_fast_path():
            if axes:
                examples = dict(zip(axes, inputs))
                model = openvino.convert_model(module, example_input=examples, input=[(name, [-1, -1]) for name in axes])
            else:
                model = openvino.convert_model(module, example_input=inputs[0], input=list(inputs[0].shape))
        openvino.save_model(model, path, compress_to_fp16=False)

    def to_onnx_int8(self, source, path):
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(path.with_name("onnx.onnx"), path, weight_type=QuantType.QInt8, per_channel=True)

    def to_openvino_int8(self, source, path):
        import nncf
        import openvino

        model = openvino.Core().read_model(path.with_name("openvino.xml"))
        samples = nncf.Dataset(calibration(source[0]))
        model = nncf.quantize(model, samples, subset_size=CALIBRATION, model_type=nncf.ModelType.TRANSFORMER)
        openvino.save_model(model, path, compress_to_fp16=False)

    def to_gguf_q8_0(self, source, path):
        import gguf_file

        gguf_file.write(source[0], path, "Q8_0")

    def to_gguf_q4_0(self, source, path):
        import gguf_file

        gguf_file.write(source[0], path, "Q4_0")

    @staticmethod
    def module(source, attention):
        """The module to convert, an input, and the names of its axes that any size fits."""
        first, inputs = source
        if inputs is not None:
            return first, inputs, {}
        ids = torch.randint(1000, 20000, (2, 24))
        mask = torch.ones_like(ids)
        mask[1, 20:] = 0
        axes = {0: "batch", 1: "tokens"}
        return HiddenStates(first, attention), (ids, mask), {"input_ids": axes, "attention_mask": axes}


@contextlib.contextmanager
def without_fast_path():
    """PyTorch's fast path for layers cannot be exported."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def calibration(folder):
    """Token ids and masks: of texts if the model has a tokenizer, else random ones."""
    torch.manual_seed(4)
    if (folder / "tokenizer.json").exists():
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        texts = SENTENCES.read_text().splitlines()
        texts = texts[:: len(texts) // CALIBRATION][:CALIBRATION]
        batches = [torch.tensor([encoding.ids]) for encoding in tokenizer.encode_batch(texts)]
    else:
        batches = [torch.randint(1000, 20000, (1, 64)) for _ in range(CALIBRATION)]
    return [{"input_ids": ids.numpy(), "attention_mask": torch.ones_like(ids).numpy()} for ids in batches]
