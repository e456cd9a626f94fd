"""Whether transformers computes what examples/gpt.rs computed with the model that it trained and wrote.

Run:  cargo run --release --example gpt -- benches/peers/sentences.txt target/gpt --logits target/gpt.safetensors
      python tests/golden/gpt_check.py target/gpt target/gpt.safetensors

Checks that every tensor is used, and prints the largest absolute difference of the logits. Writes nothing.
"""

import sys

import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel

folder, logits = sys.argv[1:]
model, loading = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
problems = {name: keys for name, keys in loading.items() if keys}
assert not problems, problems
ours = load_file(logits)
with torch.no_grad():
    theirs = model.eval()(ours["ids"].long()).logits
difference = (theirs - ours["logits"]).abs().max().item()
print(f"{tuple(theirs.shape)} logits differ by at most {difference:.1e}; the largest is {theirs.abs().max().item():.1f}")
assert difference < 1e-4, "they differ"
