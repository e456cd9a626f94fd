"""Golden values of attention under masks that are an `or`: images in Gemma 3, prompts in PaliGemma.

Writes tests/fixtures/masks_or.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/masks_or.py

Each model is tiny and random, and gets token ids in place of images: its mask follows from
`token_type_ids` alone. Hooks catch what goes into and out of the attention of the text's layers.
    gemma3     a sliding and a full layer: causal, but the tokens of one image see each other
    paligemma  one full layer: the prompt sees itself, what follows is causal
`<model>.layers.<i>.self_attn.*` are the weights as `save_pretrained` names them, `<model>.types`
the `token_type_ids` i64 (b, s), `<model>.<i>.input` and `.output` (b, s, hidden). The metadata
`<model>` is the section `text_config` of the saved config.json.
"""

import torch
import transformers as tf

from common import save

TEXT = dict(hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=8,
            num_hidden_layers=1, vocab_size=13)
VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=4,
              patch_size=2)
# Two images of 4 and 3 tokens in the first sequence, one of 4 at its end in the second.
IMAGES = [[0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]]
# PaliGemma's type 0 is the prefix.
PREFIX = [[0] * 6 + [1] * 5, [0] * 2 + [1] * 9]


def run(tensors, metadata, name, model, types):
    for _, p in sorted(model.named_parameters()):
        p.data.normal_(0.0, 0.3).add_(1.0 if bool((p == 1).all()) else 0.0)
    model.eval()
    text = model.model.language_model
    types, ids = torch.tensor(types), torch.randint(0, TEXT["vocab_size"], (2, 11))

    def outputs(**kwargs):
        caught, hooks = {}, []
        for i, layer in enumerate(text.layers):
            def before(_m, args, kwargs, i=i):
                caught[f"{name}.{i}.input"] = kwargs["hidden_states"].clone()

            def after(_m, _args, out, i=i):
                caught[f"{name}.{i}.output"] = out[0].clone()

            hooks += [layer.self_attn.register_forward_pre_hook(before, with_kwargs=True),
                      layer.self_attn.register_forward_hook(after)]
        model(input_ids=ids, attention_mask=torch.ones_like(ids), **kwargs)
        for hook in hooks:
            hook.remove()
        return caught

    caught = outputs(token_type_ids=types)
    other = outputs(token_type_ids=torch.full_like(types, types[0, -1]))
    assert all((caught[key] - other[key]).abs().max() > 1e-2 for key in caught if "output" in key)
    tensors.update(caught)
    tensors[f"{name}.types"] = types
    for key, p in sorted(text.named_parameters()):
        if ".self_attn." in key:
            tensors[f"{name}.{key}"] = p.detach().clone()
    metadata[name] = model.config.text_config.to_json_string(use_diff=False)


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(43)
    tensors, metadata = {}, {}
    vision = tf.SiglipVisionConfig(**VISION)
    rope = dict(sliding_attention=dict(rope_type="default", rope_theta=10.0),
                full_attention=dict(rope_type="linear", rope_theta=100.0, factor=8.0))
    text = tf.Gemma3TextConfig(**TEXT | dict(num_hidden_layers=2), sliding_window=3, rope_parameters=rope,
                               layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=5)
    config = tf.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_id=12,
                             attn_implementation="eager")
    run(tensors, metadata, "gemma3", tf.Gemma3ForConditionalGeneration(config), IMAGES)
    config = tf.PaliGemmaConfig(text_config=tf.GemmaConfig(**TEXT), vision_config=vision, image_token_id=12,
                                projection_dim=24, attn_implementation="eager")
    run(tensors, metadata, "paligemma", tf.PaliGemmaForConditionalGeneration(config), PREFIX)
    save("masks_or.safetensors", tensors, ["torch", "transformers", "safetensors"],
         "text attention of models whose tokens of one image or prompt see each other", framework="torch",
         **metadata)


if __name__ == "__main__":
    main()
