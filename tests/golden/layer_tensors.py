"""Which biases, norms of queries and keys, and sinks the layers of each model type have, and which key decides.

transformers creates the parameters of a layer by its configuration, and ignores or draws at random what a file has or lacks
against it. For each model type of tests/fixtures/model_types a tiny model is built again with each boolean key changed that
may decide (`attention_bias`, `use_qk_norm`, ...), and the crate's own loader says what each layer has.

    python tests/golden/layer_tensors.py [model_type ...]   # the models, in $LAYER_TENSORS
    python tests/golden/layer_tensors.py --table            # src/families/layer_tensors.txt (needs cargo)

Made with torch 2.15.0, transformers 5.24.0.
"""

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import model_types as walk
import model_types_tiny as tiny

HERE = Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures"
TABLE = HERE.parents[1] / "src" / "families" / "layer_tensors.txt"
OUT = Path(os.environ.get("LAYER_TENSORS", Path(tempfile.gettempdir()) / "layer_tensors"))

# Keys that may decide whether a layer has a bias, a norm of queries and keys, or sinks.
DECIDING = re.compile(r"bias|norm|qk|sink|rel_pos|relative_pos", re.IGNORECASE)
LETTERS = "qkvonbcgistr"
# What two keys decide, a key of another section, or the place of a layer.
BY_HAND = {
    "beit": {"t": ":use_relative_position_bias|use_shared_relative_position_bias=false"},
    "data2vec-vision": {"t": ":use_relative_position_bias|use_shared_relative_position_bias=false"},
    "evolla_adapter": {"o": ":aligner_enable_bias=true"},
    "gpt_neox_japanese": {"o": "@last"},
    "kosmos_2_text_model": {"i": "@self"},
    "mimo_v2_flash": {"s": "@window:add_swa_attention_sink_bias=true s@none:add_full_attention_sink_bias=false"},
    "videoprism_head": {letter: ":qkv_bias=true" for letter in "qkv"},
}


def fixtures():
    """Name, model type and prefixes of each tiny model of the fixtures."""
    for path in [*sorted((FIXTURES / "model_types").glob("*.safetensors")), FIXTURES / "families.safetensors"]:
        with safe_open(path, "pt") as file:
            for name in file.keys():
                raw = bytes(file.get_tensor(name).numpy())
                header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
                model_type = json.loads(header["config"]).get("model_type")
                yield name, model_type, [case["prefix"] for case in json.loads(header["cases"])]


def flags(config):
    """The boolean keys of a configuration and of its sections that may decide, each with its values."""
    found = {(key, value) for key, value in config.items() if isinstance(value, bool) and DECIDING.search(key)}
    return found.union(*(flags(section) for section in config.values() if isinstance(section, dict)))


def changed(config, key, value):
    return {k: changed(v, key, value) if isinstance(v, dict) else value if k == key and isinstance(v, bool) else v
            for k, v in config.items()}


def write(name, model_type, prefixes, change=None):
    """Writes a tiny model, of which all sections have the value of `change` at its key: OUT/<name>~<key>~<value>.safetensors.
    Returns its configuration."""
    path = OUT / f"{name}~{'~'.join([change[0], json.dumps(change[1])]) if change else 'base'}.safetensors"
    tiny.NAME = name
    config_class = walk.CONFIG_MAPPING[model_type]
    for cls, variant in itertools.product(walk.classes(model_type, config_class)[:4], tiny.VARIANTS):
        try:
            config = walk.tiny_config(model_type, variant, name).to_dict()
            # Of heads of 4 numbers a quarter is no pair.
            config = json.loads(json.dumps(config, default=str).replace('"partial_rotary_factor": 0.25', '"partial_rotary_factor": 0.5'))
            config = config_class.from_dict(changed(config, *change) if change else config)
            config._attn_implementation = "eager"
            model = walk.build(cls, config)
            with tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                text = (Path(folder) / "config.json").read_text()
                saved = {}
                for file in Path(folder).glob("*.safetensors"):
                    saved.update(load_file(file))
        except Exception:
            continue
        for pattern, new in tiny.RENAMED.get(name, {}).items():
            saved = {re.sub(pattern, new, k): t for k, t in saved.items()}
        kept = [p for p in prefixes if any(k.startswith(f"{p}.") for k in saved)]
        if kept:
            metadata = {"config": json.dumps(json.loads(text)), "cases": json.dumps([{"name": p, "prefix": p} for p in kept])}
            save_file({k: t.contiguous().clone() for k, t in saved.items()}, path, metadata=metadata)
            return config.to_dict()
    return None


def rows():
    """The name of each file, a layer's model type, and the letters of its parameters, as the crate's loader finds them."""
    command = ["cargo", "test", "--release", "--workspace", "--test", "suite", "--", "--ignored", "--nocapture", "prints_layer_tensors"]
    printed = subprocess.run(command, env=os.environ | {"LAYER_TENSORS": str(OUT)}, check=True, text=True, stdout=subprocess.PIPE)
    for line in printed.stdout.splitlines():
        if line.startswith("layer_tensors "):
            name, model_type, letters = line.split()[1:]
            yield name, model_type, letters.strip("-")


def default(model_type, key):
    try:
        value = getattr(walk.CONFIG_MAPPING[model_type](), key, None)
    except Exception:
        value = None
    return value if isinstance(value, bool) else None


def rule(letter, found, model_type, changes):
    """How a letter of a model type is decided: None (never there), "" (always), ":key=default", "?" (undecided here)."""
    deciding = set()
    for name, key, value in changes:
        before, after = ({letter in letters for letters in found[n]} for n in (f"{name}~base", f"{name}~{key}~{value}"))
        if before != after and len(before) + len(after) > 2:
            return "?"  # layers of the model differ
        if before != after:
            deciding.add((key, (value == "true") == (True in after)))
    if len(deciding) == 1:
        key, is_right_way = deciding.pop()
        stated = default(model_type, key)
        return "?" if stated is None else f":{'' if is_right_way else '!'}{key}={json.dumps(stated)}"
    states = {letter in letters for all in found.values() for letters in all}
    return "?" if deciding or len(states) == 2 else "" if states == {True} else None


def table():
    models = defaultdict(lambda: defaultdict(set))
    for name, model_type, letters in rows():
        models[model_type][name].add(letters)
    lines = []
    for model_type, found in sorted(models.items()):
        changes = [tuple(name.split("~")) for name in found if name.count("~") == 2]
        changes = [change for change in changes if f"{change[0]}~base" in found]
        grouped = defaultdict(str)
        for letter in LETTERS:
            how = BY_HAND.get(model_type, {}).get(letter) or rule(letter, found, model_type, changes)
            if how is not None:
                grouped[how] += letter
        lines.append(" ".join([model_type, *(letters + how for how, letters in grouped.items())]))
    head = TABLE.read_text().splitlines() if TABLE.exists() else []
    TABLE.write_text("\n".join([line for line in head if line.startswith("#")] + lines) + "\n")


def main():
    if sys.argv[1:] == ["--table"]:
        return table()
    OUT.mkdir(parents=True, exist_ok=True)
    for name, model_type, prefixes in fixtures():
        if model_type is None or sys.argv[1:] and name not in sys.argv[1:]:
            continue
        config = write(name, model_type, prefixes)
        for key, value in sorted(flags(config or {})):
            write(name, model_type, prefixes, (key, not value))
        print(name, "built" if config else "not built", flush=True)


if __name__ == "__main__":
    main()
