"""A tiny GTE with the configuration of GTE's own code (`model_type` "new"), and what it answers.

Writes ../fixtures/encoders/new_<scaling>/ with the files that encoders.py describes. That code is published beside the
checkpoints (Alibaba-NLP/new-impl) and does not run with this version of transformers. Its model is transformers'
`GteModel` with other config keys and NTK-aware scaling of the rotation (https://kexue.fm/archives/9706): the frequencies
are computed here by its formulas and put into transformers' model.

new_mlm/ has the head of `NewForMaskedLM`, which is transformers' `GteForMaskedLM` but for its activation, `hidden_act`
(there always GELU), and its prefix.

Made with torch 2.15.0, transformers 5.23.0 (stored in the metadata).
Re-run:  python tests/golden/gte_own.py
"""

import json
import shutil

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from transformers.models.gte import modeling_gte

from common import save
from encoders import OUT, TINY, answer, batch, randomise

THETA = 50.0
SCALINGS = {
    "new_ntk": {"type": "ntk", "factor": 3.0},
    "new_mixed_ntk": {"type": "ntk", "factor": 3.0, "mixed_b": 0.7},
    "new": None,
}
# Keys of the configuration of GTE's own code that transformers' does not have.
OWN = {
    "model_type": "new", "architectures": ["NewModel"], "position_embedding_type": "rope", "rope_theta": THETA,
    "layer_norm_type": "layer_norm", "pack_qkv": True, "unpad_inputs": False, "use_memory_efficient_attention": False,
    "logn_attention_scale": False, "logn_attention_clip1": False,
}


def frequencies(dim, scaling):
    """NTKScalingRotaryEmbedding of GTE's own code."""
    base = THETA
    if scaling and "mixed_b" not in scaling:
        base *= scaling["factor"]
    inverse = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
    if not scaling:
        return inverse
    if "mixed_b" not in scaling:
        return inverse / scaling["factor"] ** (2 / dim)
    a = torch.tensor(scaling["factor"]).log() / (dim / 2) ** scaling["mixed_b"]
    return inverse / (a * torch.arange(1, dim // 2 + 1).float() ** scaling["mixed_b"]).exp()


def write_keys(path, scaling, **more):
    keys = json.loads(path.read_text())
    del keys["rope_parameters"]
    path.write_text(json.dumps(keys | OWN | {"rope_scaling": scaling} | more, indent=2) + "\n")


def masked_lm():
    torch.manual_seed(7)
    config = tf.GteConfig(**TINY, hidden_act="relu", rope_parameters={"rope_type": "default", "rope_theta": THETA})
    config._attn_implementation = "eager"
    model = randomise(tf.GteForMaskedLM(config))
    shutil.rmtree(OUT / "new_mlm", ignore_errors=True)
    model.save_pretrained(OUT / "new_mlm")
    write_keys(OUT / "new_mlm" / "config.json", None, architectures=["NewForMaskedLM"])
    path = OUT / "new_mlm" / "model.safetensors"
    own = {("new." + k.removeprefix("gte.") if k.startswith("gte.") else k): v for k, v in load_file(path).items()}
    save_file(own, path, {"format": "pt"})
    modeling_gte.gelu = torch.relu
    values, mask = batch(config, "zeros")
    key, values[key] = answer(model, values["ids"], mask, values["types"])
    values = {k: v.long() if k != key else v.contiguous() for k, v in values.items()}
    save("encoders/new_mlm/golden.safetensors", values, ["torch", "transformers"],
         "GteForMaskedLM with the activation of GTE's own code, random, on random token ids", framework="torch")


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    masked_lm()
    answers = []
    for name, scaling in SCALINGS.items():
        torch.manual_seed(7)
        # Heads of four numbers: two frequencies, which differ between the scalings.
        sizes = TINY | dict(layer_norm_eps=1e-3)
        config = tf.GteConfig(**sizes, rope_parameters={"rope_type": "default", "rope_theta": THETA})
        config._attn_implementation = "eager"
        model = randomise(tf.GteModel(config))
        model.rotary_emb.inv_freq = frequencies(sizes["hidden_size"] // sizes["num_attention_heads"], scaling)
        shutil.rmtree(OUT / name, ignore_errors=True)
        model.save_pretrained(OUT / name)
        write_keys(OUT / name / "config.json", scaling)

        values, mask = batch(config, "zeros")
        key, values[key] = answer(model, values["ids"], mask, values["types"])
        answers.append(values[key])
        values = {k: v.long() if k != key else v.contiguous() for k, v in values.items()}
        save(f"encoders/{name}/golden.safetensors", values, ["torch", "transformers"],
             "GteModel with the frequencies of GTE's own code, random, on random token ids", framework="torch")
    for i, one in enumerate(answers):
        for other in answers[:i]:
            assert (one - other).abs().max() > 1e-3


if __name__ == "__main__":
    main()
