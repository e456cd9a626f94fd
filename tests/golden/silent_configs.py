"""Tiny models whose `config.json` is silent, or states keys that few files have: what their classes make of them.

`save_pretrained` fills in everything, so that the files of model_types.py never show a default that a class computes.
Here the configuration of a tiny model loses or gains keys before its class reads it, and is written as it was then.
Writes ../fixtures/silent_configs.safetensors: for each case the bytes of a file as model_types.py writes them.

Made with torch 2.15.0, transformers 5.24.0.
Re-run:  python tests/golden/silent_configs.py
"""

import copy
import json
import zlib

import torch
import transformers as tf
from safetensors.torch import save, save_file

import model_types as walk
import model_types_tiny as tiny
from common import FIXTURES

DELETE = tiny.DELETE
FULL, WINDOW = "full_attention", "sliding_attention"
UNSTATED = {"layer_types": DELETE, "num_hidden_layers": 4}
# Each case: the class, and the keys that its configuration loses or gains.
CASES = {
    # A dense layer without a window is rotated; the pattern begins after the first dense layers.
    "cohere2_moe+dense": ("Cohere2MoeModel", {"layer_types": [FULL, FULL], "mlp_layer_types": ["dense", "sparse"],
                                              "num_hidden_layers": 2, "prefix_dense_intermediate_size": 16}),
    "cohere2_moe+first": ("Cohere2MoeModel", UNSTATED | {
        "mlp_layer_types": DELETE, "first_k_dense_replace": 1, "sliding_window_pattern": 3, "sliding_window": 3,
        "prefix_dense_intermediate_size": 16}),
    "cohere2_moe+pattern": ("Cohere2MoeModel", UNSTATED | {
        "mlp_layer_types": DELETE, "first_k_dense_replace": 2, "prefix_dense_sliding_window_pattern": 2,
        "sliding_window_pattern": 2, "sliding_window": 3, "prefix_dense_intermediate_size": 16}),
    "embedding_gemma2_text+pattern": ("EmbeddingGemma2TextModel", UNSTATED | {
        "per_layer_config": DELETE, "sliding_window_pattern": 2, "num_global_key_value_heads": 1, "global_head_dim": 16}),
    "molmo2_text+layers": ("Molmo2TextModel", {
        "rope_scaling_layers": [1], "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 4.0}}),
    "modernbert-decoder+window": ("ModernBertDecoderModel", {"sliding_window": 3, "layer_types": [WINDOW, FULL]}),
    "ultrabert+listed": ("UltrabertModel", UNSTATED | {
        "rope_parameters": DELETE, "attention_windows": [2, None, 2, None], "rope_theta": [7.0, 50.0, 9.0, 90.0]}),
    "ultrabert+silent": ("UltrabertModel", UNSTATED | {"rope_parameters": DELETE, "sliding_window": 2}),
    "xlm+causal": ("XLMModel", {"causal": True}),
    "ministral3+outer": ("Ministral3Model", {"original_max_position_embeddings": 3}),
    "bart+heads": ("BartModel", {"decoder_attention_heads": DELETE, "encoder_attention_heads": 2, "d_model": 32}),
    "clip_text_model+flat": ("CLIPTextModel", {}),
    "llama4_text+both": ("Llama4TextModel", {"is_causal": False, "attention_chunk_size": 3}),
    "sam3_vit_model+theta": ("Sam3ViTModel", {"rope_parameters.rope_theta": DELETE, "rope_theta": 7.0}),
    "t5gemma+silent": ("T5GemmaModel", {"decoder.is_decoder": DELETE}),
    "kosmos-2+both": ("Kosmos2Model", {"text_config.is_causal": False}),
    # The rest was found by flip_keys.py. A factor on the base counts in a dynamic rotation alone.
    "hunyuan_v1_dense+untyped": ("HunYuanDenseV1Model", {"rope_parameters.rope_type": DELETE}),
    # A rotation without a base does not have the base of a silent file.
    "ministral3+base": ("Ministral3Model", {"rope_parameters.rope_theta": DELETE}),
    "higgs_audio_v2+base": ("HiggsAudioV2Model", {"rope_parameters.rope_theta": DELETE}),
    "muse_spark_text+base": ("MuseSparkTextModel", {"rope_parameters.rope_theta": DELETE}),
    "blt_patcher+silent": ("BltPatcher", {"rope_parameters": DELETE}),
    "videoprism_text_model+silent": ("VideoPrismTextModel", {"attn_logit_softcapping": DELETE}),
    "step3p5+scale": ("Step3p7TextModel", {"query_pre_attn_scalar": DELETE}),
    "hy_v4_vl_text+eps": ("HYV4VLTextModel", {"rms_norm_eps": 0.5}),
    "pp_formulanet_text+heads": ("PPFormulaNetTextModel", {"decoder_attention_heads": 8}),
}


def make(name):
    model_type, _, what = name.partition("+")
    cls, changes = CASES[name]
    tiny.NAME = model_type
    for variant in tiny.VARIANTS:
        try:
            torch.manual_seed(zlib.crc32(name.encode()))
            config = walk.tiny_config(model_type, variant, model_type)
            raw = json.loads(config.to_json_string(use_diff=False))
            tiny.set_keys(raw, changes)
            config = type(config).from_dict(copy.deepcopy(raw))
            config._attn_implementation = "eager"
            model = walk.build(getattr(tf, cls), config)
            got = walk.one(name, type(model), variant, model)
        except Exception as e:
            print(name, variant, type(e).__name__, str(e)[:300])
            continue
        tensors, _, cases = got["file"]
        if got["missing"] == 0 and cases:
            break
        print(name, variant, got["not_run"], got["problems"][:2])
    if what == "flat":
        raw["model_type"] = "clip"
    metadata = {"config": json.dumps(raw), "cases": json.dumps(cases)}
    print(f"{name:30} {len(cases)} layers")
    return save({k: v.contiguous().clone() for k, v in tensors.items()}, metadata=metadata)


def main():
    files = {name: torch.frombuffer(bytearray(make(name)), dtype=torch.uint8) for name in CASES}
    metadata = {"torch": torch.__version__, "transformers": tf.__version__}
    save_file(files, FIXTURES / "silent_configs.safetensors", metadata=metadata)


if __name__ == "__main__":
    main()
