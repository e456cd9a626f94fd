"""Finds numbers that are wrong in silence: changes a tiny model of each type, one thing at a time, and compares its attention.

Of each type that docs/model-types.md calls right, the tiny model of model_types.py is built again from its own `config.json`
with one key of it, or of a section, changed, added or left out (rotations, windows, kinds of layers, heads, biases, caps,
flags); with padding; with a text longer than every length that the configuration names; and its file is read with one tensor
left out. transformers and this crate read the same `config.json`. A layer is right if it agrees to 1e-4 of the largest
output. What transformers itself does not build or run counts as not run. Layers that are not right before the change do not
count.

    SUITE=... python tests/golden/flip_keys.py [--seconds N] [--changes WORD] [--kept FOLDER] [model_type ...]

Prints a line for each change that is wrong, and totals. SUITE: the built tests; without it, cargo builds them. --changes: only
changes whose names have the word. --kept: where the files of each type stay, and are not made again. Nothing is written
into the repository.

Not faults of this crate: ConvBERT with padding (here tokens that no query sees count as zeros in its convolution), TimesFM with a
longer context (the model pads its input), Falcon with ALiBi (transformers' eager adds it twice), diffusion_gemma with biases (those
of its two stacks are not tied, and the hooks find the first), SAM's and ViTDet's towers without positions (the hooks do not flatten
their patches), Swin with more blocks and audio encoders with other windows (the hooks do not see what hides keys there), Llama 4
padded on the left (its model counts chunks from the first token that is no padding), Moonshine with other heads in the decoder (its
model overwrites one number with the other).

Made with torch 2.15.0, transformers 5.24.0, timm 1.0.31.
"""

import argparse
import copy
import inspect
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path

import model_types
import model_types_tiny as tiny
import torch
from model_types_hooks import beginnings
from model_types_table import NOT_READ, ROOT, place, verdicts
from transformers.modeling_utils import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

RIGHT = 1e-4
LONG = 150
# Keys that no attention reads, beside those of the table.
OTHERS = re.compile(r"token|vocab|drop|_act$|_activation|activation_|loss|label|num_.*experts|n_routed|router|mamba_|^ssm_|_prob|_std$"
                    r"|initializer|^task|name|model_type|mask_|^tie_|^output_|^return_|^is_encoder_decoder|^ctc_|problem|gradient|checkpoint")
# Rotations in the spelling of transformers 5; those of a list of factors have one for each pair.
ROTATIONS = {
    "default": {"rope_type": "default", "rope_theta": 30.0},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    "yarn of factors": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "mscale": 1.0,
                        "mscale_all_dim": 0.7, "beta_fast": 20.0, "beta_slow": 2.0},
    "yarn untruncated": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "truncate": False,
                         "attention_factor": 1.3},
    "yarn of lengths": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 8, "short_factor": 1.5,
                 "long_factor": 3.0},
    "longrope for shorter": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 32, "short_factor": 1.5,
                             "long_factor": 3.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
    "half": {"rope_type": "default", "partial_rotary_factor": 0.5},
}
# Keys that a file can have and the class does not write: each is added where attention is, in one of these values.
ADDED = {
    "is_causal": [False], "is_decoder": [True], "rope_theta": [30.0], "rope_scaling": [{"rope_type": "linear", "factor": 3.0}],
    "sliding_window": [3], "partial_rotary_factor": [0.5], "rotary_pct": [0.5], "position_embedding_type": ["alibi", "relative_key"],
    "original_max_position_embeddings": [8], "attn_logit_softcapping": [0.5], "attention_bias": [True], "head_dim": [4],
    "use_bidirectional_attention": [True], "attention_chunk_size": [3],
}
COUNTED = re.compile(r"window|chunk|block|interval|pattern|span|radius|context|period|offset|stride|local|first_k|_layers$|index")
SCALED = re.compile(r"scal|multiplier|softcap|logit_cap|clip_qkv|factor|_beta|theta|base|eps$|exponent|temperature")


def at(config, path):
    for part in path:
        config = config[part]
    return config


