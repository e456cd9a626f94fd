"""Attention layers of tiny random models of many families, run as the whole model runs them.

Writes ../fixtures/families.safetensors, whose tensors are the bytes of a file for each family. `layouts.py` calls the
attention modules alone; here the whole model runs on random token ids or pixels and hooks catch
what goes into and out of its attention, so positions (rotary, ALiBi, relative biases), windows,
soft caps, sinks and query/key norms are applied as the model applies them. A file holds
    <saved name>           the weights of the attention layers under the names `save_pretrained`
                           writes them with, and the tables of position biases they share
    golden.C.input         hidden states that queries (and in self-attention keys) are made from
    golden.C.key           only for cross-attention: the states that keys and values are made from
    golden.C.positions     only with M-RoPE over images: u32 (3, b, s), times, rows and columns
    golden.C.mask          only with padding: u8 (b, s of the keys), 1 = attend
    golden.C.output        output of the attention's output projection, before dropout, residual
                           and LayerNorm
    golden.C.chunks        only for cached decoding: i64 lengths of the pieces it was fed
    golden.C.chunk_input   the same as input and output, made with the model's cache
    golden.C.chunk_output
and as metadata `config` (the saved config.json; `{}` for timm), `timm` (only for timm: what its
constructor was told and no file says) and `cases`, a JSON list of {name C, prefix of the weights,
kind self|cross, causal, layer, note, and grid (rows and columns of patches) where a call needs it}.

Weights are normal with std 0.2, embeddings, position biases and sinks with std 1, and what starts
as ones (norm weights) is 1 + normal. The eager attention is used, but for falcon_alibi. Each `vary`
is a change of the config that is checked to change the outputs, and decoding in pieces is checked
to give what one run gives. At padded queries the output is what the model computes there.

Made with torch 2.15.0, transformers 5.23.0, timm 1.0.31 (stored in the metadata).
Re-run:  python tests/golden/families.py [family ...]
"""

import copy
import importlib
import json
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import timm
import torch
import transformers as tf
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import load_file
from timm.models.beit import Beit
from timm.models.eva import Eva

from common import FIXTURES, encode, save

B = 2  # batch size of every input
VOCAB = 13
OUT = "families.safetensors"
PACKAGES = ["torch", "transformers", "timm"]
NOTE = "see families.py"
WANTED = sys.argv[1:]
FILES = load_arrays(FIXTURES / OUT) if WANTED else {}

torch.set_num_threads(1)
tf.utils.logging.disable_progress_bar()
tf.utils.logging.set_verbosity_error()
torch.set_grad_enabled(False)


def randomise(model):
    """Fills the parameters in the order of their names, whatever the order they are built in."""
    unit = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for name, p in sorted(model.named_parameters()):
        wide = id(p) in unit or name.endswith((".sinks", "bias_table", "latent", "probe"))
        base = 1.0 if bool((p == 1).all()) else 0.0
        p.data.normal_(0.0, 1.0 if wide else 0.2).add_(base)
    return model.eval()


def site(case, path, proj, prefix=None, *, entry="", kind="self", causal=False, layer=0, note="",
         grid=None):
    """One attention layer: its module, in that the output projection ("" = the module itself) and
    the module that is given the states (`entry`), and where its weights are saved. `grid`: rows and
    columns of patches, of which a model without batches has the tokens of one image."""
    return dict(case=case, path=path, proj=proj, prefix=prefix or path, entry=entry, kind=kind,
                causal=causal, layer=layer, note=note, grid=grid)


def argument(args, kwargs, index, names):
    found = [kwargs[n] for n in names if kwargs.get(n) is not None]
    return found[0] if found else args[index]


def capture(model, sites, inputs):
    """Runs the model; returns its output and {case: {input, key, output}}."""
    caught, hooks = {}, []
    for s in sites:
        here = caught.setdefault(s["case"], {})
        attn = model.get_submodule(s["path"])

        def before(_m, args, kwargs, here=here, cross=s["kind"] == "cross"):
            here["input"] = argument(args, kwargs, 0, ("hidden_states", "query", "x")).clone()
            if cross:
                names = ("key_value_states", "encoder_hidden_states", "cross_attention_states",
                         "key")
                states = [a for a in args if torch.is_tensor(a) and a.dim() == 3]
                here["key"] = argument(states, kwargs, 1, names).clone()

        def after(_m, _args, out, here=here):
            here["output"] = (out[0] if isinstance(out, tuple) else out).clone()

        entry = attn.get_submodule(s["entry"])
        hooks.append(entry.register_forward_pre_hook(before, with_kwargs=True))
        hooks.append(attn.get_submodule(s["proj"]).register_forward_hook(after))
    out = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    for hook in hooks:
        hook.remove()
    return out, caught


class Family:
    """One file: a model, the cases that were run, and the saved weights they need."""

    def __init__(self, name, cls, config, kwargs, keep=(), timm=None):
        self.name, self.cls, self.config, self.kwargs = name, cls, config, kwargs
        self.keep, self.timm = keep, timm
        torch.manual_seed(0)
        self.model = self.build()
        torch.manual_seed(zlib.crc32(name.encode()))
        randomise(self.model)
        self.tensors, self.cases = {}, []
        if timm is not None:
            self.text, self.saved = "{}", {k: v.clone() for k, v in self.model.state_dict().items()}
            return
        with tempfile.TemporaryDirectory() as d:
            self.model.save_pretrained(d)
            text = (Path(d) / "config.json").read_text()
            self.text = json.dumps(json.loads(text), separators=(",", ":"))
            self.saved = load_file(Path(d) / "model.safetensors")

    def build(self, **changes):
        kwargs = copy.deepcopy({**self.kwargs, **changes})
        if self.config is None:
            model = self.cls(**kwargs)
            for m in model.modules():
                if hasattr(m, "fused_attn"):
                    m.fused_attn = False
        else:
            model = self.cls(self.config(**{"attn_implementation": "eager", **kwargs}))
        return model.eval()

    def run(self, sites, inputs, mask=None, cached=None, ids="input_ids", vary=()):
        """Runs the model and stores every site as a case.

        cached: names of the cases also decoded in pieces; `ids` is the input cut into pieces.
        """
        out, caught = capture(self.model, sites, inputs)
        for s in sites:
            c, got = s["case"], caught[s["case"]]
            if got["input"].dim() == 2:
                got = {key: t.unsqueeze(0) for key, t in got.items()}
            assert got["output"].std() > 0.05, f"{self.name}.{c}: nothing in it"
            self.tensors[f"golden.{c}.input"] = got["input"]
            self.tensors[f"golden.{c}.output"] = got["output"]
            if s["kind"] == "cross":
                self.tensors[f"golden.{c}.key"] = got["key"]
            if not torch.is_tensor(inputs) and "position_ids" in inputs:
                self.tensors[f"golden.{c}.positions"] = inputs["position_ids"].to(torch.uint32)
            if mask is not None:
                self.tensors[f"golden.{c}.mask"] = mask.to(torch.uint8)
            self.cases.append({"name": c, **{k: s[k] for k in ("prefix", "kind", "causal", "layer",
                                                               "note")}})
            if s["grid"]:
                self.cases[-1]["grid"] = s["grid"]

        if cached:
            chosen = [s for s in sites if s["case"] in cached]
            length = inputs[ids].shape[1]
            chunks = [length - 4, 2, 1, 1]
            pieces, past = [], None
            rest = {k: v for k, v in inputs.items() if k not in (ids, "input_ids")}
            if ids != "input_ids":  # encoder-decoder: its encoder has run already
                rest = {"encoder_outputs": (out.encoder_last_hidden_state,)}
            for piece in inputs[ids].split(chunks, dim=1):
                out, got = capture(self.model, chosen, {
                    **rest, ids: piece, "cache": past, "use_cache": True})
                past = out.cache
                pieces.append(got)
            for s in chosen:
                c = s["case"]
                for key in ("input", "output"):
                    whole = torch.cat([p[c][key] for p in pieces], dim=1)
                    error = (whole - caught[c][key]).abs().max()
                    assert error < 1e-5, f"{self.name}.{c}: cached {key} off by {error}"
                    self.tensors[f"golden.{c}.chunk_{key}"] = whole
                self.tensors[f"golden.{c}.chunks"] = torch.tensor(chunks)

        for changes, names in vary:
            other = self.build(**changes)
            other.load_state_dict(self.model.state_dict(), strict=False)
            _, got = capture(other, sites, inputs)
            for c in names:
                change = (got[c]["output"] - caught[c]["output"]).abs().max()
                assert change > 1e-3, f"{self.name}.{c}: {changes} changes nothing ({change})"

    def save(self):
        prefixes = tuple({c["prefix"] + "." for c in self.cases})
        for prefix in prefixes:
            assert sum(k.startswith(prefix) for k in self.saved) >= 2, (prefix, sorted(self.saved))
        for name in self.keep:
            assert any(name in k for k in self.saved), (name, sorted(self.saved))
        for key, t in self.saved.items():
            if key.startswith(prefixes) or any(name in key for name in self.keep):
                assert t.dtype == torch.float32, key
                self.tensors[key] = t
        metadata = {"config": self.text, "cases": json.dumps(self.cases, separators=(",", ":"))}
        if self.timm is not None:
            metadata["timm"] = json.dumps(self.timm)
        tensors = {k: t.contiguous().clone() for k, t in self.tensors.items()}
        data = encode(tensors, PACKAGES, NOTE, framework="torch", **metadata)
        size = len(data)
        assert size < 40960, f"{self.name}: {size} bytes"
        FILES[self.name] = np.frombuffer(data, np.uint8)
        print(f"{self.name:18} {size:6}  " + ", ".join(c["name"] for c in self.cases))


FAMILIES = {}


def family(f):
    FAMILIES[f.__name__] = f
    return f


def token_ids(s):
    return torch.randint(3, VOCAB, (B, s))


def pixels(h, w):
    return torch.randn(B, 3, h, w)


def right_padded(s):
    mask = torch.ones(B, s, dtype=torch.long)
    mask[-1, s - 2:] = 0
    return mask


def decoder(name, cls, config, kwargs, attn="model.layers.{}.self_attn", proj="o_proj", *, s=8,
            layers=(0,), notes=("", ""), padded=False, cached=True, vary=()):
    """A decoder: one case `layer{i}` for each layer, and `padded` with right padding.

    cached: whether its layers are decoded in pieces too; not if other layers of the model are
    recurrent, whose pieces do not give what one run gives.
    """
    f = Family(name, cls, config, kwargs)

    def at(i, case):
        return site(case, attn.format(i), proj, causal=True, layer=i, note=notes[i])

    sites = [at(i, f"layer{i}") for i in layers]
    names = [x["case"] for x in sites]
    f.run(sites, {"input_ids": token_ids(s)}, cached=names if cached else None,
          vary=[v if isinstance(v, tuple) else (v, names) for v in vary])
    if padded:
        mask = right_padded(s - 2)
        f.run([at(0, "padded")], {"input_ids": token_ids(s - 2), "attention_mask": mask}, mask=mask)
    f.save()


