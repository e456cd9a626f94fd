"""Two tiny models for the examples that compose the layer, and what transformers makes of them.

Writes below ../fixtures/compose
    llama/   a LlamaForCausalLM of 2 layers, as `save_pretrained` writes it (config.json, model.safetensors) and
             golden.safetensors: `prompt` i64 (1, 7); `logits` f32 (1, 7, vocabulary) of the prompt; `generated`
             i64 (16), what follows greedily; `last_logits` f32 (vocabulary), from which the last of these was chosen
    vit/     a ViTModel of 1 layer, and golden.safetensors: `pixels` f32 (2, 3, 12, 12); `embedded` f32 (2, 10, 24),
             what goes into the layer; `output` of the layer, before the model's last norm

Weights are normal with std 0.3, what starts as ones is 1 + normal. Every token is chosen by a clear margin.

Made with torch 2.15.0, transformers 5.23.0 (stored in the metadata).
Re-run:  python tests/golden/compose.py
"""

import tempfile
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import load_file

from common import FIXTURES, save

PACKAGES = ["torch", "transformers"]


def randomise(model):
    for _, p in sorted(model.named_parameters()):
        p.data.normal_(0.0, 0.3).add_(1.0 if bool((p == 1).all()) else 0.0)
    return model.eval()


def write(model, name):
    """The folder as transformers writes it, without what only its own `generate` reads."""
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        folder = FIXTURES / "compose" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text((Path(d) / "config.json").read_text())
        save(f"compose/{name}/model.safetensors", load_file(Path(d) / "model.safetensors"), PACKAGES,
             f"a tiny random {type(model).__name__}", framework="torch", format="pt")


def llama():
    model = tf.LlamaForCausalLM(tf.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=True, attn_implementation="eager"))
    # One head for both ends; wide enough that no token is chosen by a hair.
    randomise(model).model.embed_tokens.weight.data.mul_(3.0)
    prompt = torch.tensor([[5, 61, 17, 2, 40, 33, 8]])
    ids, steps = prompt, []
    for _ in range(16):
        logits = model(ids).logits
        steps.append(logits[0, -1])
        best = steps[-1].topk(2).values
        assert best[0] - best[1] > 1e-2, "chosen by a hair"
        ids = torch.cat([ids, steps[-1].argmax().reshape(1, 1)], 1)
    cached = model.generate(prompt, max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert (cached == ids).all(), "the library's own cache gives other tokens"
    generated = ids[0, prompt.shape[1]:]
    assert len(set(generated.tolist())) > 6, f"monotonous: {generated.tolist()}"
    write(model, "llama")
    save("compose/llama/golden.safetensors",
         {"prompt": prompt, "logits": model(prompt).logits, "generated": generated, "last_logits": steps[-1]},
         PACKAGES, "LlamaForCausalLM on a prompt, and greedily on", framework="torch")


def vit():
    model = tf.ViTModel(tf.ViTConfig(
        hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=3, image_size=12, patch_size=4,
        attn_implementation="eager"), add_pooling_layer=False)
    randomise(model)
    pixels = torch.randn(2, 3, 12, 12)
    caught = {}
    layers = [m for m in model.modules() if type(m).__name__ == "ViTLayer"]
    layers[0].register_forward_hook(lambda _m, args, out: caught.update(embedded=args[0], output=out))
    states = model(pixels)
    output = caught["output"][0] if isinstance(caught["output"], tuple) else caught["output"]
    assert output.shape == states.last_hidden_state.shape == (2, 10, 24)
    write(model, "vit")
    save("compose/vit/golden.safetensors",
         {"pixels": pixels, "embedded": caught["embedded"].contiguous(), "output": output.contiguous()},
         PACKAGES, "ViTModel: its embeddings and its layer", framework="torch")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.disable_progress_bar()
    for seed, make in [(10, llama), (12, vit)]:
        torch.manual_seed(seed)
        make()
