"""Writes the transformer of a model folder as ONNX, for compare.mjs: hidden states of token ids and their mask.

    python integrations/wasm/bench/export.py MODEL_FOLDER MODEL.onnx

Requires torch, transformers and onnx.
"""

import sys

import torch
import transformers

if len(sys.argv) != 3:
    sys.exit("expected MODEL_FOLDER MODEL.onnx")
folder, path = sys.argv[1:]
model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


class HiddenStates(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


names = ["input_ids", "attention_mask"]
ids = torch.full((2, 8), 5)
axes = {name: {0: "texts", 1: "tokens"} for name in [*names, "hidden_states"]}
torch.onnx.export(
    HiddenStates(),
    (ids, torch.ones_like(ids)),
    path,
    input_names=names,
    output_names=["hidden_states"],
    dynamic_axes=axes,
    dynamo=False,
    opset_version=17,
)