TOKENS = dict(vocab_size=VOCAB, pad_token_id=0, bos_token_id=1, eos_token_id=2)
DEFAULT = dict(rope_type="default", rope_theta=100.0)
LLAMA = dict(hidden_size=20, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=64, rope_parameters=DEFAULT,
             **TOKENS)
PLAIN = {**{k: v for k, v in LLAMA.items() if k not in ("head_dim", "num_key_value_heads")},
         "hidden_size": 24, "num_attention_heads": 3}
GROUPED = {**PLAIN, "num_attention_heads": 6, "num_key_value_heads": 2}
NOT_ROTARY = {k: v for k, v in PLAIN.items() if k != "rope_parameters"}
SMALL = {**LLAMA, "hidden_size": 16, "head_dim": 6, "num_hidden_layers": 2}
TWO = ["sliding_attention", "full_attention"]
THETA = dict(rope_parameters=dict(rope_type="default", rope_theta=7.0))

# --- decoders with rotary embeddings --------------------------------------------------


@family
def llama(name):
    decoder(name, tf.LlamaForCausalLM, tf.LlamaConfig, LLAMA, padded=True, vary=[THETA])


@family
def llama_linear(name):
    rope = dict(rope_type="linear", rope_theta=100.0, factor=3.0)
    decoder(name, tf.LlamaForCausalLM, tf.LlamaConfig, {**LLAMA, "rope_parameters": rope},
            vary=[dict(rope_parameters=DEFAULT)])


@family
def llama_dynamic(name):
    rope = dict(rope_type="dynamic", rope_theta=100.0, factor=2.0)
    f = Family(name, tf.LlamaForCausalLM, tf.LlamaConfig,
               {**LLAMA, "rope_parameters": rope, "max_position_embeddings": 6})
    path = "model.layers.0.self_attn"
    f.run([site("short", path, "o_proj", causal=True, note="5 tokens of 6: not scaled")],
          {"input_ids": token_ids(5)}, cached=["short"])
    f.run([site("long", path, "o_proj", causal=True,
                note="10 tokens where 6 are the original length")],
          {"input_ids": token_ids(10)}, vary=[(dict(rope_parameters=DEFAULT), ["long"])])
    f.save()


YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=128,
            beta_fast=4.0, beta_slow=1.0)


@family
def llama_yarn(name):
    decoder(name, tf.LlamaForCausalLM, tf.LlamaConfig,
            {**LLAMA, "rope_parameters": YARN, "max_position_embeddings": 512},
            vary=[dict(rope_parameters=DEFAULT),
                  dict(rope_parameters={**YARN, "attention_factor": 1.0}),
                  dict(rope_parameters={**YARN, "beta_fast": 32.0}),
                  dict(rope_parameters={**YARN, "truncate": False})])


@family
def llama_yarn_mscale(name):
    rope = {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5, "truncate": False}
    decoder(name, tf.LlamaForCausalLM, tf.LlamaConfig,
            {**LLAMA, "rope_parameters": rope, "max_position_embeddings": 512},
            vary=[dict(rope_parameters=YARN), dict(rope_parameters={**rope, "truncate": True})])


@family
def llama3(name):
    rope = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0,
                high_freq_factor=4.0, original_max_position_embeddings=32)
    decoder(name, tf.LlamaForCausalLM, tf.LlamaConfig,
            {**LLAMA, "rope_parameters": rope, "max_position_embeddings": 512},
            vary=[dict(rope_parameters=DEFAULT),
                  dict(rope_parameters={**rope, "high_freq_factor": 1.5})])


@family
def mistral(name):
    decoder(name, tf.MistralForCausalLM, tf.MistralConfig, {**LLAMA, "sliding_window": 4},
            padded=True, s=9,
            notes=("window of 4 tokens, itself included",),
            vary=[dict(sliding_window=None), dict(sliding_window=3), dict(sliding_window=5)])


@family
def qwen2(name):
    decoder(name, tf.Qwen2ForCausalLM, tf.Qwen2Config, {
        **GROUPED, "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 4,
        "max_window_layers": 1}, s=9, layers=(0, 1),
        notes=("full", "sliding from max_window_layers on"),
        vary=[(dict(use_sliding_window=False, sliding_window=None), ["layer1"])])


@family
def qwen3(name):
    decoder(name, tf.Qwen3ForCausalLM, tf.Qwen3Config, {**LLAMA, "rms_norm_eps": 1e-3},
            vary=[dict(rms_norm_eps=0.1), THETA])


@family
def gemma2(name):
    decoder(name, tf.Gemma2ForCausalLM, tf.Gemma2Config, {
        **SMALL, "layer_types": TWO, "sliding_window": 4,
        "query_pre_attn_scalar": 5, "attn_logit_softcapping": 0.7},
        s=9, layers=(0, 1), notes=("sliding", "full"),
        vary=[dict(attn_logit_softcapping=None), dict(query_pre_attn_scalar=8),
              (dict(sliding_window=64), ["layer0"])])


@family
def gemma3(name):
    local = dict(rope_type="default", rope_theta=10.0)
    far = dict(rope_type="linear", rope_theta=100.0, factor=8.0)
    rope = dict(sliding_attention=local, full_attention=far)
    decoder(name, tf.Gemma3ForCausalLM, tf.Gemma3TextConfig, {
        **SMALL, "layer_types": TWO, "sliding_window": 4,
        "query_pre_attn_scalar": 5, "rope_parameters": rope},
        s=9, layers=(0, 1), notes=("sliding, local theta", "full, global theta"),
        vary=[(dict(sliding_window=64), ["layer0"]), dict(query_pre_attn_scalar=8),
              (dict(rope_parameters=dict(sliding_attention=far, full_attention=far)), ["layer0"]),
              (dict(rope_parameters=dict(sliding_attention=local, full_attention=local)),
               ["layer1"])])


@family
def embedding_gemma(name):
    f = Family(name, tf.Gemma3TextModel, tf.Gemma3TextConfig, {
        **SMALL, "layer_types": TWO, "sliding_window": 5, "use_bidirectional_attention": True,
        "rope_parameters": dict(sliding_attention=dict(rope_type="default", rope_theta=10.0),
                                full_attention=DEFAULT)})
    mask = right_padded(9)
    f.run([site(f"layer{i}", f"layers.{i}.self_attn", "o_proj", layer=i, note=TWO[i])
           for i in (0, 1)], {"input_ids": token_ids(9), "attention_mask": mask}, mask=mask,
          vary=[(dict(use_bidirectional_attention=False), ["layer0", "layer1"]),
                (dict(sliding_window=64), ["layer0"]), (dict(sliding_window=7), ["layer0"])])
    f.save()


@family
def gemma(name):
    decoder(name, tf.GemmaForCausalLM, tf.GemmaConfig, {**LLAMA, "num_key_value_heads": 1},
            vary=[THETA])


@family
def olmo(name):
    decoder(name, tf.OlmoForCausalLM, tf.OlmoConfig, {**GROUPED, "clip_qkv": 0.9},
            vary=[dict(clip_qkv=None), THETA])


@family
def olmo2(name):
    decoder(name, tf.Olmo2ForCausalLM, tf.Olmo2Config, {**GROUPED, "rms_norm_eps": 1e-3},
            vary=[dict(rms_norm_eps=0.1), THETA])


@family
def olmo3(name):
    far = dict(rope_type="linear", rope_theta=100.0, factor=8.0)
    decoder(name, tf.Olmo3ForCausalLM, tf.Olmo3Config, {
        **SMALL, "rms_norm_eps": 1e-3, "layer_types": TWO, "sliding_window": 4,
        "rope_parameters": dict(sliding_attention=DEFAULT, full_attention=far)},
        s=9, layers=(0, 1), notes=("sliding", "full, scaled"),
        vary=[dict(rms_norm_eps=0.1), (dict(sliding_window=64), ["layer0"]),
              (dict(rope_parameters=dict(sliding_attention=DEFAULT, full_attention=DEFAULT)),
               ["layer1"])])


PARTIAL = dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5)
MORE = dict(rope_parameters={**PARTIAL, "partial_rotary_factor": 1.0})


@family
def phi(name):
    decoder(name, tf.PhiForCausalLM, tf.PhiConfig,
            {**PLAIN, "num_key_value_heads": 3, "rope_parameters": PARTIAL},
            proj="dense", vary=[MORE])


@family
def phi_qknorm(name):
    decoder(name, tf.PhiForCausalLM, tf.PhiConfig,
            {**PLAIN, "num_key_value_heads": 3, "rope_parameters": PARTIAL, "qk_layernorm": True},
            proj="dense", vary=[dict(qk_layernorm=False)])


@family
def phi3(name):
    decoder(name, tf.Phi3ForCausalLM, tf.Phi3Config, {**GROUPED, "sliding_window": 5}, s=9,
            notes=("window of 5 tokens",), vary=[THETA, dict(sliding_window=None)])


@family
def phi3_longrope(name):
    rope = dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.5],
                long_factor=[1.5, 4.0], original_max_position_embeddings=6)
    f = Family(name, tf.Phi3ForCausalLM, tf.Phi3Config, {
        **GROUPED, "rope_parameters": rope, "max_position_embeddings": 24,
        "original_max_position_embeddings": 6})
    path = "model.layers.0.self_attn"
    off = [dict(rope_parameters=DEFAULT)]
    f.run([site("short", path, "o_proj", causal=True, note="6 tokens of 6: short_factor")],
          {"input_ids": token_ids(6)}, cached=["short"], vary=[(v, ["short"]) for v in off])
    f.run([site("long", path, "o_proj", causal=True,
                note="9 tokens where 6 are the original length: long_factor")],
          {"input_ids": token_ids(9)}, vary=[(v, ["long"]) for v in off])
    f.save()


@family
def stablelm(name):
    decoder(name, tf.StableLmForCausalLM, tf.StableLmConfig,
            {**PLAIN, "num_key_value_heads": 1, "rope_parameters": PARTIAL, "use_qkv_bias": True},
            vary=[MORE])


@family
def stablelm_qknorm(name):
    decoder(name, tf.StableLmForCausalLM, tf.StableLmConfig,
            {**PLAIN, "num_key_value_heads": 1, "rope_parameters": PARTIAL, "qk_layernorm": True},
            vary=[dict(qk_layernorm=False)])


@family
def cohere(name):
    decoder(name, tf.CohereForCausalLM, tf.CohereConfig, {**GROUPED, "attention_bias": True},
            vary=[THETA])


@family
def cohere_qknorm(name):
    decoder(name, tf.CohereForCausalLM, tf.CohereConfig, {**GROUPED, "use_qk_norm": True},
            vary=[THETA, dict(use_qk_norm=False)])


