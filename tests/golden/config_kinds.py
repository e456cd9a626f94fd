"""Configuration keys that are null, absent or of another JSON kind, in tiny models of two layers.

Writes ../fixtures/config_kinds.json: `cases`, each with the keys beside those of `base`, and what transformers makes of
them for each model type: null where it cannot make or run the model; else the number of its entry in `rotations`
(frequencies and factor, per kind of layer), and how many tokens before and after itself, of 12, query 6 sees per layer.

Made with transformers 5.23.0.
Re-run:  python tests/golden/config_kinds.py
"""

import copy
import json

import torch
import transformers
from transformers import AutoModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from common import FIXTURES

transformers.utils.logging.set_verbosity_error()
BASE = {"vocab_size": 20, "hidden_size": 64, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
OWN = {
    "gemma3_text": {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
    "mistral": {"sliding_window": None}, "qwen3": {"head_dim": 32}, "gpt_oss": {"head_dim": 32, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    "modernbert": {"local_attention": 8, "cls_token_id": 1, "sep_token_id": 2},
    "deepseek_v3": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
                    "first_k_dense_replace": 2, "n_routed_experts": 2, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1},
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0 + i for i in range(16)], "long_factor": [2.0 + i for i in range(16)],
        "original_max_position_embeddings": 16, "rope_theta": 10000.0, "factor": 4.0}
ABSENT = object()


def without(keys):
    return {key: value for key, value in keys.items() if value is not ABSENT}


def sets():
    for value in (3, None, False, ["yarn"], ABSENT, "default"):
        yield YARN | {"rope_type": value}
        yield YARN | {"rope_type": value, "type": "yarn"}
    for value in (3, None, False, ["yarn"]):
        yield YARN | {"rope_type": ABSENT, "type": value}
    yield YARN | {"type": None}
    for value in (None, 0, 1, False, True, "", "false", [], ABSENT):
        yield YARN | {"truncate": value}
    for key in ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale", "rope_theta"):
        for value in (None, ABSENT, "4"):
            yield YARN | {key: value}
    yield YARN | {"mscale": None, "mscale_all_dim": 1.0}
    for key in ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "rope_theta"):
        for value in (None, ABSENT, "4"):
            yield LLAMA3 | {key: value}
    for kind in ("linear", "dynamic"):
        for value in (2.0, None, ABSENT, "2"):
            yield {"rope_type": kind, "factor": value, "rope_theta": 10000.0}
    for value in (None, ABSENT, "1", [1.0] * 15 + [None], ["1.0"] * 16):
        yield LONG | {"short_factor": value}
        yield LONG | {"long_factor": value}
    yield {"rope_type": "default", "rope_theta": None}
    yield {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": None}


def cases():
    for model_type in ("llama", "qwen3", "mistral", "gpt_oss", "deepseek_v3"):
        for keys in sets():
            yield model_type, {"rope_parameters": without(keys)}
        yield model_type, {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": None}
    for keys in ({}, {"rope_theta": None}, {"rope_scaling": None}, {"rope_scaling": False}, {"rope_scaling": {}}, {"rope_scaling": "yarn"},
                 {"rope_parameters": None}, {"rope_parameters": []}, {"partial_rotary_factor": None},
                 {"is_causal": None}, {"is_causal": False}, {"is_causal": True}):
        for model_type in ("llama", "qwen3", "mistral", "deepseek_v3"):
            yield model_type, keys
    kinds = ["full_attention", "sliding_attention"]
    for value in (kinds, "sliding_attention", [0, 1], ["sliding_attention", None], [None, "sliding_attention"], None, False, {}, [], [True, True]):
        for model_type in ("llama", "qwen3", "mistral", "gemma3_text", "gpt_oss", "modernbert", "deepseek_v3"):
            keys = {"use_sliding_window": True} if model_type == "qwen3" else {}
            keys |= {"sliding_window": 4} if model_type != "modernbert" else {}
            yield model_type, {"layer_types": value} | keys
    plain = {"rope_type": "default", "rope_theta": 500.0}
    for full in (YARN, YARN | {"truncate": False}, YARN | {"rope_type": None}, YARN | {"rope_theta": None}, [1], YARN | {"factor": None}):
        for beside in ({}, {"truncate": False}, {"truncate": None}):
            yield "gemma3_text", {"rope_parameters": {"full_attention": full, "sliding_attention": plain} | beside}
    for key in ("rope_theta", "rope_local_base_freq", "attn_logit_softcapping", "query_pre_attn_scalar", "sliding_window", "use_bidirectional_attention"):
        for value in (None, "4", [4]):
            yield "gemma3_text", {key: value}
    for key in ("global_rope_theta", "local_rope_theta", "local_attention", "global_attn_every_n_layers", "is_causal"):
        for value in (None, "4"):
            if (key, value) != ("is_causal", "4"):
                yield "modernbert", {key: value}
    for value in (None, "0.5", 0.5):
        yield "phi", {"partial_rotary_factor": value}
        yield "phi", {"rope_parameters": plain | {"partial_rotary_factor": value}}
        yield "stablelm", {"partial_rotary_factor": value}


def frequencies(model):
    """`{kind of layer: [inverse frequencies, factor]}` of the module that rotates."""
    rotary = next(module for name, module in model.named_modules() if name.endswith("rotary_emb"))
    names = {name.removesuffix("inv_freq"): buffer for name, buffer in rotary.named_buffers() if name.endswith("inv_freq") and "original" not in name}
    return {name.rstrip("_"): [buffer.tolist(), float(getattr(rotary, f"{name}attention_scaling", None) or rotary.attention_scaling)]
            for name, buffer in names.items()}


def run(model_type, keys):
    config = BASE | OWN.get(model_type, {}) | copy.deepcopy(keys)
    try:
        config = CONFIG_MAPPING[model_type].from_dict(config)
        config._attn_implementation = "eager"
        torch.manual_seed(0)
        model = AutoModel.from_config(config).eval()
        with torch.no_grad():
            weights = model(torch.arange(1, 13)[None], output_attentions=True).attentions
            assert all(w.isfinite().all() for w in weights)
        # How many tokens the query at place 6 sees before and after itself.
        seen = [[row.nonzero().flatten().tolist() for row in w[0, 0, 6:7]][0] for w in weights]
        sees = [[6 - min(places), max(places) - 6] for places in seen]
        return {"frequencies": frequencies(model), "sees": sees}
    except Exception as error:
        print(model_type, json.dumps(keys)[:110], type(error).__name__, str(error).replace("\n", " ")[:60])
        return None


def main():
    found, shared = {}, []
    for model_type, keys in cases():
        result = run(model_type, keys)
        if result:
            rotation = {kind: [[float(f"{x:.6g}") for x in values], round(factor, 7)] for kind, (values, factor) in result["frequencies"].items()}
            if rotation not in shared:
                shared.append(rotation)
            result = {"rotation": shared.index(rotation), "sees": result["sees"]}
        found.setdefault(json.dumps(keys), {})[model_type] = result
    types = sorted({model_type for models in found.values() for model_type in models})
    base = ",\n".join(f"{json.dumps(name)}: {json.dumps(BASE | OWN.get(name, {}))}" for name in types)
    cases_ = ",\n".join(f'{{"keys": {keys}, "models": {json.dumps(models)}}}' for keys, models in found.items())
    rotations = ",\n".join(map(json.dumps, shared))
    text = f'{{"base": {{\n{base}}},\n"rotations": [\n{rotations}],\n"cases": [\n{cases_}]}}\n'
    (FIXTURES / "config_kinds.json").write_text(text)


if __name__ == "__main__":
    main()
