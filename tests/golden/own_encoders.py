"""Tiny encoders whose code is published beside their checkpoints, not in transformers 5.23, and what they answer.

Writes ../fixtures/encoders/<name>/ with the files that encoders.py describes; config.json has the keys that the published
one has. What differs from a model of transformers is computed here:

    nomic_moe           nomic-embed-text-v2-moe: NomicBERT without gates, a mixture of experts in every other block; its
                        file has `normalized` too: the answer where the weights of a token's experts are divided by
                        their sum
    pplx                pplx-embed-v1: Qwen 3 that sees both ways
    voyage              voyage-4-nano: the same with a projection of each token, which is not among the modules
    lfm2_bidirectional  LFM2.5-Embedding and LFM2.5-ColBERT: LFM2 that sees both ways, its convolutions too

And two folders of sentence-transformers around such models, with what comes out for texts:

    ../fixtures/own_sentences/pplx     with the published module that makes tanh(x) a number of int8;
    ../fixtures/own_sentences.safetensors  holds `pplx` f32 (texts, 16), whole numbers, for ../fixtures/sentence_models.json
    ../fixtures/multi_vector/lfm2      as LFM2.5-ColBERT: saved by PyLate, queries are filled up with the end token, which
                                       convolutions read and tokens do not attend to;
    ../fixtures/multi_vector/lfm2.safetensors  as multi_vector.py describes it

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0 (stored in the metadata).
Re-run:  python tests/golden/own_encoders.py
"""

import json
import shutil
import tempfile
import zlib

import torch
import torch.nn.functional as F
import transformers as tf
from transformers import masking_utils
from safetensors.torch import save_file

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

import multi_vector
from common import FIXTURES, save
from decoder_sentences import SIZES, TEXTS, qwen as qwen_tokens, template
from encoders import DECODER, LENGTHS, OUT, answer, batch, randomise

VERSIONS = ["torch", "transformers"]


def write(name, config, tensors, values, note):
    shutil.rmtree(OUT / name, ignore_errors=True)
    (OUT / name).mkdir()
    (OUT / name / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, OUT / name / "model.safetensors", {"format": "pt"})
    values = {k: v.contiguous() if v.is_floating_point() else v.long() for k, v in values.items()}
    save(f"encoders/{name}/golden.safetensors", values, VERSIONS, note, framework="torch")