@family
def cohere2(name):
    decoder(name, tf.Cohere2ForCausalLM, tf.Cohere2Config, {
        **SMALL, "layer_types": TWO, "sliding_window": 4},
        s=9, layers=(0, 1), notes=("sliding, rotated", "full, not rotated"),
        vary=[(THETA, ["layer0"]), (dict(sliding_window=64), ["layer0"])])


@family
def gpt_oss(name):
    rope = {**YARN, "truncate": False}
    decoder(name, tf.GptOssForCausalLM, tf.GptOssConfig, {
        **SMALL, "layer_types": TWO, "sliding_window": 4, "num_local_experts": 2,
        "num_experts_per_tok": 1, "rope_parameters": rope, "max_position_embeddings": 512},
        s=9, layers=(0, 1), notes=("sliding", "full"), vary=[(dict(sliding_window=64), ["layer0"]),
                                                        dict(rope_parameters=DEFAULT)])


@family
def granite(name):
    decoder(name, tf.GraniteForCausalLM, tf.GraniteConfig,
            {**GROUPED, "attention_multiplier": 0.6}, vary=[dict(attention_multiplier=0.5), THETA])


@family
def starcoder2(name):
    decoder(name, tf.Starcoder2ForCausalLM, tf.Starcoder2Config,
            {**GROUPED, "sliding_window": 4}, s=9, vary=[dict(sliding_window=None), THETA])


@family
def persimmon(name):
    decoder(name, tf.PersimmonForCausalLM, tf.PersimmonConfig,
            {**PLAIN, "rope_parameters": PARTIAL}, proj="dense",
            vary=[MORE, dict(qk_layernorm=False)])


@family
def gptj(name):
    decoder(name, tf.GPTJForCausalLM, tf.GPTJConfig, dict(
        n_embd=24, n_layer=1, n_head=3, rotary_dim=4, n_positions=16, n_inner=8, **TOKENS),
        "transformer.h.{}.attn", "out_proj", vary=[dict(rotary_dim=8)])


@family
def codegen(name):
    decoder(name, tf.CodeGenForCausalLM, tf.CodeGenConfig, dict(
        n_embd=32, n_layer=1, n_head=8, rotary_dim=4, n_positions=16, n_inner=8, **TOKENS),
        "transformer.h.{}.attn", "out_proj", s=7, notes=("4 blocks of 2 heads",),
        vary=[dict(rotary_dim=2)])


@family
def gpt_neox(name):
    decoder(name, tf.GPTNeoXForCausalLM, tf.GPTNeoXConfig, {**PLAIN, "rope_parameters": PARTIAL},
            "gpt_neox.layers.{}.attention", "dense", padded=True, vary=[MORE])


# --- other decoders -------------------------------------------------------------------
GPT2 = dict(n_embd=20, n_layer=1, n_head=4, n_positions=16, n_inner=8, **TOKENS)


@family
def gpt2(name):
    decoder(name, tf.GPT2LMHeadModel, tf.GPT2Config, {
        **GPT2, "n_layer": 2, "scale_attn_by_inverse_layer_idx": True}, "transformer.h.{}.attn",
        "c_proj", layers=(0, 1), notes=("", "scale divided by layer + 1"), padded=True,
        vary=[(dict(scale_attn_by_inverse_layer_idx=False), ["layer1"])])


@family
def gpt2_cross(name):
    f = Family(name, tf.GPT2LMHeadModel, tf.GPT2Config, {**GPT2, "add_cross_attention": True})
    mask = right_padded(7)
    f.run([site("cross", "transformer.h.0.crossattention", "c_proj", kind="cross")], {
        "input_ids": token_ids(5), "encoder_hidden_states": torch.randn(B, 7, 20),
        "encoder_attention_mask": mask}, mask=mask)
    f.save()


@family
def gpt_bigcode(name):
    decoder(name, tf.GPTBigCodeForCausalLM, tf.GPTBigCodeConfig, {**GPT2, "multi_query": True},
            "transformer.h.{}.attn", "c_proj")


@family
def gpt_bigcode_mha(name):
    decoder(name, tf.GPTBigCodeForCausalLM, tf.GPTBigCodeConfig, {**GPT2, "multi_query": False},
            "transformer.h.{}.attn", "c_proj")


@family
def gpt_neo(name):
    decoder(name, tf.GPTNeoForCausalLM, tf.GPTNeoConfig, dict(
        hidden_size=20, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=4, max_position_embeddings=16, intermediate_size=8, **TOKENS),
        "transformer.h.{}.attn.attention", "out_proj", s=9, layers=(0, 1),
        notes=("global", "local: window of 4 tokens, itself included"),
        vary=[(dict(window_size=16), ["layer1"]), (dict(window_size=5), ["layer1"])])


def bloom_of(name, heads):
    decoder(name, tf.BloomForCausalLM, tf.BloomConfig, dict(
        hidden_size=24, n_layer=1, n_head=heads, **TOKENS), "transformer.h.{}.self_attention",
        "dense",
        padded=True, notes=("ALiBi",))


@family
def bloom(name):
    bloom_of(name, 4)


@family
def bloom_6heads(name):
    bloom_of(name, 6)


FALCON = dict(hidden_size=24, num_hidden_layers=1, num_attention_heads=3, ffn_hidden_size=8,
              max_position_embeddings=64, rope_parameters=DEFAULT, **TOKENS)


def falcon_of(name, changes, **more):
    decoder(name, tf.FalconForCausalLM, tf.FalconConfig, {**FALCON, **changes},
            "transformer.h.{}.self_attention", "dense", **more)


@family
def falcon(name):
    falcon_of(name, dict(new_decoder_architecture=True, num_attention_heads=6, num_kv_heads=2),
              vary=[THETA])


@family
def falcon_mq(name):
    falcon_of(name, dict(multi_query=True, new_decoder_architecture=False), vary=[THETA])


@family
def falcon_alibi(name):
    # 12 heads, so that some slopes are no powers of two: they are rounded to bfloat16. The eager
    # attention of 5.23.0 adds ALiBi twice (in the mask and to the scores), the default one once.
    falcon_of(name, dict(alibi=True, multi_query=False, new_decoder_architecture=False, bias=True,
                         num_attention_heads=12, attn_implementation="sdpa"), padded=True,
                         vary=[dict(alibi=False)])


@family
def mpt(name):
    attn = dict(alibi=True, clip_qkv=0.9, softmax_scale=None, alibi_bias_max=8)
    decoder(name, tf.MptForCausalLM, tf.MptConfig, dict(
        d_model=24, n_heads=6, n_layers=1, expansion_ratio=1, max_seq_len=32, attn_config=attn,
        **TOKENS),
        "transformer.blocks.{}.attn", "out_proj", padded=True, notes=("ALiBi, clip_qkv",),
        vary=[dict(attn_config={**attn, "clip_qkv": None}),
              dict(attn_config={**attn, "softmax_scale": 1.0})])


@family
def opt(name):
    decoder(name, tf.OPTForCausalLM, tf.OPTConfig, dict(
        hidden_size=20, num_attention_heads=4, num_hidden_layers=1, ffn_dim=8,
        word_embed_proj_dim=20,
        max_position_embeddings=16, **TOKENS), "model.decoder.layers.{}.self_attn", "out_proj")


# --- decoders with their own places for windows and rotation -------------------------


def scaled(kind):
    """Scaled rotation of Llama 3's kind, which this many tokens show."""
    return dict(rope_type=kind, rope_theta=100.0, factor=8.0, low_freq_factor=1.0,
                high_freq_factor=4.0, original_max_position_embeddings=32)


@family
def arcee(name):
    decoder(name, tf.ArceeForCausalLM, tf.ArceeConfig, LLAMA, padded=True, vary=[THETA])


@family
def seed_oss(name):
    decoder(name, tf.SeedOssForCausalLM, tf.SeedOssConfig,
            {**LLAMA, "attention_bias": True, "attention_out_bias": False}, vary=[THETA])


@family
def csm(name):
    f = Family(name, tf.CsmBackboneModel, tf.CsmConfig, {
        **LLAMA, "codebook_size": VOCAB, "num_codebooks": 2,
        "depth_decoder_config": {**LLAMA, "backbone_hidden_size": 20, "num_codebooks": 2}})
    f.run([site("layer0", "layers.0.self_attn", "o_proj", causal=True)],
          {"input_ids": torch.randint(3, VOCAB, (B, 8, 2))}, vary=[(THETA, ["layer0"])])
    f.save()


@family
def emu3(name):
    decoder(name, tf.Emu3ForCausalLM, tf.Emu3TextConfig, LLAMA, vary=[THETA])


@family
def granitemoe(name):
    decoder(name, tf.GraniteMoeForCausalLM, tf.GraniteMoeConfig,
            {**GROUPED, "attention_multiplier": 0.6, "num_local_experts": 2,
             "num_experts_per_tok": 1}, vary=[dict(attention_multiplier=0.5), THETA])


@family
def hyperclovax(name):
    decoder(name, tf.HyperCLOVAXForCausalLM, tf.HyperCLOVAXConfig,
            {**LLAMA, "attention_multiplier": 0.6}, vary=[dict(attention_multiplier=None), THETA])


@family
def granitemoehybrid(name):
    decoder(name, tf.GraniteMoeHybridForCausalLM, tf.GraniteMoeHybridConfig, {
        **GROUPED, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "position_embedding_type": "rope", "attention_multiplier": 0.6, "num_local_experts": 0,
        "shared_intermediate_size": 8, "mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 4,
        "mamba_n_groups": 1}, layers=(1,), notes=("", "the other layer is a Mamba"),
        vary=[THETA, dict(position_embedding_type=None)])


@family
def granite_swa(name):
    decoder(name, tf.GraniteSWAForCausalLM, tf.GraniteSWAConfig, {
        **SMALL, "num_hidden_layers": 3, "sliding_window": 4, "attention_multiplier": 0.6,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "layer_rope_theta": [100.0, 7.0, 0]}, s=9, layers=(0, 1, 2),
        notes=("full", "sliding, base 7", "full, not rotated"),
        vary=[(dict(sliding_window=64), ["layer1"]),
              (dict(layer_rope_theta=[7.0, 100.0, 7.0]), ["layer0", "layer1", "layer2"]),
              dict(attention_multiplier=0.5)])


