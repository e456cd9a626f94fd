"""Attention layers of tiny random models, under the names their libraries save them with.

Writes ../fixtures/layouts.safetensors. For every family F it holds
    F.<saved name>   the weights under the attention prefix, as `save_pretrained` writes them
    F.input          hidden states given to the attention module (b, s, dim)
    F.key            only for cross attention: the states that keys and values are made from
    F.mask           only with padding: u8 (b, s), 1 = attend
    F.output         output of the attention's output projection, before dropout,
                     residual and LayerNorm
The metadata key `families` is a JSON object F -> {prefix, heads, kv_heads, head_dim, causal}.

All weights are random (normal, std 0.2, biases too) and the attention is the eager one.
MPNet is run without its relative position bias, Llama and Mistral with the rotary
embedding set to the identity.

Made with torch 2.15.0, transformers 5.24.0, timm 1.0.31, diffusers 0.42.1 (stored in the metadata).
Re-run:  python tests/golden/layouts.py
"""

import json
import tempfile
from pathlib import Path

import timm
import torch
import transformers as tf
from diffusers.models.attention_processor import Attention
from safetensors.torch import load_file

from common import save

B = 2  # batch size of every input

torch.set_num_threads(1)
tf.utils.logging.disable_progress_bar()
tensors, families = {}, {}


def additive(allowed):
    """A boolean mask (True = attend) as the eager attention wants it."""
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


def randomise(model):
    # In order of the names, so that the values do not depend on how modules are built.
    for _, p in sorted(model.named_parameters()):
        p.data.normal_(0.0, 0.2)
    return model.eval()


def saved_weights(model):
    """The state dict under the names that are published."""
    if not hasattr(model, "save_pretrained"):
        return {k: v.clone() for k, v in model.state_dict().items()}  # timm
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        return load_file(Path(d) / "model.safetensors")