def sections(config, path=()):
    """The paths of the configuration and its sections that describe models."""
    yield path
    for key, value in config.items():
        if isinstance(value, dict) and (key.endswith("config") or "model_type" in value):
            yield from sections(value, (*path, key))


def is_rotation(value):
    return isinstance(value, dict) and any("rope" in key or isinstance(v, dict) for key, v in value.items())


def rotations(section):
    """Changes of the rotation of a section: {name: {key: value}}, where DELETE leaves a key out."""
    held = section.get("rope_parameters")
    if not is_rotation(held):
        return
    kinds = [key for key, value in held.items() if isinstance(value, dict)]
    width = first_number(section, "hidden_size", "d_model", "n_embd", "dim")
    heads = first_number(section, *tiny.HEADS)
    d = first_number(section, "qk_rope_head_dim", "head_dim") or (width // heads if width and heads else 8)
    for kind in kinds or [None]:
        old = held[kind] if kind else held
        d_here = int(d * (old.get("partial_rotary_factor") or section.get("partial_rotary_factor") or 1))
        for name, given in ROTATIONS.items():
            new = {key: [value] * (d_here // 2) if key.endswith("_factor") and key[:5] in ("short", "long_") else value
                   for key, value in given.items()}
            kept = {key: old[key] for key in ("rope_theta", "partial_rotary_factor", "mrope_section") if key in old}
            new = {key: value for key, value in {**kept, **new}.items() if value is not None}
            yield f"{name}{f' of {kind}' if kind else ''}", {"rope_parameters": {**held, kind: new} if kind else new}
            if not kind:
                outside = {key: new.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in new}
                scaling = {} if new == {"rope_type": "default"} else {"rope_scaling": new}
                yield f"older {name}", {"rope_parameters": tiny.DELETE, **outside, **scaling}
                yield f"older {name} by type", {"rope_parameters": tiny.DELETE, **outside, "rope_scaling": {
                    {"rope_type": "type"}.get(key, key): value for key, value in new.items()}}
        for key in old:
            without = {k: v for k, v in old.items() if k != key}
            yield f"rotation without {key}{f' of {kind}' if kind else ''}", {
                "rope_parameters": {**held, kind: without} if kind else without}
    for kind in kinds:
        yield f"rotation without {kind}", {"rope_parameters": {k: v for k, v in held.items() if k != kind}}
        yield f"rotation of {kind} for all", {"rope_parameters": held[kind]}
    if not kinds:
        yield "rotation and theta outside", {"rope_theta": 30.0}
        yield "theta outside alone", {"rope_theta": 30.0, "rope_parameters": {k: v for k, v in held.items() if k != "rope_theta"}}


def first_number(section, *keys):
    return next((section[key] for key in keys if isinstance(section.get(key), int)), None)


def values(key, value, section):
    """Other values of a key."""
    if isinstance(value, bool):
        return [not value]
    if key in tiny.HEADS and isinstance(value, int):
        return [value * 2, value // 2 or 1]
    if key in tiny.GROUPS and isinstance(value, int):
        heads = first_number(section, *tiny.HEADS) or 4
        return [n for n in (1, 2, heads) if n != value]
    if re.search(r"head_dim|head_size|kv_channels|d_kv|_rank$", key) and isinstance(value, int):
        return [2 * value, None]
    if key == "layer_types" and isinstance(value, list) and value:
        kinds = [["full_attention"] * len(value), ["sliding_attention"] * len(value), value[::-1]]
        return [kind for kind in kinds if kind != value]
    if isinstance(value, list) and value and all(isinstance(v, (str, int)) for v in value) and re.search("layer|types|index", key):
        return [value[::-1]] if value[::-1] != value else []
    if key == "position_embedding_type" or key == "position_embeddings_type":
        return [other for other in ("relative_key", "relative_key_query", "rotary", "relative", "alibi") if other != value]
    if isinstance(value, int) and COUNTED.search(key):
        return [n for n in (2, 3, None) if n != value]
    if isinstance(value, (int, float)) and SCALED.search(key):
        return [0.5 if value != 0.5 else 0.7, None]
    if value is None and re.search("window|chunk", key):
        return [3]
    if value is None and re.search("softcap|logit_cap|clip_qkv|multiplier|scale", key):
        return [0.5]
    if value is None and key in tiny.GROUPS:
        return [1]
    return []


def changes(config, whole):
    """All changes of a `config.json`, one after another: (what, the file). whole: what the class makes of it."""
    for path in sections(config):
        section, where = at(config, path), ".".join((*path, ""))
        made = whole
        for part in path:
            made = getattr(made, part, None)
        silent = {key: value for key, value in made.to_dict().items() if key not in section} if hasattr(made, "to_dict") else {}

        def changed(what, new, path=path, where=where):
            file = copy.deepcopy(config)
            tiny.set_keys(at(file, path), new)
            return f"{where}{what}", file
        has_heads = any(key in tiny.HEADS for key in section)
        # A type of its own, whose keys are changed there: the model around it has a say where they are silent.
        is_type = bool(path) and section.get("model_type") in CONFIG_MAPPING
        for key, value in {**section, **silent}.items():
            if key in NOT_READ or OTHERS.search(key):
                continue
            if key in section and not (isinstance(value, dict) and key.endswith("config")):
                yield changed(f"{key} left out", {key: tiny.DELETE})
            for other in values(key, value, section) if not is_type or isinstance(value, bool) else []:
                yield changed(f"{key} = {json.dumps(other)}", {key: other})
        if path and "model_type" in section:
            yield changed("model_type left out", {"model_type": tiny.DELETE})
        if not has_heads and path:
            continue
        for what, new in rotations(section) if not is_type else []:
            yield changed(what, new)
        for key, others in ADDED.items():
            if key in section or key in silent or is_type and not key.startswith("is_"):
                continue
            for other in others:
                yield changed(f"{key} = {json.dumps(other)} added", {key: other})
        for alias, key in getattr(made, "attribute_map", {}).items():
            value = section.get(key)
            if key in tiny.HEADS | tiny.GROUPS and isinstance(value, int) and alias not in section:
                yield changed(f"{alias} beside {key}", {alias: value * 2})
        if "layer_types" in section and not is_type:
            for key in ("sliding_window_pattern", "layer_types_pattern", "max_window_layers", "use_sliding_window"):
                yield changed(f"{key} in place of layer_types", {key: True if key.startswith("use") else 2, "layer_types": tiny.DELETE})
            yield changed("a window from layer 1 on", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 3,
                                                       "layer_types": tiny.DELETE})


def longer(config):
    """The file with room for a long text."""
    file = copy.deepcopy(config)
    for path in sections(file):
        section = at(file, path)
        for key, value in section.items():
            if isinstance(value, int) and tiny.SIZES.get(key) == 64 and value == 64:
                section[key] = 2 * LONG
    return file


class Harness:
    """The tiny model of a type, and the files of what becomes of it."""

    def __init__(self, name, folder):
        self.name, self.folder, self.number = name, folder, 0
        self.index = (folder / "changes.jsonl").open("a")
        self.runs = {}
        self.best, _, problems = model_types.best_of(name)
        if self.best is None or not self.best["cases"]:
            raise ValueError(f"not built: {problems[:2]}")
        self.config = json.loads(self.best["file"][1])
        self.config_class = CONFIG_MAPPING[name]

    def note(self, what, **said):
        self.index.write(json.dumps({"what": what, **said}) + "\n")
        self.index.flush()

    def file(self, what, tensors, config, cases):
        self.number += 1
        stem = f"{self.number:05}"
        model_types.write(self.folder / f"{stem}.safetensors", tensors, json.dumps(config), cases)
        self.note(what, stem=stem)

    def build(self, config, what=""):
        read = self.read(config)
        state = json.dumps(read.to_dict(), sort_keys=True, default=str)
        read._attn_implementation = "eager"
        torch.manual_seed(zlib.crc32(self.name.encode()))
        return state, lambda: model_types.build(self.best["cls"], read, 4e6 if what.endswith("left out") else None)

    def read(self, config):
        return self.config_class.from_dict(copy.deepcopy(config))

    def compared(self, config, what="", extra=""):
        """What transformers makes of the file: the tensors and cases. Equal configurations run once."""
        state, build = self.build(config, what)
        if extra + state not in self.runs:
            got = model_types.one(self.name, self.best["cls"], None, build())
            self.runs[extra + state] = got["file"][0], got["file"][2]
        tensors, cases = self.runs[extra + state]
        if not cases:
            raise ValueError("no layer was run")
        return tensors, cases

    def attempt(self, what, config, extra=""):
        signal.alarm(20)
        try:
            tensors, cases = self.compared(config, what, extra)
            self.file(what, tensors, config, cases)
        except Exception as e:
            self.note(what, failed=f"{type(e).__name__}: {str(e)[:200]}")
        finally:
            signal.alarm(0)

    def padded(self, side):
        """A text whose first or last two tokens are padding."""
        state, build = self.build(self.config)
        signal.alarm(20)
        try:
            model = build()
            keep = torch.ones(1, tiny.LENGTH, dtype=torch.long)
            keep[:, :2] = int(side != "left")
            keep[:, -2:] = int(side != "right")
            given = []

            def before(_m, args, kwargs):
                ids = kwargs.get("input_ids")
                if isinstance(ids, torch.Tensor) and ids.shape == keep.shape and kwargs.get("attention_mask") is None:
                    given.append(True)
                    return args, {**kwargs, "attention_mask": keep}
            for m in model.modules():
                if isinstance(m, PreTrainedModel) and "attention_mask" in inspect.signature(m.forward).parameters:
                    m.register_forward_pre_hook(before, with_kwargs=True)
            got = model_types.one(self.name, self.best["cls"], None, model)
            if not given:
                raise ValueError("no text goes in")
            tensors, _, cases = got["file"]
            low = torch.finfo(torch.float32).min
            seen, kept = torch.where(keep.bool(), 0.0, low)[None, None], keep[0].nonzero().flatten().float()
            for case in cases:
                here = f"golden.{case['name']}"
                x = tensors.get(f"{here}.input")
                key = tensors.get(f"{here}.key", x)
                if x is not None and key.shape[1] == tiny.LENGTH and f"{here}.mask" not in tensors:
                    tensors[f"{here}.mask"] = seen
                if x is not None and x.shape[1] == tiny.LENGTH:
                    tensors[f"{here}.tokens"] = kept
            # Of texts with images or in blocks the mask is not known, and to some layers it does not get.
            whole, _ = self.compared(self.config)
            same = [case for case in cases if torch.equal(tensors[f"golden.{case['name']}.output"], whole[f"golden.{case['name']}.output"])]
            known = [case for case in cases if f"golden.{case['name']}.mask" in tensors and case not in same]
            self.file(f"padding {side}", tensors, self.config, known)
        except Exception as e:
            self.note(f"padding {side}", failed=f"{type(e).__name__}: {str(e)[:200]}")
        finally:
            signal.alarm(0)

    def without_tensors(self):
        """The file without one tensor of a layer, for each layer of another place."""
        tensors, cases = self.compared(self.config)
        seen = set()
        for case in cases:
            names = [key for key in tensors if key.startswith(beginnings(case["prefix"])) and not key.startswith("golden.")]
            inside = [key for other in cases if other["prefix"] != case["prefix"] and other["prefix"].startswith(case["prefix"])
                      for key in names if key.startswith(beginnings(other["prefix"]))]
            for name in names:
                where = place({"prefix": name})
                if where not in seen and name not in inside:
                    seen.add(where)
                    less = {key: t for key, t in tensors.items() if key != name}
                    self.file(f"without {name}", less, self.config, [case])

    def all(self, word):
        self.attempt("nothing", self.config)
        for what, file in changes(self.config, self.read(self.config)):
            if word in what:
                self.attempt(what, file)
        for side in ("left", "right"):
            if word in f"padding {side}":
                self.padded(side)
        if word in "without":
            self.without_tensors()
        if word in "a long text":
            tiny.LENGTH = LONG
            self.attempt("a long text", longer(self.config), "long")


def in_child(name, folder, word, seconds):
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))

            def late(*_):
                raise TimeoutError("took too long")
            signal.signal(signal.SIGALRM, late)
            sys.stdout = sys.stderr = open(os.devnull, "w")
            Harness(name, folder).all(word)
        except BaseException as e:
            with (folder / "changes.jsonl").open("a") as index:
                index.write(json.dumps({"ended": f"{type(e).__name__}: {str(e)[:200]}"}) + "\n")
        finally:
            os._exit(0)
    end = time.time() + seconds
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.time() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "out of time"
        time.sleep(0.05)
    return ""


