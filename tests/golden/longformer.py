"""Golden values of windows with global tokens: a layer of Longformer and one of LED's encoder.

Writes tests/fixtures/longformer.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/longformer.py

Each model is tiny and random. Hooks catch what goes into and out of its first layer of attention, for sequences with
padding and other global tokens in each:
    none      no token is global
    one       the first of each sequence
    several   none in one sequence, several of the others, one of which is padding
`<model>.<case>.input` and `.output` are (b, s, hidden), `.real` and `.global` the two masks i64 (b, s): only the output
of real tokens counts. `<prefix>.*` are the weights as `save_pretrained` names them. The metadata `<model>` is the saved
config.json, `<model>.prefix` the prefix of the layer.
"""

import json

import torch
import transformers as tf

from common import save

S = 12
LENGTHS = [12, 9, 12]
GLOBAL = {"none": [[], [], []], "one": [[0]] * 3, "several": [[], [0, 1, 10], [3, 7, 11]]}


def run(tensors, metadata, name, model, attention, prefix, inside):
    for _, p in sorted(model.named_parameters()):
        p.data.normal_(0.0, 0.4).add_(1.0 if bool((p == 1).all()) else 0.0)
    model.eval()
    caught = {}
    inside.register_forward_pre_hook(
        lambda _m, args, kwargs: caught.update(input=(args[0] if args else kwargs["hidden_states"]).clone()),
        with_kwargs=True)
    attention.register_forward_hook(lambda _m, _args, out: caught.update(output=out.clone()))
    for case, places in GLOBAL.items():
        ids = torch.randint(2, 40, (3, S))
        real = (torch.arange(S)[None] < torch.tensor(LENGTHS)[:, None]).long()
        is_global = torch.zeros_like(ids)
        for row, places_of_row in enumerate(places):
            is_global[row, places_of_row] = 1
        more = dict(decoder_input_ids=ids[:, :2]) if name == "led" else {}
        model(input_ids=ids, attention_mask=real, global_attention_mask=is_global, **more)
        tensors |= {f"{name}.{case}.{part}": t for part, t in caught.items()}
        tensors |= {f"{name}.{case}.real": real, f"{name}.{case}.global": is_global}
    for key, p in sorted(model.named_parameters()):
        if key.startswith(f"{prefix}."):
            tensors[f"{name}.{key}"] = p.detach().clone()
    metadata[name] = json.dumps(model.config.to_dict() | {"architectures": None})
    metadata[f"{name}.prefix"] = f"{name}.{prefix}"


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(52)
    tensors, metadata = {}, {}
    config = tf.LongformerConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8,
                                 vocab_size=40, attention_window=[4], pad_token_id=1, max_position_embeddings=32)
    model = tf.LongformerModel(config, add_pooling_layer=False)
    layer = model.encoder.layer[0].attention
    run(tensors, metadata, "longformer", model, layer.output.dense, "encoder.layer.0.attention", layer.self)
    config = tf.LEDConfig(d_model=16, encoder_attention_heads=2, decoder_attention_heads=2, encoder_layers=1,
                          decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=40, attention_window=6,
                          max_encoder_position_embeddings=32, max_decoder_position_embeddings=32)
    model = tf.LEDModel(config)
    layer = model.encoder.layers[0].self_attn
    run(tensors, metadata, "led", model, layer.output, "encoder.layers.0.self_attn", layer)
    save("longformer.safetensors", tensors, ["torch", "transformers"], "windows with global tokens", framework="torch",
         **metadata)


if __name__ == "__main__":
    main()