def record(name, model, attn, proj, prefix, dim, heads, s, *, kv_heads=None, head_dim=None,
           causal=False, padded=False, key_len=None, key_name="key_value_states", **kwargs):
    """Runs `attn` once and stores its weights, input and output as family `name`."""
    x = torch.randn(B, s, dim)
    tensors[f"{name}.input"] = x
    if key_len:
        kwargs[key_name] = tensors[f"{name}.key"] = torch.randn(B, key_len, dim)
    if padded:  # right padding on the last row
        mask = torch.ones(B, s, dtype=torch.bool)
        mask[-1, s - 2:] = False
        tensors[f"{name}.mask"] = mask.to(torch.uint8)
        kwargs["attention_mask"] = additive(mask[:, None, None, :])
    if causal:
        kwargs["attention_mask"] = additive(torch.ones(B, 1, s, s, dtype=torch.bool).tril())

    out = {}
    hook = proj.register_forward_hook(lambda _m, _i, y: out.update(y=y))
    with torch.no_grad():
        attn(x, **kwargs)
    hook.remove()
    tensors[f"{name}.output"] = out["y"]

    weights = {k: v for k, v in saved_weights(model).items() if k.startswith(prefix + ".")}
    assert len(weights) >= 4, f"{name}: nothing saved under {prefix}"
    tensors.update({f"{name}.{k}": v for k, v in weights.items()})
    families[name] = dict(prefix=prefix, heads=heads, kv_heads=kv_heads or heads,
                          head_dim=head_dim or dim // heads, causal=int(causal))


def seed(n):
    torch.manual_seed(1000 + n)


EAGER = dict(attn_implementation="eager")

# --- text encoders of the BERT kind ---------------------------------------------------
for n, (name, config, cls, dim, heads, s, padded) in enumerate([
    ("bert", tf.BertConfig, tf.BertModel, 24, 3, 7, True),
    ("roberta", tf.RobertaConfig, tf.RobertaModel, 28, 4, 6, False),
    ("electra", tf.ElectraConfig, tf.ElectraModel, 30, 5, 5, False),
]):
    seed(n)
    model = randomise(cls(config(hidden_size=dim, num_attention_heads=heads, num_hidden_layers=1,
                                 intermediate_size=8, vocab_size=9, embedding_size=8, **EAGER)))
    attn = model.encoder.layer[0].attention
    record(name, model, attn, attn.output.dense, "encoder.layer.0.attention", dim, heads, s,
           padded=padded)

seed(3)
model = randomise(tf.DistilBertModel(tf.DistilBertConfig(
    dim=32, n_heads=4, n_layers=1, hidden_dim=8, vocab_size=9, **EAGER)))
attn = model.transformer.layer[0].attention
record("distilbert", model, attn, attn.out_lin, "transformer.layer.0.attention", 32, 4, 6,
       padded=True)

seed(4)
model = randomise(tf.AlbertModel(tf.AlbertConfig(
    hidden_size=36, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8,
    embedding_size=8, vocab_size=9, **EAGER)))
attn = model.encoder.albert_layer_groups[0].albert_layers[0].attention
record("albert", model, attn, attn.dense,
       "encoder.albert_layer_groups.0.albert_layers.0.attention", 36, 4, 5)

seed(5)
model = randomise(tf.MPNetModel(tf.MPNetConfig(
    hidden_size=33, num_attention_heads=3, num_hidden_layers=1, intermediate_size=8,
    vocab_size=9, **EAGER)))
attn = model.encoder.layer[0].attention
record("mpnet", model, attn.attn, attn.attn.o, "encoder.layer.0.attention", 33, 3, 7,
       position_bias=None)

# --- image encoders -------------------------------------------------------------------
for n, (name, config, cls, dim, heads, s) in enumerate([
    ("vit", tf.ViTConfig, tf.ViTModel, 35, 5, 5),
    ("dinov2", tf.Dinov2Config, tf.Dinov2Model, 40, 4, 6),
]):
    seed(10 + n)
    model = randomise(cls(config(hidden_size=dim, num_attention_heads=heads, num_hidden_layers=1,
                                 intermediate_size=8, mlp_ratio=1, image_size=8, patch_size=4,
                                 **EAGER)))
    attn = next(m for m in model.modules() if type(m).__name__ in ("ViTAttention", "Dinov2Attention"))
    record(name, model, attn, attn.o_proj, "encoder.layer.0.attention", dim, heads, s)

seed(12)
model = randomise(timm.models.VisionTransformer(
    img_size=8, patch_size=4, embed_dim=27, num_heads=3, depth=1, mlp_ratio=1, num_classes=2))
attn = model.blocks[0].attn
attn.fused_attn = False
record("timm_vit", model, attn, attn.proj, "blocks.0.attn", 27, 3, 6)

# --- encoder-decoders -----------------------------------------------------------------
seed(20)
model = randomise(tf.BartModel(tf.BartConfig(
    d_model=40, encoder_attention_heads=5, decoder_attention_heads=4, encoder_layers=1,
    decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9,
    max_position_embeddings=8, **EAGER)))
attn = model.encoder.layers[0].self_attn
record("bart", model, attn, attn.out_proj, "encoder.layers.0.self_attn", 40, 5, 7, padded=True)
attn = model.decoder.layers[0].encoder_attn
record("bart_cross", model, attn, attn.out_proj, "decoder.layers.0.encoder_attn", 40, 4, 5,
       key_len=7)

seed(21)
model = randomise(tf.WhisperForConditionalGeneration(tf.WhisperConfig(
    d_model=36, encoder_attention_heads=3, decoder_attention_heads=3, encoder_layers=1,
    decoder_layers=1, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=9, num_mel_bins=4,
    max_source_positions=8, max_target_positions=8, pad_token_id=0, bos_token_id=1,
    eos_token_id=2, decoder_start_token_id=1, **EAGER)))
attn = model.model.encoder.layers[0].self_attn
record("whisper", model, attn, attn.out_proj, "model.encoder.layers.0.self_attn", 36, 3, 6)

# --- CLIP, both towers of one model ---------------------------------------------------
seed(30)
tower = dict(intermediate_size=8, num_hidden_layers=1)
model = randomise(tf.CLIPModel(tf.CLIPConfig(
    text_config=dict(hidden_size=39, num_attention_heads=3, vocab_size=9, pad_token_id=0,
                     bos_token_id=1, eos_token_id=2, **tower),
    vision_config=dict(hidden_size=30, num_attention_heads=3, image_size=8, patch_size=4, **tower),
    projection_dim=8, **EAGER)))
attn = dict(model.named_modules())
for name, dim, s, causal in [("clip_text", 39, 7, True), ("clip_vision", 30, 5, False)]:
    path = next(k for k in attn if k.startswith(name[5:]) and k.endswith("layers.0.self_attn"))
    record(name, model, attn[path], attn[path].out_proj,
           f"{name[5:]}_model.encoder.layers.0.self_attn", dim, 3, s, causal=causal)

# --- decoders with fewer key/value heads ----------------------------------------------
for n, (name, config, cls, dim, heads, kv, head_dim, s) in enumerate([
    ("llama", tf.LlamaConfig, tf.LlamaForCausalLM, 28, 4, 2, 6, 6),
    ("mistral", tf.MistralConfig, tf.MistralForCausalLM, 24, 4, 1, 8, 7),
]):
    seed(40 + n)
    model = randomise(cls(config(
        hidden_size=dim, num_attention_heads=heads, num_key_value_heads=kv, head_dim=head_dim,
        num_hidden_layers=1, intermediate_size=8, vocab_size=9, sliding_window=None, **EAGER)))
    attn = model.model.layers[0].self_attn
    identity = (torch.ones(B, s, head_dim), torch.zeros(B, s, head_dim))  # cos, sin
    record(name, model, attn, attn.o_proj, "model.layers.0.self_attn", dim, heads, s, kv_heads=kv,
           head_dim=head_dim, causal=True, position_embeddings=identity)

# --- a block of a U-Net of diffusers: self-attention, and cross-attention to a text -------
seed(50)
model = randomise(torch.nn.ModuleDict({
    name: Attention(24, cross_attention_dim=cross, heads=3, dim_head=8, bias=False)
    for name, cross in [("attn1", None), ("attn2", 24)]
}))
record("diffusers", model, model["attn1"], model["attn1"].to_out[0], "attn1", 24, 3, 6)
record("diffusers_cross", model, model["attn2"], model["attn2"].to_out[0], "attn2", 24, 3, 5, key_len=7,
       key_name="encoder_hidden_states")

# --- BERT as Flax saves it: dense kernels are [in, out], LayerNorm has a scale --------
families["flax_bert"] = families["bert"]
for key, t in [(k, t) for k, t in tensors.items() if k.startswith("bert.")]:
    if key.endswith("LayerNorm.weight"):
        key = key.replace("LayerNorm.weight", "LayerNorm.scale")
    elif key.endswith(".weight"):
        key, t = key.replace(".weight", ".kernel"), t.T
    tensors["flax_" + key] = t

save("layouts.safetensors", {k: t.contiguous().clone() for k, t in tensors.items()},
     ["torch", "transformers", "timm", "diffusers"], "see layouts.py", framework="torch",
     families=json.dumps(families))