def judged(verdict):
    """right, refused, wrong, or nothing of a layer that was not compared."""
    if "refused" in verdict:
        return "refused"
    if "right" in verdict or verdict.get("share") is not None and verdict["share"] <= RIGHT:
        return "right"
    return "wrong" if "wrong" in verdict else None


def table(name, folder, found):
    """What became of each change: counts, and lines of those that are wrong."""
    lines, counts = [], Counter()
    path = folder / "changes.jsonl"
    stated = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    first = next((one["stem"] for one in stated if one.get("what") == "nothing" and "stem" in one), None)
    before = {layer["prefix"]: judged(layer["verdict"]) for layer in found.get(first, [])}
    bad = sorted(prefix for prefix, verdict in before.items() if verdict == "wrong")
    if bad:
        lines.append(f"{name}: wrong before a change: {', '.join(bad)}")
    for one in stated:
        if "ended" in one:
            lines.append(f"{name}: {one['ended']}")
        elif "failed" in one:
            counts["not run"] += 1
        elif one["what"] != "nothing":
            layers = [layer for layer in found.get(one["stem"], []) if before.get(layer["prefix"]) in ("right", None)]
            verdicts_here = [judged(layer["verdict"]) for layer in layers]
            if not any(verdicts_here):
                counts["not run"] += 1
                continue
            verdict = next(v for v in ("wrong", "refused", "right") if v in verdicts_here)
            counts[verdict] += 1
            if verdict == "wrong":
                wrong = [layer for layer in layers if judged(layer["verdict"]) == "wrong"]
                off = max((layer["verdict"].get("share") or 0.0 for layer in wrong), default=0.0)
                shape = {str(layer["verdict"]["wrong"]) for layer in wrong if isinstance(layer["verdict"]["wrong"], str)}
                lines.append(f"{name} | {one['what']} | {len(wrong)} of {len(layers)} layers, as {wrong[0]['prefix'] or 'root'} | "
                             f"off by {off:.2g} {' '.join(sorted(shape))}")
    return lines, counts