def rotated(x, theta):
    """x (b, s, heads, d), halves of a head paired (GPT-NeoX)."""
    s, d = x.shape[1], x.shape[-1]
    angles = torch.outer(torch.arange(s).float(), theta ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = (f(torch.cat([angles, angles], -1))[:, None] for f in (torch.cos, torch.sin))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


# nomic-embed-text-v2-moe -------------------------------------------------------------------------

NOMIC = dict(
    model_type="nomic_bert", architectures=["NomicBertModel"],
    auto_map={"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    activation_function="gelu", n_embd=16, n_layer=4, n_head=4, n_inner=22, n_positions=40, vocab_size=40,
    type_vocab_size=1, pad_token_id=1, layer_norm_epsilon=1e-3, rotary_emb_base=50.0, rotary_emb_fraction=1.0,
    rotary_emb_interleaved=False, rotary_emb_scale_base=None, rotary_scaling_factor=None, prenorm=False, causal=False,
    parallel_block=False, use_rms_norm=False, qkv_proj_bias=True, mlp_fc1_bias=True, mlp_fc2_bias=True, attn_pdrop=0.0,
    resid_pdrop=0.0, embd_pdrop=0.0, moe_resid_pdrop=0.0, num_experts=5, moe_top_k=2, moe_every_n_layers=2,
    moe_normalize_expert_weights=False, moe_impl="megablocks", num_shared_experts=0, expert_choice_router=False,
    ffn_div=1, add_pooling_layer=False,
)


def nomic_tensors(c):
    h, inner, experts = c["n_embd"], c["n_inner"], c["num_experts"]
    shapes = {"embeddings.word_embeddings.weight": (c["vocab_size"], h),
              "embeddings.token_type_embeddings.weight": (1, h), "emb_ln.weight": (h,), "emb_ln.bias": (h,)}
    for i in range(c["n_layer"]):
        part = {"attn.Wqkv.weight": (3 * h, h), "attn.Wqkv.bias": (3 * h,), "attn.out_proj.weight": (h, h),
                "attn.out_proj.bias": (h,), "norm1.weight": (h,), "norm1.bias": (h,), "norm2.weight": (h,),
                "norm2.bias": (h,)}
        if i % c["moe_every_n_layers"] == 1:
            part |= {"mlp.router.layer.weight": (experts, h), "mlp.experts.mlp.w1": (experts * inner, h),
                     "mlp.experts.mlp.w2": (experts * inner, h), "mlp.experts.bias": (h,)}
        else:
            part |= {"mlp.fc1.weight": (inner, h), "mlp.fc1.bias": (inner,), "mlp.fc2.weight": (h, inner),
                     "mlp.fc2.bias": (h,)}
        shapes |= {f"encoder.layers.{i}.{k}": v for k, v in part.items()}
    norm = lambda k: k.endswith("weight") and ("norm" in k or "emb_ln" in k)
    return {k: torch.randn(v) * (0.6 if "router" in k else 0.3) + float(norm(k)) for k, v in sorted(shapes.items())}


def nomic(c, t, ids, mask, used=None):
    h, heads, eps = c["n_embd"], c["n_head"], c["layer_norm_epsilon"]
    b, s = ids.shape

    def norm(x, k):
        return F.layer_norm(x, (h,), t[f"{k}.weight"], t[f"{k}.bias"], eps)

    x = norm(t["embeddings.word_embeddings.weight"][ids] + t["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for i in range(c["n_layer"]):
        w = {k.removeprefix(f"encoder.layers.{i}."): v for k, v in t.items() if k.startswith(f"encoder.layers.{i}.")}
        qkv = F.linear(x, w["attn.Wqkv.weight"], w["attn.Wqkv.bias"]).view(b, s, 3, heads, h // heads)
        q, k = (rotated(qkv[:, :, j], c["rotary_emb_base"]) for j in (0, 1))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / (h // heads) ** 0.5
        scores = scores.masked_fill(mask[:, None, None] == 0, float("-inf"))
        a = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), qkv[:, :, 2]).reshape(b, s, h)
        x = norm(x + F.linear(a, w["attn.out_proj.weight"], w["attn.out_proj.bias"]), f"encoder.layers.{i}.norm1")
        if i % c["moe_every_n_layers"] == 1:
            y = experts(c, w, x, mask, used)
        else:
            y = F.gelu(F.linear(x, w["mlp.fc1.weight"], w["mlp.fc1.bias"]))
            y = F.linear(y, w["mlp.fc2.weight"], w["mlp.fc2.bias"])
        x = norm(x + y, f"encoder.layers.{i}.norm2")
    return torch.where(mask[:, :, None] == 1, x, 0.0)


def experts(c, w, x, mask, used):
    """All experts on all tokens; the weights of those that a token does not go to are zero."""
    shape = (c["num_experts"], c["n_inner"], c["n_embd"])
    first, last = w["mlp.experts.mlp.w1"].view(shape), w["mlp.experts.mlp.w2"].view(shape)
    every = torch.einsum("bsef,efh->bseh", F.gelu(torch.einsum("bsh,efh->bsef", x, first)), last)
    weights = F.linear(x, w["mlp.router.layer.weight"]).softmax(-1)
    ordered, order = weights.sort(-1, descending=True)
    k = c["moe_top_k"]
    if used is not None:
        counts = torch.bincount(order[..., :k][mask == 1].flatten(), minlength=c["num_experts"])
        used.append((counts.tolist(), (ordered[..., k - 1] - ordered[..., k])[mask == 1].min().item()))
    chosen = torch.zeros_like(weights).scatter(-1, order[..., :k], ordered[..., :k])
    if c["moe_normalize_expert_weights"]:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    return (chosen[..., None] * every).sum(2) + w["mlp.experts.bias"]


def nomic_moe():
    config = tf.BertConfig(vocab_size=NOMIC["vocab_size"], pad_token_id=NOMIC["pad_token_id"])
    values, mask = batch(config, "zeros")
    closest, experts_in_use = 0.0, 0
    # No choice of experts is a close one, and tokens differ in it.
    while closest < 3e-4 or experts_in_use < 4:
        tensors, used = nomic_tensors(NOMIC), []
        values["hidden"] = nomic(NOMIC, tensors, values["ids"], mask, used)
        closest = min(gap for _, gap in used)
        experts_in_use = min(sum(n > 0 for n in counts) for counts, _ in used)
    values["normalized"] = nomic(NOMIC | dict(moe_normalize_expert_weights=True), tensors, values["ids"], mask)
    print("tokens of each expert, and the closest choice:", used)
    for i, n in enumerate(LENGTHS):
        alone = nomic(NOMIC, tensors, values["ids"][i : i + 1, :n], torch.ones(1, n).long())
        torch.testing.assert_close(alone[0], values["hidden"][i, :n], rtol=0, atol=5e-6)
    for change in (dict(moe_top_k=1), dict(moe_normalize_expert_weights=True)):
        other = nomic(NOMIC | change, tensors, values["ids"], mask)
        assert (other - values["hidden"]).abs().max() > 1e-2, change
    write("nomic_moe", NOMIC, tensors, values, "a mixture of experts, random, on random token ids")


# Qwen 3 that sees both ways ----------------------------------------------------------------------

def qwen(**more):
    config = tf.Qwen3Config(**(DECODER | dict(
        is_causal=False, rope_parameters={"rope_type": "default", "rope_theta": 50.0})), attn_implementation="eager")
    model = randomise(tf.Qwen3Model(config))
    keys = json.loads(config.to_json_string(use_diff=False))
    keep = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
            "intermediate_size", "hidden_act", "max_position_embeddings", "rms_norm_eps", "pad_token_id", "layer_types",
            "attention_bias", "attention_dropout", "sliding_window", "use_sliding_window", "tie_word_embeddings"]
    return model, {k: keys[k] for k in keep} | dict(rope_theta=50.0, use_bidirectional_attention=True) | more


PPLX = dict(model_type="bidirectional_pplx_qwen3", architectures=["PPLXQwen3Model"],
            auto_map={"AutoConfig": "configuration.PPLXQwen3Config", "AutoModel": "modeling.PPLXQwen3Model"})


def pplx():
    model, config = qwen(**PPLX)
    values, mask = batch(model.config, None)
    _, values["hidden"] = answer(model, values["ids"], mask)
    write("pplx", config, model.state_dict(), values, "Qwen3Model that sees both ways, random, on random token ids")


def voyage():
    model, config = qwen(model_type="qwen3", architectures=["Qwen3ForCausalLM"], num_labels=24,
                         auto_map={"AutoModel": "modeling_qwen3_bidirectional.Qwen3BidirectionalModel"})
    linear = torch.randn(24, config["hidden_size"]) * 0.3
    values, mask = batch(model.config, None)
    _, hidden = answer(model, values["ids"], mask)
    values["hidden"] = hidden @ linear.T
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()} | {"linear.weight": linear}
    write("voyage", config, tensors, values, "Qwen3Model that sees both ways and a projection, random")


# LFM2 that sees both ways ------------------------------------------------------------------------

LFM2 = DECODER | dict(
    hidden_size=24, num_hidden_layers=3, norm_eps=1e-3, intermediate_size=30, block_multiple_of=4, conv_L_cache=3,
    layer_types=["conv", "full_attention", "conv"], rope_parameters={"rope_type": "default", "rope_theta": 50.0})
LFM2_CODE = dict(architectures=["Lfm2BidirectionalModel"],
                 auto_map={"AutoModel": "modeling_lfm2_bidirectional.Lfm2BidirectionalModel"})


def both_ways(own, x):
    """The short convolution of LFM2 with its kernel around each token."""
    b, c, x = own.in_proj(x).transpose(1, 2).chunk(3, 1)
    y = F.conv1d(b * x, own.conv.weight, own.conv.bias, padding=own.conv.kernel_size[0] // 2, groups=x.shape[1])
    return own.out_proj((c * y[..., : x.shape[-1]]).transpose(1, 2))


class BothWays(torch.nn.Module):
    """The same; what padding holds counts as zero."""

    def __init__(self, own):
        super().__init__()
        self.own = own

    def forward(self, hidden_states, **kwargs):
        return both_ways(self.own, hidden_states * BothWays.mask[:, :, None])


def lfm2_bidirectional():
    config = tf.Lfm2Config(**LFM2, attn_implementation="eager")
    model = randomise(tf.Lfm2Model(config))
    tensors = model.state_dict()
    for layer in model.layers:
        if hasattr(layer, "conv"):
            layer.conv = BothWays(layer.conv)
        else:
            layer.self_attn.is_causal = False

    def run(ids, mask):
        BothWays.mask = mask
        full = torch.where(mask[:, None, None] == 1, 0.0, torch.finfo(torch.float32).min).expand(-1, 1, ids.shape[1], -1)
        masks = {"full_attention": full, "conv": mask}
        y = model(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state
        return torch.where(mask[:, :, None] == 1, y, 0.0)

    values, mask = batch(config, None)
    values["hidden"] = run(values["ids"], mask)
    for i, n in enumerate(LENGTHS):
        alone = run(values["ids"][i : i + 1, :n], torch.ones(1, n).long())
        torch.testing.assert_close(alone[0], values["hidden"][i, :n], rtol=0, atol=5e-6)
    keys = LFM2_CODE | dict(
        model_type="lfm2", block_ff_dim=30,
        block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, block_multiple_of=4, conv_L_cache=3, conv_bias=False,
        head_dim=config.head_dim, hidden_size=24, intermediate_size=30, layer_types=config.layer_types,
        max_position_embeddings=40, norm_eps=1e-3, num_attention_heads=4, num_heads=4, num_hidden_layers=3,
        num_key_value_heads=2, pad_token_id=0, rope_theta=50.0, use_pos_enc=True, vocab_size=40)
    write("lfm2_bidirectional", keys, tensors, values, "Lfm2Model that sees both ways, random")


# Folders of sentence-transformers ----------------------------------------------------------------

def pplx_sentences():
    folder = FIXTURES / "own_sentences/pplx"
    shutil.rmtree(folder, ignore_errors=True)
    tokens = tf.PreTrainedTokenizerFast(**qwen_tokens(), model_max_length=24)
    config = tf.Qwen3Config(**SIZES, vocab_size=len(tokens), pad_token_id=tokens.pad_token_id, is_causal=False)
    closest = 0.0
    while closest < 1e-3:  # No number is close to the middle between two whole ones.
        with tempfile.TemporaryDirectory() as tmp:
            randomise(tf.Qwen3Model(config)).save_pretrained(tmp)
            tokens.save_pretrained(tmp)
            model = SentenceTransformer(modules=[Transformer(tmp), Pooling(SIZES["hidden_size"], "mean")], device="cpu")
            model.save_pretrained(str(folder), create_model_card=False)
        values = 127 * model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False).tanh()
        closest = (values - values.floor() - 0.5).abs().min()
    keys = json.loads((folder / "config.json").read_text())
    del keys["is_causal"]
    keys |= PPLX | dict(use_bidirectional_attention=True)
    (folder / "config.json").write_text(json.dumps(keys, indent=2) + "\n")
    modules = json.loads((folder / "modules.json").read_text())
    # As published: without a file, and so at the path of the transformer.
    modules.append({"idx": 2, "name": "2", "path": "", "type": "st_quantize.FlexibleQuantizer", "kwargs": ["quantization"]})
    (folder / "modules.json").write_text(json.dumps(modules, indent=2) + "\n")
    save("own_sentences.safetensors", {"pplx": values.round().clamp(-128, 127)}, VERSIONS + ["sentence-transformers"],
         "on the texts of sentence_models.json", framework="torch")


def lfm2():
    # Bytes, with a token at the start and none at the end; without a mask.
    settings = qwen_tokens("<s>", "<unk>")
    settings["tokenizer_object"].post_processor = template(settings["tokenizer_object"], "<s> $A", "<s> $A $B", "<s>")
    tokens = tf.PreTrainedTokenizerFast(**settings, bos_token="<s>", unk_token="<unk>", model_max_length=40)
    tokens.add_tokens(["[Q] ", "[D] "])
    config = tf.Lfm2Config(**(LFM2 | dict(
        hidden_size=12, head_dim=4, vocab_size=len(tokens), pad_token_id=0, bos_token_id=2, eos_token_id=1)))
    folder = multi_vector.start("lfm2", randomise(tf.Lfm2Model(config)), tokens)
    multi_vector.pylate_files(folder)
    # Causal masks and convolutions become what the model's own code makes of them.
    modeling = tf.models.lfm2.modeling_lfm2
    own = modeling.create_causal_mask, modeling.Lfm2ShortConv.forward, modeling.Lfm2Attention.forward

    def attend(self, *args, **kwargs):
        self.is_causal = False
        return own[2](self, *args, **kwargs)

    modeling.create_causal_mask = lambda **kwargs: masking_utils.create_bidirectional_mask(
        **{k: kwargs[k] for k in ("config", "inputs_embeds", "attention_mask")})
    modeling.Lfm2ShortConv.forward = lambda self, hidden_states, **kwargs: both_ways(self, hidden_states)
    modeling.Lfm2Attention.forward = attend
    multi_vector.write("lfm2", batch_size=1)
    modeling.create_causal_mask, modeling.Lfm2ShortConv.forward, modeling.Lfm2Attention.forward = own
    keys = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(keys | LFM2_CODE, indent=2) + "\n")


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    for make in (nomic_moe, pplx, voyage, lfm2_bidirectional, pplx_sentences, lfm2):
        torch.manual_seed(zlib.crc32(make.__name__.encode()))
        make()


if __name__ == "__main__":
    main()