@family
def mixtral(name):
    decoder(name, tf.MixtralForCausalLM, tf.MixtralConfig, {
        **LLAMA, "sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1}, s=9,
        vary=[dict(sliding_window=None), THETA])


@family
def minimax(name):
    decoder(name, tf.MiniMaxForCausalLM, tf.MiniMaxConfig, {
        **SMALL, "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2,
        "num_experts_per_tok": 1, "block_size": 4}, layers=(1,), cached=False,
        notes=("", "softmax; the other layer is lightning attention"), vary=[THETA])


@family
def phimoe(name):
    rope = dict(rope_type="longrope", rope_theta=100.0, short_factor=[1.0, 1.5, 2.0, 1.0],
                long_factor=[1.5, 4.0, 2.0, 3.0], original_max_position_embeddings=6,
                short_mscale=1.3, long_mscale=1.3)
    f = Family(name, tf.PhimoeForCausalLM, tf.PhimoeConfig, {
        **LLAMA, "rope_parameters": rope, "num_local_experts": 2, "num_experts_per_tok": 2,
        "attention_bias": True, "sliding_window": 5, "max_position_embeddings": 24,
        "original_max_position_embeddings": 6})
    path = "model.layers.0.self_attn"
    for case, s, note in (("short", 6, "short_factor"), ("long", 9, "long_factor")):
        f.run([site(case, path, "o_proj", causal=True, note=f"{s} tokens: {note}, window of 5")],
              {"input_ids": token_ids(s)},
              vary=[(v, [case]) for v in (dict(rope_parameters=DEFAULT), dict(sliding_window=None),
                                          dict(rope_parameters={**rope, "short_mscale": 1.0,
                                                                "long_mscale": 1.0}))])
    f.save()


@family
def ministral(name):
    decoder(name, tf.MinistralForCausalLM, tf.MinistralConfig, {
        **SMALL, "layer_types": TWO, "sliding_window": 4}, s=9, layers=(0, 1),
        notes=("sliding", "full"), vary=[(dict(sliding_window=64), ["layer0"]), THETA])


@family
def cwm(name):
    rope = scaled("llama3")
    decoder(name, tf.CwmForCausalLM, tf.CwmConfig, {
        **SMALL, "sliding_window": 4, "rope_parameters": rope, "max_position_embeddings": 512}, s=9,
        layers=(0, 1), notes=("full", "sliding by default"),
        vary=[(dict(sliding_window=64), ["layer1"]), dict(rope_parameters=DEFAULT)])


@family
def qwen2_moe(name):
    decoder(name, tf.Qwen2MoeForCausalLM, tf.Qwen2MoeConfig, {
        **GROUPED, "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 4,
        "max_window_layers": 2, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}, s=9, layers=(0, 1),
        notes=("sliding: even and below max_window_layers", "full"),
        vary=[(dict(use_sliding_window=False), ["layer0"]), THETA])


@family
def qwen3_moe(name):
    decoder(name, tf.Qwen3MoeForCausalLM, tf.Qwen3MoeConfig, {
        **LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
        "rms_norm_eps": 1e-3, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 8}, s=9, notes=("sliding, whatever max_window_layers states",),
        vary=[dict(use_sliding_window=False), dict(rms_norm_eps=0.1), THETA])


@family
def dots1(name):
    decoder(name, tf.Dots1ForCausalLM, tf.Dots1Config, {
        **SMALL, "sliding_window": 4, "max_window_layers": 1, "rms_norm_eps": 1e-3,
        "first_k_dense_replace": 2}, s=9, layers=(0, 1), notes=("full", "sliding"),
        vary=[(dict(sliding_window=64), ["layer1"]), dict(rms_norm_eps=0.1), THETA])


@family
def apertus(name):
    decoder(name, tf.ApertusForCausalLM, tf.ApertusConfig, {
        **GROUPED, "rope_parameters": scaled("llama3"), "rms_norm_eps": 1e-3},
        vary=[dict(rope_parameters=DEFAULT), dict(rms_norm_eps=0.1)])


@family
def exaone4(name):
    decoder(name, tf.Exaone4ForCausalLM, tf.Exaone4Config, {
        **GROUPED, "num_hidden_layers": 2, "layer_types": TWO, "sliding_window": 4,
        "rms_norm_eps": 1e-3}, s=9, layers=(0, 1), notes=("sliding, rotated", "full, not rotated"),
        vary=[(dict(sliding_window=64), ["layer0"]), (THETA, ["layer0"]), dict(rms_norm_eps=0.1),
              (dict(sliding_window=None, layer_types=["full_attention"] * 2), ["layer1"])])


@family
def exaone4_full(name):
    decoder(name, tf.Exaone4ForCausalLM, tf.Exaone4Config, {
        **GROUPED, "layer_types": ["full_attention"], "sliding_window": None},
        notes=("no windows: rotated",), vary=[THETA])


@family
def lfm2(name):
    decoder(name, tf.Lfm2ForCausalLM, tf.Lfm2Config, {
        **GROUPED, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"],
        "norm_eps": 1e-3, "block_multiple_of": 8}, proj="out_proj", layers=(1,),
        notes=("", "the other layer is a convolution"), vary=[dict(norm_eps=0.1), THETA])


@family
def glm(name):
    decoder(name, tf.GlmForCausalLM, tf.GlmConfig,
            {**LLAMA, "rope_parameters": PARTIAL, "attention_bias": True}, padded=True, vary=[MORE])


@family
def glm4_moe(name):
    decoder(name, tf.Glm4MoeForCausalLM, tf.Glm4MoeConfig, {
        **LLAMA, "rope_parameters": PARTIAL, "use_qk_norm": True, "attention_bias": True,
        "rms_norm_eps": 1e-3, "first_k_dense_replace": 1},
        vary=[MORE, dict(use_qk_norm=False), dict(rms_norm_eps=0.1)])


@family
def mellum(name):
    rope = dict(full_attention=DEFAULT, sliding_attention=THETA["rope_parameters"])
    decoder(name, tf.MellumForCausalLM, tf.MellumConfig, {
        **SMALL, "head_dim": 8, "layer_types": TWO, "sliding_window": 4, "rope_parameters": rope,
        "rms_norm_eps": 1e-3, "num_experts": 2, "num_experts_per_tok": 1,
        "moe_intermediate_size": 8}, s=9, layers=(0, 1), notes=("sliding", "full, another base"),
        vary=[(dict(sliding_window=64), ["layer0"]), dict(rms_norm_eps=0.1),
              (dict(rope_parameters=dict(full_attention=DEFAULT, sliding_attention=DEFAULT)),
               ["layer0"])])


@family
def vaultgemma(name):
    decoder(name, tf.VaultGemmaForCausalLM, tf.VaultGemmaConfig, {
        **SMALL, "layer_types": TWO, "sliding_window": 4,
        "query_pre_attn_scalar": 5, "attn_logit_softcapping": 0.7},
        s=9, layers=(0, 1), notes=("sliding", "full"),
        vary=[dict(attn_logit_softcapping=None), dict(query_pre_attn_scalar=8),
              (dict(sliding_window=64), ["layer0"])])


@family
def flex_olmo(name):
    decoder(name, tf.FlexOlmoForCausalLM, tf.FlexOlmoConfig, {
        **GROUPED, "rms_norm_eps": 1e-3, "num_experts": 2, "num_experts_per_tok": 1},
        vary=[dict(rms_norm_eps=0.1), THETA])


@family
def olmoe(name):
    decoder(name, tf.OlmoeForCausalLM, tf.OlmoeConfig, {
        **GROUPED, "rms_norm_eps": 1e-3, "num_experts": 2, "num_experts_per_tok": 1},
        vary=[dict(rms_norm_eps=0.1), THETA])


@family
def olmo_hybrid(name):
    decoder(name, tf.OlmoHybridForCausalLM, tf.OlmoHybridConfig, {
        **GROUPED, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
        "rms_norm_eps": 1e-3, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
        "linear_key_head_dim": 4, "linear_value_head_dim": 4}, layers=(1,),
        notes=("", "the other layer is linear"), vary=[dict(rms_norm_eps=0.1), THETA])


@family
def minimax_m2(name):
    decoder(name, tf.MiniMaxM2ForCausalLM, tf.MiniMaxM2Config, {
        **LLAMA, "rope_parameters": PARTIAL, "rms_norm_eps": 1e-3, "num_local_experts": 2,
        "num_experts_per_tok": 1}, vary=[MORE, dict(rms_norm_eps=0.1)])


@family
def nemotron(name):
    decoder(name, tf.NemotronForCausalLM, tf.NemotronConfig,
            {**LLAMA, "rope_parameters": PARTIAL}, vary=[MORE])


@family
def gpt_neox_japanese(name):
    decoder(name, tf.GPTNeoXJapaneseForCausalLM, tf.GPTNeoXJapaneseConfig,
            {**PLAIN, "num_hidden_layers": 2, "intermediate_multiple_size": 1,
             "rope_parameters": PARTIAL},
            "gpt_neox_japanese.layers.{}.attention", "dense",
            notes=("its last layer has a bias of its own kind",), vary=[MORE])


@family
def solar_open(name):
    decoder(name, tf.SolarOpenForCausalLM, tf.SolarOpenConfig, {
        **LLAMA, "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8},
        vary=[THETA])


@family
def helium(name):
    decoder(name, tf.HeliumForCausalLM, tf.HeliumConfig,
            {**LLAMA, "hidden_size": 32}, vary=[THETA])


@family
def ernie4_5(name):
    decoder(name, tf.Ernie4_5ForCausalLM, tf.Ernie4_5Config, {**LLAMA, "use_bias": True},
            vary=[THETA])


@family
def smollm3(name):
    decoder(name, tf.SmolLM3ForCausalLM, tf.SmolLM3Config, {
        **GROUPED, "num_hidden_layers": 2, "no_rope_layer_interval": 2, "use_sliding_window": True,
        "sliding_window": 4}, s=9, layers=(0, 1), notes=("rotated, full", "not rotated, sliding"),
        vary=[(dict(no_rope_layers=[1, 1]), ["layer1"]), (THETA, ["layer0"]),
              (dict(sliding_window=64), ["layer1"])])


@family
def falcon_h1(name):
    decoder(name, tf.FalconH1ForCausalLM, tf.FalconH1Config, {
        **LLAMA, "key_multiplier": 0.4, "attention_in_multiplier": 0.7, "mamba_d_ssm": 16,
        "mamba_n_heads": 2, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1},
        vary=[dict(key_multiplier=1.0), THETA])


@family
def modernbert_decoder(name):
    local = dict(rope_type="default", rope_theta=10.0)
    rope = dict(sliding_attention=local, full_attention=DEFAULT)
    decoder(name, tf.ModernBertDecoderForCausalLM, tf.ModernBertDecoderConfig, {
        **PLAIN, "num_hidden_layers": 2, "layer_types": TWO, "local_attention": 8,
        "rope_parameters": rope}, "model.layers.{}.attn", "Wo", s=9, layers=(0, 1),
        notes=("sliding: half of local_attention", "full"),
        vary=[(dict(local_attention=64), ["layer0"]),
              (dict(rope_parameters=dict(sliding_attention=DEFAULT, full_attention=DEFAULT)),
               ["layer0"])])


@family
def eurobert(name):
    f = Family(name, tf.EuroBertModel, tf.EuroBertConfig, LLAMA)
    mask = right_padded(8)
    f.run([site("layer0", "layers.0.self_attn", "o_proj", note="sees both ways")],
          {"input_ids": token_ids(8), "attention_mask": mask}, mask=mask,
          vary=[(THETA, ["layer0"])])
    f.save()


@family
def llama_both_ways(name):
    f = Family(name, tf.LlamaForCausalLM, tf.LlamaConfig, {**LLAMA, "is_causal": False})
    f.run([site("layer0", "model.layers.0.self_attn", "o_proj", note="is_causal: false")],
          {"input_ids": token_ids(8)}, vary=[(dict(is_causal=True), ["layer0"])])
    f.save()


@family
def mistral_both_ways(name):
    f = Family(name, tf.MistralForCausalLM, tf.MistralConfig,
               {**LLAMA, "is_causal": False, "sliding_window": 2})
    f.run([site("layer0", "model.layers.0.self_attn", "o_proj",
                note="is_causal: false: 2 tokens on each side")],
          {"input_ids": token_ids(9)},
          vary=[(change, ["layer0"]) for change in (
              dict(is_causal=True), dict(sliding_window=1), dict(sliding_window=3))])
    f.save()


# --- text parts of models of several parts --------------------------------------------
MROPE = dict(rope_type="default", rope_theta=100.0, mrope_section=[2, 1, 1])
MROPE_THETA = dict(rope_parameters={**MROPE, "rope_theta": 7.0})
MROPE_PARTIAL = {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}
MROPE_MORE = dict(rope_parameters={**MROPE, "partial_rotary_factor": 1.0})
WITHOUT_HEAD_DIM = {k: v for k, v in LLAMA.items() if k != "head_dim"}
EXPERTS = dict(num_experts=2, num_local_experts=2, num_experts_per_tok=1, moe_intermediate_size=8)


def text_part(name, cls, config, kwargs, *, s=8, layers=(0,), notes=("", ""), axes=False,
              vary=()):
    """The text model alone: one case `layer{i}` for each layer.

    axes: also a case `image` with positions of three axes.
    """
    f = Family(name, cls, config, kwargs)
    sites = [site(f"layer{i}", f"layers.{i}.self_attn", "o_proj", causal=True, layer=i,
                  note=notes[i]) for i in layers]
    names = [x["case"] for x in sites]
    f.run(sites, {"input_ids": token_ids(s)},
          vary=[v if isinstance(v, tuple) else (v, names) for v in vary])
    if axes:
        image = site("image", "layers.0.self_attn", "o_proj", causal=True, note="three positions")
        positions = torch.stack([torch.randint(0, 9, (B, 6)) for _ in range(3)])
        f.run([image], {"input_ids": token_ids(6), "position_ids": positions})
    f.save()


QWEN_VL = {**WITHOUT_HEAD_DIM, "hidden_size": 32, "num_hidden_layers": 2, "rope_parameters": MROPE,
           "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
UPPER = dict(s=9, layers=(0, 1), notes=("M-RoPE over text", "the same in a window"),
             vary=[(dict(use_sliding_window=False), ["layer1"]), MROPE_THETA])


@family
def qwen2_vl(name):
    text_part(name, tf.Qwen2VLTextModel, tf.Qwen2VLTextConfig, {**QWEN_VL, "hidden_size": 24,
              "num_attention_heads": 3, "num_key_value_heads": 1}, axes=True, **UPPER)


@family
def qwen2_5_omni(name):
    text_part(name, tf.models.qwen2_5_omni.modeling_qwen2_5_omni.Qwen2_5OmniThinkerTextModel,
              tf.models.qwen2_5_omni.configuration_qwen2_5_omni.Qwen2_5OmniTextConfig,
              QWEN_VL, **UPPER)


@family
def qwen3_vl(name):
    text_part(name, tf.Qwen3VLTextModel, tf.Qwen3VLTextConfig,
              {**LLAMA, "rope_parameters": MROPE, "rms_norm_eps": 1e-3}, axes=True,
              notes=("M-RoPE over text",), vary=[MROPE_THETA, dict(rms_norm_eps=0.1)])


@family
def qwen3_omni(name):
    omni = tf.models.qwen3_omni_moe
    text_part(name, omni.modeling_qwen3_omni_moe.Qwen3OmniMoeThinkerTextModel,
              omni.configuration_qwen3_omni_moe.Qwen3OmniMoeTextConfig,
              {**LLAMA, "rope_parameters": MROPE, "rms_norm_eps": 1e-3, **EXPERTS},
              notes=("M-RoPE over text",), vary=[MROPE_THETA, dict(rms_norm_eps=0.1)])


@family
def qwen3_omni_talker(name):
    omni = tf.models.qwen3_omni_moe
    f = Family(name, omni.modeling_qwen3_omni_moe.Qwen3OmniMoeTalkerModel,
               omni.configuration_qwen3_omni_moe.Qwen3OmniMoeTalkerTextConfig,
               {**LLAMA, "rope_parameters": MROPE, "rms_norm_eps": 1e-3, **EXPERTS,
                "shared_expert_intermediate_size": 8})
    f.run([site("layer0", "layers.0.self_attn", "o_proj", causal=True, note="M-RoPE over text")],
          {"inputs_embeds": torch.randn(B, 8, 20)}, vary=[(MROPE_THETA, ["layer0"])])
    f.save()


@family
def qwen3_omni_code_predictor(name):
    omni = tf.models.qwen3_omni_moe
    f = Family(name, omni.modeling_qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorModel,
               omni.configuration_qwen3_omni_moe.Qwen3OmniMoeTalkerCodePredictorConfig,
               {**LLAMA, "layer_types": ["full_attention"], "num_code_groups": 2})
    f.run([site("layer0", "layers.0.self_attn", "o_proj", causal=True)],
          {"inputs_embeds": torch.randn(B, 8, 20)}, vary=[(THETA, ["layer0"])])
    f.save()


@family
def granite_docling(name):
    docling = tf.models.granite_docling
    text_part(name, docling.modeling_granite_docling.GraniteDoclingTextModel,
              docling.configuration_granite_docling.GraniteDoclingTextConfig,
              {**GROUPED, "attention_multiplier": 0.6},
              vary=[dict(attention_multiplier=0.5), THETA])


@family
def glm4v(name):
    text_part(name, tf.Glm4vTextModel, tf.models.glm4v.configuration_glm4v.Glm4vTextConfig,
              {**WITHOUT_HEAD_DIM, "hidden_size": 32, "rope_parameters": MROPE_PARTIAL}, axes=True,
              notes=("M-RoPE over text, pairs of neighbors",), vary=[MROPE_MORE])


@family
def glm4v_moe(name):
    text_part(name, tf.Glm4vMoeTextModel,
              tf.models.glm4v_moe.configuration_glm4v_moe.Glm4vMoeTextConfig,
              {**LLAMA, "rope_parameters": MROPE_PARTIAL, "n_routed_experts": 2,
               "num_experts_per_tok": 1, "first_k_dense_replace": 1},
              notes=("M-RoPE over text",), vary=[MROPE_MORE])


@family
def ernie4_5_vl(name):
    text_part(name, tf.models.ernie4_5_vl_moe.modeling_ernie4_5_vl_moe.Ernie4_5_VLMoeTextModel,
              tf.models.ernie4_5_vl_moe.configuration_ernie4_5_vl_moe.Ernie4_5_VLMoeTextConfig,
              {**WITHOUT_HEAD_DIM, "hidden_size": 32,
               "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]},
               "mlp_layer_types": ["dense"]},
              notes=("M-RoPE over text, pairs of neighbors",),
              vary=[dict(rope_parameters={**MROPE, "mrope_section": [1, 1, 2], "rope_theta": 7.0})])


@family
def paddleocr(name):
    text_part(name, tf.models.paddleocr_vl.modeling_paddleocr_vl.PaddleOCRTextModel,
              tf.models.paddleocr_vl.configuration_paddleocr_vl.PaddleOCRTextConfig,
              {**LLAMA, "rope_parameters": MROPE}, axes=True,
              notes=("M-RoPE over text",), vary=[MROPE_THETA])


@family
def deepseek_ocr2(name):
    text_part(name, tf.models.deepseek_ocr2.modeling_deepseek_ocr2.DeepseekOcr2TextModel,
              tf.models.deepseek_ocr2.configuration_deepseek_ocr2.DeepseekOcr2TextConfig,
              {**WITHOUT_HEAD_DIM, "hidden_size": 32, "n_routed_experts": 2,
               "num_experts_per_tok": 1, "mlp_layer_types": ["dense"]}, vary=[THETA])


@family
def higgs_audio_v2(name):
    f = Family(name, tf.HiggsAudioV2Model, tf.HiggsAudioV2Config,
               {**LLAMA, "rope_parameters": scaled("llama3"), "codebook_size": VOCAB,
                "num_codebooks": 2, "max_position_embeddings": 512})
    f.run([site("layer0", "layers.0.self_attn", "o_proj", causal=True)],
          {"input_ids": token_ids(8)}, vary=[(dict(rope_parameters=DEFAULT), ["layer0"])])
    f.save()


@family
def hy_v3(name):
    decoder(name, tf.HYV3ForCausalLM, tf.HYV3Config,
            {**LLAMA, "rms_norm_eps": 1e-3, "first_k_dense_replace": 1,
             "mlp_layer_types": ["dense"]},
            vary=[THETA, dict(rms_norm_eps=0.1)])


@family
def mllama(name):
    f = Family(name, tf.models.mllama.modeling_mllama.MllamaTextModel,
               tf.models.mllama.configuration_mllama.MllamaTextConfig,
               {**WITHOUT_HEAD_DIM, "hidden_size": 32, "num_hidden_layers": 2,
                "cross_attention_layers": [1], "rms_norm_eps": 1e-3})
    f.run([site("layer0", "layers.0.self_attn", "o_proj", causal=True),
           site("cross", "layers.1.cross_attn", "o_proj", kind="cross", layer=1,
                note="norms of queries and keys")],
          {"input_ids": token_ids(8), "cross_attention_states": torch.randn(B, 5, 32)},
          vary=[(THETA, ["layer0"]), (dict(rms_norm_eps=0.1), ["cross"])])
    f.save()


@family
def t5gemma(name):
    part = {**SMALL, "layer_types": TWO, "sliding_window": 3, "query_pre_attn_scalar": 5,
            "attn_logit_softcapping": 0.7, "attn_implementation": "eager"}
    f = Family(name, tf.T5GemmaForConditionalGeneration, tf.T5GemmaConfig,
               dict(encoder=part, decoder=part, vocab_size=VOCAB))
    sites = [site(f"encoder{i}", f"model.encoder.layers.{i}.self_attn", "o_proj", layer=i,
                  note=TWO[i]) for i in (0, 1)]
    sites += [site(f"decoder{i}", f"model.decoder.layers.{i}.self_attn", "o_proj", causal=True,
                   layer=i, note=TWO[i]) for i in (0, 1)]
    sites += [site("cross", "model.decoder.layers.0.cross_attn", "o_proj", kind="cross")]
    wide = {**part, "sliding_window": 64}
    f.run(sites, {"input_ids": token_ids(9), "decoder_input_ids": token_ids(8)},
          vary=[(dict(encoder=wide, decoder=wide), ["encoder0", "decoder0"])])
    f.save()


# --- other decoders with positions of the model, not of attention ---------------------


@family
def biogpt(name):
    decoder(name, tf.BioGptForCausalLM, tf.BioGptConfig, NOT_ROTARY, "biogpt.layers.{}.self_attn",
            "out_proj", padded=True)


@family
def imagegpt(name):
    decoder(name, tf.ImageGPTForCausalImageModeling, tf.ImageGPTConfig, {
        **GPT2, "n_layer": 2, "scale_attn_by_inverse_layer_idx": True}, "transformer.h.{}.attn",
        "c_proj", layers=(0, 1), vary=[(dict(scale_attn_by_inverse_layer_idx=False), ["layer1"])])


@family
def xglm(name):
    decoder(name, tf.XGLMForCausalLM, tf.XGLMConfig, dict(
        d_model=20, attention_heads=4, num_layers=1, ffn_dim=8, max_position_embeddings=16,
        **TOKENS), "model.layers.{}.self_attn", "out_proj")


@family
def ctrl(name):
    decoder(name, tf.CTRLLMHeadModel, tf.CTRLConfig, dict(
        n_embd=20, n_head=4, n_layer=1, dff=8, n_positions=16, **TOKENS),
        "transformer.h.{}.multi_head_attention", "dense")


@family
def openai_gpt(name):
    f = Family(name, tf.OpenAIGPTLMHeadModel, tf.OpenAIGPTConfig, dict(
        n_embd=20, n_head=4, n_layer=1, n_positions=16, **TOKENS))
    f.run([site("layer0", "transformer.h.0.attn", "c_proj", causal=True)],
          {"input_ids": token_ids(8)})
    f.save()


@family
def jamba(name):
    decoder(name, tf.JambaForCausalLM, tf.JambaConfig, {
        **NOT_ROTARY, "num_key_value_heads": 1, "attn_layer_period": 2, "attn_layer_offset": 1,
        "num_hidden_layers": 2, "expert_layer_period": 2, "num_experts": 1, "mamba_d_state": 4,
        "use_mamba_kernels": False}, layers=(1,), cached=False,
        notes=("", "the other layer is a Mamba"))


# --- encoder-decoders -----------------------------------------------------------------


def t5_of(name, cls, config, keep):
    """Encoder blocks 0 and 1, and of the decoder's block 0 the self- and the cross-attention."""
    f = Family(name, cls, config, dict(
        d_model=12, d_kv=5, num_heads=3, d_ff=8, num_layers=2, num_decoder_layers=2,
        relative_attention_num_buckets=8, relative_attention_max_distance=10,
        decoder_start_token_id=0, **TOKENS), keep)
    mask = right_padded(12)
    text = {"input_ids": token_ids(12), "attention_mask": mask, "decoder_input_ids": token_ids(11)}
    enc, dec = "encoder.block.{}.layer.0.SelfAttention", "decoder.block.{}.layer.0.SelfAttention"
    far = dict(relative_attention_max_distance=50)
    f.run([site(f"encoder{i}", enc.format(i), "o", layer=i,
                note="bidirectional buckets") for i in (0, 1)],
          text, mask=mask, vary=[(far, ["encoder0", "encoder1"])])
    f.run([site("decoder0", dec.format(0), "o", causal=True, note="one-sided buckets")],
          {**text, "attention_mask": torch.ones_like(mask)}, cached=["decoder0"],
          ids="decoder_input_ids",
          vary=[(far, ["decoder0"])])
    f.run([site("cross", "decoder.block.0.layer.1.EncDecAttention", "o", kind="cross",
                note="no position bias")],
          text, mask=mask)
    f.save()


@family
def t5(name):
    t5_of(name, tf.T5ForConditionalGeneration, tf.T5Config, ["relative_attention_bias"])


@family
def umt5(name):
    t5_of(name, tf.UMT5ForConditionalGeneration, tf.UMT5Config, [])


def bart_of(name, cls, config, encoder_inputs, mask=None, note="", **kwargs):
    f = Family(name, cls, config, dict(
        d_model=12, encoder_attention_heads=3, decoder_attention_heads=2, encoder_layers=1,
        decoder_layers=1,
        encoder_ffn_dim=8, decoder_ffn_dim=8, decoder_start_token_id=1, **TOKENS, **kwargs))
    inputs = {**encoder_inputs(), "decoder_input_ids": token_ids(8)}
    masked = {} if mask is None else {"attention_mask": mask}
    enc = site("encoder", "model.encoder.layers.0.self_attn", "out_proj", note=note)
    dec = site("decoder", "model.decoder.layers.0.self_attn", "out_proj", causal=True, note=note)
    cross = site("cross", "model.decoder.layers.0.encoder_attn", "out_proj", kind="cross",
                 note=note)
    f.run([enc, cross], {**inputs, **masked}, mask=mask)
    f.run([dec], inputs, cached=["decoder"], ids="decoder_input_ids")
    f.save()


@family
def bart(name):
    bart_of(name, tf.BartForConditionalGeneration, tf.BartConfig,
            lambda: {"input_ids": token_ids(7)},
            mask=right_padded(7), max_position_embeddings=16, forced_eos_token_id=2)


@family
def marian(name):
    bart_of(name, tf.MarianMTModel, tf.MarianConfig, lambda: {"input_ids": token_ids(7)},
            mask=right_padded(7), max_position_embeddings=16, forced_eos_token_id=2)


@family
def whisper(name):
    bart_of(name, tf.WhisperForConditionalGeneration, tf.WhisperConfig,
            lambda: {"input_features": torch.randn(B, 4, 14)}, num_mel_bins=4,
            max_source_positions=7,
            max_target_positions=16, note="k_proj has no bias")


# --- text encoders --------------------------------------------------------------------
BERT = dict(hidden_size=20, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8,
            max_position_embeddings=32, **TOKENS)
WIDE = dict(hidden_size=24, num_attention_heads=3)


def encoder(name, cls, config, kwargs, path, proj, prefix=None, *, s=8, entry="", layers=(0,),
            notes=("", ""),
            vary=(), keep=()):
    """A text encoder with right padding; one case `layer{i}` for each layer."""
    f = Family(name, cls, config, kwargs, keep)
    mask = right_padded(s)
    sites = [site(f"layer{i}", path.format(i), proj, (prefix or path).format(i), entry=entry,
                  layer=i,
                  note=notes[i]) for i in layers]
    names = [x["case"] for x in sites]
    f.run(sites, {"input_ids": token_ids(s), "attention_mask": mask}, mask=mask,
          vary=[v if isinstance(v, tuple) else (v, names) for v in vary])
    f.save()


LAYER = "encoder.layer.{}.attention"


@family
def bert(name):
    encoder(name, tf.BertModel, tf.BertConfig, BERT, LAYER, "output.dense")


@family
def roberta(name):
    encoder(name, tf.RobertaModel, tf.RobertaConfig, BERT, LAYER, "output.dense")


@family
def xlm_roberta(name):
    encoder(name, tf.XLMRobertaModel, tf.XLMRobertaConfig, BERT, LAYER, "output.dense")


@family
def electra(name):
    encoder(name, tf.ElectraModel, tf.ElectraConfig, {**BERT, "embedding_size": 8}, LAYER,
            "output.dense")


@family
def distilbert(name):
    encoder(name, tf.DistilBertModel, tf.DistilBertConfig, dict(
        dim=20, n_heads=4, n_layers=1, hidden_dim=8, max_position_embeddings=32, **TOKENS),
        "transformer.layer.{}.attention", "out_lin")


@family
def albert(name):
    encoder(name, tf.AlbertModel, tf.AlbertConfig, {**BERT, "embedding_size": 8},
            "encoder.albert_layer_groups.0.albert_layers.{}.attention", "dense")


@family
def mpnet(name):
    encoder(name, tf.MPNetModel, tf.MPNetConfig, BERT, "encoder.layer.{}.attention.attn", "o",
            LAYER, s=15,
            keep=["encoder.relative_attention_bias"], notes=("weights under .attn; shared bias",))


DEBERTA = {**BERT, "relative_attention": True, "position_biased_input": False,
           "pos_att_type": ["c2p", "p2c"],
           "type_vocab_size": 0}


@family
def deberta(name):
    encoder(name, tf.DebertaModel, tf.DebertaConfig, {**DEBERTA, "max_relative_positions": 6},
            LAYER,
            "output.dense", s=9, keep=["encoder.rel_embeddings"],
            vary=[dict(pos_att_type=["c2p"]), dict(pos_att_type=["p2c"]),
                  dict(relative_attention=False)])


@family
def deberta_long(name):
    encoder(name, tf.DebertaModel, tf.DebertaConfig, {**DEBERTA, "max_relative_positions": 12},
            LAYER,
            "output.dense", s=7, keep=["encoder.rel_embeddings"],
            notes=("shorter than max_relative_positions: the middle of the table is used",))


V2 = {**DEBERTA, "position_buckets": 6, "max_relative_positions": 12, "norm_rel_ebd": "layer_norm"}


def deberta_v2_of(name, share):
    encoder(name, tf.DebertaV2Model, tf.DebertaV2Config, {**V2, "share_att_key": share}, LAYER,
            "output.dense", s=11, keep=["encoder.rel_embeddings", "encoder.LayerNorm"],
            vary=[dict(pos_att_type=["c2p"]), dict(pos_att_type=["p2c"]), dict(norm_rel_ebd="none"),
                  dict(max_relative_positions=30)])


@family
def deberta_v2(name):
    deberta_v2_of(name, False)


@family
def deberta_v2_shared(name):
    deberta_v2_of(name, True)


@family
def modernbert(name):
    rope = dict(sliding_attention=dict(rope_type="default", rope_theta=10.0),
                full_attention=dict(rope_type="default", rope_theta=100.0))
    encoder(name, tf.ModernBertModel, tf.ModernBertConfig, {
        **BERT, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
        "local_attention": 4,
        "layer_types": ["full_attention", "sliding_attention"], "rope_parameters": rope},
        "layers.{}.attn", "Wo", s=9, layers=(0, 1),
        notes=("full", "local: |i - j| <= local_attention / 2"),
        vary=[(dict(local_attention=64), ["layer1"]), (dict(local_attention=6), ["layer1"]),
              dict(rope_parameters={k: dict(rope_type="default", rope_theta=7.0) for k in rope})])


@family
def nomic_bert(name):
    encoder(name, tf.NomicBertModel, tf.NomicBertConfig,
            {**BERT, **WIDE, "head_dim": 8, "rope_parameters": DEFAULT},
            "layers.{}.self_attn", "o_proj", "encoder.layers.{}.attn", vary=[THETA])


@family
def gte(name):
    encoder(name, tf.GteModel, tf.GteConfig, {**BERT, **WIDE, "rope_parameters": DEFAULT},
            "layers.{}.self_attn", "o_proj", "encoder.layer.{}.attention", vary=[THETA])


@family
def jina_embeddings_v3(name):
    encoder(name, tf.JinaEmbeddingsV3Model, tf.JinaEmbeddingsV3Config,
            {**BERT, **WIDE, "rope_parameters": DEFAULT},
            "layers.{}.self_attn", "o_proj", "encoder.layers.{}.mixer", vary=[THETA])


@family
def esm(name):
    # The frequencies are saved as a buffer: another rope_theta would be overwritten.
    encoder(name, tf.EsmModel, tf.EsmConfig, {
        **BERT, **WIDE, "position_embedding_type": "rotary", "token_dropout": False,
        "mask_token_id": 3},
        LAYER, "output.dense", entry="self", notes=("input is after attention.LayerNorm",),
        vary=[dict(position_embedding_type="absolute")])


# --- encoders as decoders -------------------------------------------------------------


def encoder_as_decoder(name, cls, config, path, **kwargs):
    """Self-attention (causal) and cross-attention of an encoder that is a decoder."""
    f = Family(name, cls, config, {**BERT, "is_decoder": True, "add_cross_attention": True,
                                   **kwargs})
    text = {"input_ids": token_ids(6), "encoder_hidden_states": torch.randn(B, 7, 20)}
    f.run([site("layer0", f"{path}.attention", "output.dense", causal=True, note="is_decoder")],
          text, cached=["layer0"], vary=[(dict(is_causal=False), ["layer0"])])
    mask = right_padded(7)
    f.run([site("cross", f"{path}.crossattention", "output.dense", kind="cross")],
          {**text, "encoder_attention_mask": mask}, mask=mask)
    f.save()


@family
def bert_decoder(name):
    encoder_as_decoder(name, tf.BertLMHeadModel, tf.BertConfig, "bert.encoder.layer.0")


@family
def roberta_decoder(name):
    encoder_as_decoder(name, tf.RobertaForCausalLM, tf.RobertaConfig, "roberta.encoder.layer.0")


# --- images and sound -----------------------------------------------------------------
IMAGE = dict(hidden_size=20, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8,
             patch_size=4)


def picture(name, cls, config, kwargs, path, proj, prefix=None, size=(8, 8), keep=(), vary=(),
            note=""):
    f = Family(name, cls, config, kwargs, keep)
    f.run([site("layer0", path, proj, prefix, note=note)], {"pixel_values": pixels(*size)},
          vary=[(v, ["layer0"]) for v in vary])
    f.save()


@family
def vit(name):
    picture(name, tf.ViTModel, tf.ViTConfig, {**IMAGE, "image_size": 8}, "layers.0.attention",
            "o_proj",
            "encoder.layer.0.attention")


@family
def dinov2(name):
    picture(name, tf.Dinov2Model, tf.Dinov2Config, {**IMAGE, "image_size": 8, "mlp_ratio": 1},
            "encoder.layer.0.attention", "o_proj")


@family
def dinov3_vit(name):
    picture(name, tf.DINOv3ViTModel, tf.DINOv3ViTConfig, {
        **IMAGE, **WIDE, "image_size": 12, "num_register_tokens": 2, "rope_theta": 20.0},
        "model.layer.0.attention", "o_proj", "layer.0.attention", size=(12, 8),
        vary=[dict(rope_theta=100.0)],
        note="3 prefix tokens (cls and 2 registers), then 3 x 2 patches")


@family
def beit(name):
    picture(name, tf.BeitModel, tf.BeitConfig, {**IMAGE, "image_size": 12,
                                                "use_relative_position_bias": True},
            "layers.0.attention", "o_proj", "encoder.layer.0.attention", size=(12, 12),
            note="cls token, then 3 x 3 patches; bias table of the layer")


@family
def beit_shared(name):
    f = Family(name, tf.BeitModel, tf.BeitConfig, {
        **IMAGE, "image_size": 12, "use_shared_relative_position_bias": True},
        ["encoder.relative_position_bias"])
    f.run([site("layer0", "layers.0.attention", "o_proj", "encoder.layer.0.attention",
                note="cls token, then 3 x 3 patches; shared bias table")],
                {"pixel_values": pixels(12, 12)})
    f.save()


@family
def swin(name):
    f = Family(name, tf.SwinModel, tf.SwinConfig, dict(
        image_size=12, patch_size=2, embed_dim=12, depths=[1, 1], num_heads=[2, 3], window_size=3,
        num_channels=3))
    f.run([site(f"stage{i}", f"encoder.layers.{i}.blocks.0.attention", "o_proj", layer=i,
                note="windows of 3 x 3 patches") for i in (0, 1)], {"pixel_values": pixels(12, 12)})
    f.save()


def towers(name, cls, config, pool):
    tower = dict(hidden_size=12, intermediate_size=8, num_hidden_layers=1)
    text = dict(num_attention_heads=3, max_position_embeddings=16, **tower, **TOKENS)
    vision = dict(num_attention_heads=2, image_size=8, patch_size=4, **tower)
    more = {} if pool else {"projection_dim": 8}
    f = Family(name, cls, config, dict(text_config=text, vision_config=vision, **more),
               ["head.probe"] if pool else [])
    for part in (f.model.config.text_config, f.model.config.vision_config):
        assert part._attn_implementation == "eager"
    mask = right_padded(7)
    modules = dict(f.model.named_modules())

    def at(tower):
        return next(k for k in modules if k.startswith(tower) and k.endswith("layers.0.self_attn"))

    text = site("text", at("text"), "out_proj", "text_model.encoder.layers.0.self_attn",
                causal=not pool,
                note="" if pool else "causal and padded")
    sites = [text, site("vision", at("vision"), "out_proj",
                        "vision_model.encoder.layers.0.self_attn")]
    image = {"pixel_values": pixels(8, 8)}
    f.run(sites[:1], {"input_ids": token_ids(7), "attention_mask": mask, **image}, mask=mask)
    f.run(sites[1:], {"input_ids": token_ids(7), **image})
    if pool:
        path = next(k for k in modules if k.startswith("vision") and k.endswith("head.attention"))
        f.run([site("pool", path, "", "vision_model.head.attention", kind="cross",
                    note="nn.MultiheadAttention; query = vision_model.head.probe")],
              {"input_ids": token_ids(7), **image})
    f.save()


@family
def clip(name):
    towers(name, tf.CLIPModel, tf.CLIPConfig, False)


@family
def siglip(name):
    towers(name, tf.SiglipModel, tf.SiglipConfig, True)


@family
def wav2vec2(name):
    f = Family(name, tf.Wav2Vec2Model, tf.Wav2Vec2Config, dict(
        hidden_size=20, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8,
        conv_dim=[8, 8],
        conv_stride=[4, 2], conv_kernel=[4, 2], num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        num_feat_extract_layers=2, codevector_dim=8, proj_codevector_dim=8, **TOKENS))
    f.run([site("layer0", "encoder.layers.0.attention", "out_proj")],
          {"input_values": torch.randn(B, 72)})
    f.save()


# --- parts of multimodal models --------------------------------------------------------

TINY = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8)


def part(name, model, config, kwargs, sites, inputs, vary=()):
    """A model whose classes transformers exports only from its own module."""
    module = importlib.import_module(f"transformers.models.{model[0]}.modeling_{model[0]}")
    configs = importlib.import_module(f"transformers.models.{model[0]}.configuration_{model[0]}")
    f = Family(name, getattr(module, model[1]), getattr(configs, config), kwargs)
    f.run(sites, inputs, vary=vary)
    f.save()


@family
def segformer(name):
    f = Family(name, tf.SegformerModel, tf.SegformerConfig, dict(
        num_encoder_blocks=2, depths=[1, 1], hidden_sizes=[8, 12], num_attention_heads=[2, 3],
        sr_ratios=[1, 1], patch_sizes=[3, 3], strides=[2, 2], mlp_ratios=[1, 1]))
    modules = [k for k in dict(f.model.named_modules()) if k.endswith("attention.o_proj")
               or k.endswith("attention.output.dense")]
    f.run([site(f"stage{i}", at[:at.index("attention") + 9], at[at.index("attention") + 10:],
                f"encoder.block.{i}.0.attention", layer=i) for i, at in enumerate(modules)],
          {"pixel_values": pixels(8, 8)})
    f.save()


@family
def metaclip_2(name):
    towers(name, tf.MetaClip2Model, tf.MetaClip2Config, False)


@family
def clipseg(name):
    tower = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    f = Family(name, tf.CLIPSegForImageSegmentation, tf.CLIPSegConfig, dict(
        text_config=dict(max_position_embeddings=16, **tower, **TOKENS),
        vision_config=dict(image_size=8, patch_size=4, **tower), projection_dim=8, reduce_dim=12,
        extract_layers=[0], decoder_num_attention_heads=3, decoder_intermediate_size=8))
    f.run([site("decoder", "decoder.layers.0.self_attn", "out_proj")],
          {"input_ids": token_ids(7), "pixel_values": pixels(8, 8)})
    f.save()


@family
def blip(name):
    tiny = {**TINY, "hidden_size": 12, "num_attention_heads": 3}
    text = dict(encoder_hidden_size=8, max_position_embeddings=16, vocab_size=VOCAB, pad_token_id=0,
                bos_token_id=1, eos_token_id=2, sep_token_id=3, **tiny)
    f = Family(name, tf.BlipForConditionalGeneration, tf.BlipConfig, dict(
        text_config=text, vision_config={**TINY, "hidden_size": 8, "image_size": 8,
                                         "patch_size": 4}, image_text_hidden_size=8))
    layer = "text_decoder.bert.encoder.layer.0"
    f.run([site("vision", "vision_model.encoder.layers.0.self_attn", "projection"),
           site("text", f"{layer}.attention", "output.dense", causal=True),
           site("cross", f"{layer}.crossattention", "output.dense", kind="cross")],
          {"pixel_values": pixels(8, 8), "input_ids": token_ids(7),
           "attention_mask": torch.ones(B, 7, dtype=torch.long)})
    f.save()


@family
def blip_2_qformer(name):
    f = Family(name, tf.Blip2QFormerModel, tf.Blip2QFormerConfig, dict(
        encoder_hidden_size=12, cross_attention_frequency=1, vocab_size=VOCAB, **TINY))
    f.run([site("layer0", "encoder.layer.0.attention", "output.dense"),
           site("cross", "encoder.layer.0.crossattention", "output.dense", kind="cross")],
          {"query_embeds": torch.randn(B, 5, 16), "encoder_hidden_states": torch.randn(B, 7, 12)})
    f.save()


@family
def internvl_vision(name):
    part(name, ("internvl", "InternVLVisionModel"), "InternVLVisionConfig", dict(
        **TINY, image_size=[8, 8], patch_size=[4, 4], use_qk_norm=True, layer_norm_eps=0.5),
        [site("layer0", "encoder.layer.0.attention", "projection_layer",
              note="RMS norms over all heads")], {"pixel_values": pixels(8, 8)})


@family
def pix2struct_vision(name):
    at = torch.tensor([[[y, x] for y in (1.0, 2.0) for x in (1.0, 2.0)]]).expand(B, -1, -1)
    part(name, ("pix2struct", "Pix2StructVisionModel"), "Pix2StructVisionConfig", dict(
        hidden_size=16, patch_embed_hidden_size=12, d_ff=8, d_kv=6, num_hidden_layers=1,
        num_attention_heads=3), [site("layer0", "encoder.layer.0.attention", "output")],
        {"flattened_patches": torch.cat([at, torch.randn(B, 4, 12)], -1)})


@family
def pixtral(name):
    part(name, ("pixtral", "PixtralVisionModel"), "PixtralVisionConfig", dict(
        **{**TINY, "num_attention_heads": 2}, image_size=32, patch_size=4,
        rope_parameters={"rope_type": "axial", "rope_theta": 50.0}),
        [site("layer0", "transformer.layers.0.attention", "o_proj", grid=[3, 5])],
        {"pixel_values": torch.randn(1, 3, 12, 20)},
        vary=[(dict(rope_parameters={"rope_type": "axial", "rope_theta": 9.0}), ["layer0"])])


@family
def qwen2_vl_vision(name):
    part(name, ("qwen2_vl", "Qwen2VisionTransformerPretrainedModel"), "Qwen2VLVisionConfig", dict(
        depth=1, embed_dim=16, hidden_size=8, num_heads=2, mlp_ratio=1, patch_size=4),
        [site("layer0", "blocks.0.attn", "proj", grid=[4, 6], note="blocks of 2 x 2 patches")],
        {"hidden_states": torch.randn(24, 96), "grid_thw": torch.tensor([[1, 4, 6]])})


@family
def qwen2_audio_encoder(name):
    part(name, ("qwen2_audio", "Qwen2AudioEncoder"), "Qwen2AudioEncoderConfig", dict(
        num_mel_bins=4, encoder_layers=1, encoder_attention_heads=4, encoder_ffn_dim=8, d_model=16,
        max_source_positions=6), [site("layer0", "layers.0.self_attn", "out_proj")],
        {"input_features": torch.randn(B, 4, 12)})


@family
def glmasr_encoder(name):
    part(name, ("glmasr", "GlmAsrEncoder"), "GlmAsrEncoderConfig", dict(
        **{**TINY, "num_attention_heads": 2}, num_mel_bins=4, head_dim=8, max_position_embeddings=16,
        rope_parameters={"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}),
        [site("layer0", "layers.0.self_attn", "o_proj")], {"input_features": torch.randn(B, 4, 12)},
        vary=[(dict(rope_parameters={"rope_type": "default", "rope_theta": 9.0,
                                     "partial_rotary_factor": 0.5}), ["layer0"])])


@family
def videomae(name):
    f = Family(name, tf.VideoMAEModel, tf.VideoMAEConfig, dict(
        **TINY, image_size=8, patch_size=4, num_frames=2, tubelet_size=2))
    f.run([site("layer0", "encoder.layer.0.attention", "output.dense")],
          {"pixel_values": torch.randn(B, 2, 3, 8, 8)})
    f.save()


@family
def timesformer(name):
    f = Family(name, tf.TimesformerModel, tf.TimesformerConfig, dict(
        **{**TINY, "hidden_size": 12, "num_attention_heads": 3}, image_size=8, patch_size=4, num_frames=3))
    layer = "encoder.layer.0"
    f.run([site("space", f"{layer}.attention", "output.dense"),
           site("time", f"{layer}.temporal_attention", "output.dense")],
          {"pixel_values": torch.randn(B, 3, 3, 8, 8)})
    f.save()


@family
def glm_ocr_vision(name):
    part(name, ("glm_ocr", "GlmOcrVisionModel"), "GlmOcrVisionConfig", dict(
        depth=1, hidden_size=16, num_heads=2, intermediate_size=8, patch_size=4,
        out_hidden_size=8), [site("layer0", "blocks.0.attn", "proj", grid=[4, 6],
                                  note="blocks of 2 x 2 patches, RMS norms of each head")],
        {"hidden_states": torch.randn(24, 96), "grid_thw": torch.tensor([[1, 4, 6]])})


@family
def moonshine(name):
    f = Family(name, tf.MoonshineModel, tf.MoonshineConfig, dict(
        hidden_size=16, intermediate_size=8, encoder_num_hidden_layers=1,
        decoder_num_hidden_layers=1, encoder_num_attention_heads=2, decoder_num_attention_heads=4,
        max_position_embeddings=32, rope_parameters={
            "rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}, **TOKENS))
    f.run([site("encoder", "encoder.layers.0.self_attn", "o_proj"),
           site("decoder", "decoder.layers.0.self_attn", "o_proj", causal=True),
           site("cross", "decoder.layers.0.encoder_attn", "o_proj", kind="cross")],
          {"input_values": torch.randn(B, 2000), "decoder_input_ids": token_ids(6)})
    f.save()


STREAM = {**TINY, "num_attention_heads": 2, "head_dim": 8, "sliding_window": 3,
          "max_position_embeddings": 32,
          "rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}


@family
def voxtral_realtime_encoder(name):
    part(name, ("voxtral_realtime", "VoxtralRealtimeEncoder"), "VoxtralRealtimeEncoderConfig", dict(
        **STREAM, num_mel_bins=4), [site("layer0", "layers.0.self_attn", "o_proj", causal=True)],
        {"input_features": torch.randn(B, 4, 16)}, vary=[(dict(sliding_window=4), ["layer0"])])


@family
def voxtral_realtime_text(name):
    part(name, ("voxtral_realtime", "VoxtralRealtimeTextModel"), "VoxtralRealtimeTextConfig", dict(
        **STREAM, num_key_value_heads=1, **TOKENS),
        [site("layer0", "layers.0.self_attn", "o_proj", causal=True)],
        {"input_ids": token_ids(8), "t_cond": torch.randn(1, 1, 16)},
        vary=[(dict(sliding_window=4), ["layer0"])])


@family
def mimi(name):
    part(name, ("mimi", "MimiModel"), "MimiConfig", dict(
        **STREAM, num_key_value_heads=2, num_filters=2, upsampling_ratios=[2], codebook_size=4,
        codebook_dim=4,
        num_quantizers=2, vector_quantization_hidden_dimension=4, upsample_groups=16,
        sampling_rate=8, _frame_rate=2),
        [site("layer0", "encoder_transformer.layers.0.self_attn", "o_proj", causal=True)],
        {"input_values": torch.randn(B, 1, 16)}, vary=[(dict(sliding_window=4), ["layer0"])])


# --- timm -----------------------------------------------------------------------------


def of_timm(name, cls, kwargs, size, knows, note="", keep=()):
    f = Family(name, cls, None, kwargs, keep, timm={"num_heads": kwargs["num_heads"], **knows})
    f.run([site("layer0", "blocks.0.attn", "proj", note=note)], pixels(*size))
    f.save()


TIMM = dict(img_size=(12, 8), patch_size=4, embed_dim=20, num_heads=4, depth=1, mlp_ratio=1,
            num_classes=2)
GRID = dict(img_size=[12, 8], patch_size=4)


@family
def timm_vit(name):
    of_timm(name, timm.models.VisionTransformer, TIMM, (12, 8), {})


@family
def timm_vit_qknorm(name):
    of_timm(name, timm.models.VisionTransformer, {**TIMM, "qk_norm": True}, (12, 8),
            {"norm_eps": 1e-6},
            note="LayerNorm of each head")


@family
def timm_beit(name):
    of_timm(name, Beit, {**TIMM, "qkv_bias": True, "use_rel_pos_bias": True,
                         "use_abs_pos_emb": False}, (12, 8), GRID,
            note="bias table of the layer, 3 x 2 patches")


@family
def timm_beit_shared(name):
    of_timm(name, Beit, {**TIMM, "qkv_bias": True, "use_shared_rel_pos_bias": True,
                         "use_abs_pos_emb": False}, (12, 8), GRID, keep=["rel_pos_bias."],
            note="bias table of all layers, 3 x 2 patches")


EVA = {**TIMM, "embed_dim": 24, "num_heads": 3, "use_rot_pos_emb": True, "ref_feat_shape": (4, 4),
       "rope_temperature": 20.0}
ROPE = {**GRID, "use_rot_pos_emb": True, "ref_feat_shape": [4, 4], "rope_temperature": 20.0}


@family
def timm_eva(name):
    of_timm(name, Eva, EVA, (12, 8), ROPE, note="rotary on patches, qkv with q_bias and v_bias")


@family
def timm_eva_split(name):
    of_timm(name, Eva, {**EVA, "qkv_fused": False, "rope_rotate_half": True}, (12, 8),
            {**ROPE, "rope_rotate_half": True},
            note="rotary on patches, split q_proj, k_proj, v_proj")


@family
def timm_siglip_pool(name):
    f = Family(name, timm.models.VisionTransformer, None,
               {**TIMM, "global_pool": "map", "class_token": False}, timm={"num_heads": 4},
               keep=["attn_pool.latent"])
    got = {}
    f.model.attn_pool.register_forward_pre_hook(lambda _m, args: got.update(key=args[0].clone()))
    f.run([site("pool", "attn_pool", "proj", note="query = attn_pool.latent")], pixels(12, 8))
    f.cases[0]["kind"] = "cross"
    f.tensors["golden.pool.key"] = got["key"]
    f.tensors["golden.pool.input"] = f.saved["attn_pool.latent"].expand(B, -1, -1)
    f.saved = {k: v for k, v in f.saved.items() if ".mlp." not in k and ".norm." not in k}
    f.save()


failed = []
for family_name, make in FAMILIES.items():
    if WANTED and family_name not in WANTED:
        continue
    try:
        make(family_name)
    except Exception as e:  # the others are still made; the exit status tells
        failed.append(family_name)
        print(f"{family_name:18} FAILED  {type(e).__name__}: {e}"[:1500])
save(OUT, FILES, PACKAGES, NOTE)
sys.exit(1 if failed else 0)