def right_types():
    rows = re.findall(r"^\| `([^`]*)` \| right \|", (ROOT / "docs" / "model-types.md").read_text(), re.MULTILINE)
    return [name for name in rows if name in CONFIG_MAPPING]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--changes", default="")
    parser.add_argument("--kept", type=Path)
    options = parser.parse_args()
    total, types = Counter(), 0
    for name in options.names or right_types():
        start = time.time()
        folder = options.kept / name if options.kept else Path(tempfile.mkdtemp())
        folder.mkdir(parents=True, exist_ok=True)
        late = "" if (folder / "changes.jsonl").exists() else in_child(name, folder, options.changes, options.seconds)
        made = time.time() - start
        found, _ = verdicts(folder)
        lines, counts = table(name, folder, found)
        for line in lines:
            print(line)
        total += counts
        types += 1
        said = ", ".join(f"{counts[v]} {v}" for v in ("right", "refused", "wrong", "not run"))
        print(f"# {name}: {said}; {made:.1f} + {time.time() - start - made:.1f} s {late}", flush=True)
        if not options.kept:
            shutil.rmtree(folder)
    print(f"{types} types, {sum(total.values())} changes: " + ", ".join(f"{total[v]} {v}" for v in ("right", "refused", "wrong", "not run")))


if __name__ == "__main__":
    main()
