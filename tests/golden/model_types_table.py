"""From the walk over all model types (model_types.py): small fixtures of those that are right, whole or in part, and the
table of all.

Writes ../fixtures/model_types/*.safetensors, one file for a range of first letters. Its tensors are the bytes of a file for each
model type (as in families.py: the weights of attention layers, what goes into and out of them, the config.json), unless
../fixtures/families.safetensors has the model type. Also writes ../../docs/model-types.md.
"""

import json
import os
import re
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from common import FIXTURES, encode, metadata, save
from model_types_hooks import beginnings
from model_types_tiny import FURTHER

ROOT = FIXTURES.parent.parent
PACKAGES = ["torch", "transformers"]
NOTE = "see model_types.py"
# Keys of a config.json that no attention reads; they would be most of a small fixture.
NOT_READ = {"id2label", "label2id", "transformers_version", "architectures", "dtype", "torch_dtype", "problem_type",
            "output_hidden_states", "output_attentions", "return_dict", "chunk_size_feed_forward", "_name_or_path",
            "initializer_range", "use_cache", "tie_word_embeddings", "is_encoder_decoder_", "bos_token_id",
            "attention_dropout", "hidden_dropout", "attention_probs_dropout_prob", "hidden_dropout_prob", "vocab_size"}
IMAGES = "for text alone: tokens of an image see one another"
NOTES = dict.fromkeys(["gemma3", "git", "shieldgemma2"], IMAGES)
# Ranges of first letters, each with a file of fixtures: none is larger than 4 MiB.
RANGES = ["a-c", "d-e", "f-h", "i-l", "m-n", "o-p", "q-r", "s-u", "v-z"]
# Parts of models without attention, and models of parts, that no class of transformers runs alone.
NO_ATTENTION = {"sapiens2_head", "vibevoice_diffusion", "pp_ocrv5_server_det", "pp_ocrv6_medium_det", "gemma4_unified_audio",
                "gemma4_unified_vision", "muse_spark_audio"}
COMPOSITE = {"nougat": "donut-swin, mbart", "higgs_audio_v2_tokenizer": "dac, hubert", "timm_backbone": "a model of timm",
             "timm_wrapper": "a model of timm",
             # No tiny model of them could be built.
             "dots3_note": "dots3_note_audio_encoder, dots3_note_text, dots3_note_vision_encoder",
             "apertus1p5": "apertus1p5_text, apertus1p5_vision_tokenizer, wavtokenizer_encoder",
             "gemma3n": "gemma3n_audio, gemma3n_text, gemma3n_vision", "glm5_next": "glm5_next_text, glm5_next_vision",
             "granite_speech5_ctc": "granite_speech5_encoder", "mistral_large4": "mistral_large4_text, pixtral",
             "qwen3_omni_moe": "qwen3_omni_moe_thinker", "upernet": "resnet",
             "vibevoice": "qwen2, vibevoice_acoustic_tokenizer, vibevoice_diffusion"}
# Types with layers that differ, of which families.safetensors has those of one kind.
DIFFER = {"gpt_neox_japanese"}
# Classes that are others on another device, or that no model is built of.
NOT_BUILT = re.compile("Flash|Sdpa|Loss$|MHAttentionMap$")
TABLES = ("relative_attention_bias", "relative_position_bias", "rel_embeddings", "encoder.LayerNorm", "embed_positions.pe_k")


def verdicts(walked, names=()):
    """What the crate makes of each layer of each file: {its name: [{prefix, verdict}]}, and of each of these model types."""
    found, families = defaultdict(list), {}
    for one in told("SUITE", ["--test", "suite"], "model_types::walk", MODEL_TYPES=str(walked), NAMES=",".join(names)):
        if "family" in one:
            families[one["model_type"]] = one["family"]
        else:
            found[one["model_type"]].append(one)
    return found, families


def told(built, target, test, **variables):
    """What an ignored test prints of model types. `built`: a variable that names the built tests, where cargo is not asked."""
    cargo = ["cargo", "test", "--offline", "-p", "candle-attention", *target, test, "--"]
    command = [os.environ[built], test] if built in os.environ else cargo
    out = subprocess.run([*command, "--ignored", "--nocapture"], cwd=ROOT, env=os.environ | variables, capture_output=True,
                         text=True, check=True).stdout
    return [json.loads(line[line.index("{") :]) for line in out.splitlines() if '"model_type"' in line]


def settings_of_rows():
    """The settings that the rows of the crate refuse: {model_type: [text]}, and the types of which they are the default."""
    settings, defaults = defaultdict(list), set()
    for row in told("UNITS", ["--lib"], "families::tests::refused_settings"):
        name = row["model_type"]
        config = CONFIG_MAPPING[name]() if row["values"] and name in CONFIG_MAPPING else None
        for key, value, below in row["values"]:
            settings[name].append(f"`{key}` other than `{value}`{f' in layers below `{below}`' if below else ''}")
            if key != "model_type" and getattr(config, key, value) != value:
                defaults.add(name)
        settings[name] += [f"`{key}`" for key, _ in row["keys"]] + [f"layers below `{part}`" for part, _ in row["parts"]]
    return settings, defaults


def setting(name):
    """The keys of a further model of a type, and their values."""
    return " and ".join(f"`{key}` = `{value if isinstance(value, str) else json.dumps(value)}`" for key, value in FURTHER[name].items())


def is_default(name):
    """Whether a configuration without arguments has the keys of this further model."""
    config = CONFIG_MAPPING[name.partition("+")[0]]()
    return all(getattr(config, key, None) == value for key, value in FURTHER[name].items())


def read(config):
    """The configuration without what attention does not read."""
    if isinstance(config, dict):
        return {k: read(v) for k, v in config.items() if k not in NOT_READ}
    return [read(v) for v in config] if isinstance(config, list) else config


def in_families():
    """The model types of which a layer is in ../fixtures/families.safetensors."""
    found = set()
    for data in load_file(FIXTURES / "families.safetensors").values():
        config = json.loads(metadata(data.tobytes())["config"])
        sections = [config, *(v for v in config.values() if isinstance(v, dict))]
        found |= {section["model_type"] for section in sections if "model_type" in section}
    return found


def part(prefix):
    """The last name in a prefix that is no number."""
    return ([p for p in prefix.split(".") if not p.isdigit()] or [""])[-1]


def place(layer):
    """The prefix of a layer without the numbers of layers."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "#", f".{layer['prefix']}.")


def fixture(path, layers):
    """The bytes of a file with one case for each place in the model where the crate says that another mask or position is applied.

    Of the layers that are refused, it has the weights of one for each place and reason."""
    chosen, refused = {}, {}
    for layer in layers:
        where = place(layer)
        if "right" in layer["verdict"]:
            said = layer["verdict"]["as"]
            chosen.setdefault((where, said["layout"], said["mask"], said["position"]), layer["prefix"])
        elif "in a call" not in layer["verdict"].get("refused", "in a call"):
            refused.setdefault((where, short(layer["verdict"]["refused"])), layer["prefix"])
    right, refused = list(chosen.values())[:6], list(refused.values())[:3]
    if any(layer["verdict"].get("as", {}).get("layout") == "shared-keys" for layer in layers):  # and those that they share with
        right = [layer["prefix"] for layer in layers if "right" in layer["verdict"]]
    tensors = {}
    with safe_open(path, "pt") as file:
        stated = file.metadata()
        size = lambda prefix: sum(file.get_tensor(key).nbytes for key in file.keys() if key.startswith(beginnings(prefix)))
        refused = [prefix for prefix in refused if size(prefix) < 1 << 18]  # not those of a convolution of all channels
        prefixes = right + refused
        cases = [c for c in json.loads(stated["cases"]) if c["prefix"] in right]
        for key in file.keys():
            golden = any(key.startswith(f"golden.{c['name']}.") and key.count(".") == c["name"].count(".") + 2
                         for c in cases)
            weight = any(key.startswith(beginnings(p)) for p in prefixes) and not key.startswith("golden.")
            if golden or weight or any(table in key for table in TABLES):
                tensor = file.get_tensor(key)
                if tensor.is_floating_point():
                    tensors[key] = tensor.contiguous().clone()
        config = json.dumps(read(json.loads(stated["config"])), separators=(",", ":"))
    cases = json.dumps(cases, separators=(",", ":"))
    stated = {"refused": json.dumps(refused, separators=(",", ":"))} if refused else {}
    return encode(tensors, PACKAGES, NOTE, framework="torch", config=config, cases=cases, **stated)


def short(reason):
    """The reason of a refusal in a line of a table."""
    reason = reason.split("\n")[0]
    for pattern, text in (
        (r".*is no known family.*", "unknown family"),
        (r"model_type `(.*?)` is not supported: (.*)", r"\2"),
        (r".*tensor `(?:.*\.)?([^`]*\.[^`.]*|[^`]*)` is not supported.*", r"a tensor that is not read: `\1`"),
        (r".*no known attention layout.*", "no known layout"),
        (r"the prefix is .*expected one that names.*", "a prefix that does not tell its section of the configuration"),
        (r"tensor `(?:.*\.)?([^`]*\.[^`.]*|[^`]*)` is missing.*", r"a tensor that is missing: `\1`"),
        (r"norms of queries and keys is in the checkpoint.*", "norms of queries and keys that its family does not have"),
        (r"config key `(.*?)` = (.*?) is not supported.*it sets (.*)", r"`\1`: \3"),
    ):
        if re.fullmatch(pattern, reason):
            return re.sub(pattern, text, reason)
    return reason[:100]


def row(name, walked, layers, known, family, parts):
    """(verdict, what the table says beside it) of a model type."""
    kinds = Counter(k for layer in layers for k in ("right", "wrong", "refused", "not compared") if k in layer["verdict"])
    sections = sorted({s for s in (walked.get("sections") or {}).values() if s and s != name})
    reasons = list(dict.fromkeys(short(x["verdict"]["refused"]) for x in layers if "refused" in x["verdict"]))
    through = f"sections: {', '.join(sections)}" if sections else ""
    if kinds["wrong"]:
        return "wrong", str(layers)[:100]
    if kinds["right"]:
        masks = dict.fromkeys(x["verdict"]["as"]["mask"] for x in layers if "right" in x["verdict"])
        positions = dict.fromkeys(x["verdict"]["as"]["position"].split("(")[0]
                                  for x in layers if "right" in x["verdict"])
        said = ["mask " + " and ".join(re.sub(r"Some.(\d+).", r"\1", mask) for mask in masks)]
        said += [f"positions {' and '.join(positions)}"] if set(positions) != {"none"} else []
        said += [NOTES[name]] if name in NOTES else []
        said += [f"{kinds['refused']} of {len(layers)} layers refused: {'; '.join(reasons)}"] if reasons else []
        said += [f"{kinds['not compared']} not compared"] if kinds["not compared"] else []
        return "in part" if reasons or kinds["not compared"] else "right", "; ".join(said)
    if name in parts and not family:
        return "right", f"a section of `{parts[name]}`"
    if name in known and not family:
        return "right", "see `tests/fixtures/families.safetensors`"
    if "unsupported" in family:
        return "refused", family["unsupported"]
    if reasons:
        return "refused", "; ".join(reasons)
    if walked["status"] == "built" and not walked["layers"] and not walked["unmet"]:
        return "no attention", through
    if name in NO_ATTENTION or name.endswith("_prompt_encoder"):
        return "no attention", ""
    if name in COMPOSITE:
        return "composite", f"sections: {COMPOSITE[name]}"
    if sections:
        return "composite", through
    why = "no known layout" if walked["status"] == "built" and not walked["layers"] else "unknown family, not checked"
    return "refused", why


def left_out(walks):
    """Classes of attention in the code of model types of which no tiny model has a layer, by folder."""
    code, met = defaultdict(set), set().union(*(walked.get("classes") or () for walked in walks.values()))
    for name, walked in walks.items():
        for folder, classes in (walked.get("code") or {}).items():
            code[folder] |= set(classes)
    return {folder: left for folder, classes in code.items()
            if (left := sorted(name for name in classes - met if not NOT_BUILT.search(name)))}


def refused_sections(name, walked, rows):
    """The sections of a model, or of the models that they are, that do not run in whole."""
    return sorted({s for s in (walked.get("sections") or {}).values()
                   if s != name and rows.get(s, ("",))[0] in ("refused", "in part")})


def write(walked_folder):
    (found, families), known = verdicts(walked_folder, CONFIG_MAPPING_NAMES), in_families()
    walks = {name: json.loads(path.read_text()) for name in [*CONFIG_MAPPING_NAMES, *FURTHER]
             if (path := walked_folder / f"{name}.json").exists()}
    # Further models with a setting that is refused.
    refusing = {n: [layer for layer in found[n] if "refused" in layer["verdict"]] for n in FURTHER if n in found}
    refusing = {n: layers for n, layers in refusing.items() if layers}
    found = {n: refusing.get(n, layers) for n, layers in found.items()}
    compared = {name: walked for name, walked in walks.items() if name not in refusing}
    # Sections that no class of transformers runs alone.
    parts = {section: name for name, walked in walks.items() for section in (walked.get("sections") or {}).values()
             if any("right" in layer["verdict"] for layer in found.get(name, []))}
    left = left_out({name: walked for name, walked in compared.items() if "unsupported" not in families.get(name, {})})
    met = {(attention, part(prefix)) for walked in compared.values() for prefix, attention in walked.get("met", {}).items()}
    for name, layers in found.items():
        unmet = walks[name].get("unmet", {})
        here = {place(layer) for layer in layers if "not compared" not in layer["verdict"]}
        # Where a layer of the same class in the same part of a block was compared, in this model or another one, it counts.
        found[name] = [layer for layer in layers if "not compared" not in layer["verdict"] or place(layer) not in here
                       and (unmet.get(layer["prefix"]), part(layer["prefix"])) not in met]
        if loose := {place(layer) for layer in found[name] if "not compared" in layer["verdict"]}:
            print(f"{name}: not compared: {', '.join(sorted(loose))}")
    not_walked = {"status": "not built", "layers": []}
    all_of = {name: [layer for n in [name, *FURTHER] if n.partition("+")[0] == name and n not in refusing for layer in found.get(n, [])]
              for name in CONFIG_MAPPING_NAMES}
    rows = {name: row(name, walks.get(name, not_walked), all_of[name], known, families[name], parts)
            for name in sorted(CONFIG_MAPPING_NAMES)}
    for name, (verdict, what) in rows.items():
        if verdict == "right" and (refused := refused_sections(name, walks.get(name, not_walked), rows)):
            rows[name] = ("in part", f"{what}; refused sections: {', '.join(refused)}")
    lines, counts, files = [], Counter(), defaultdict(dict)
    settings, defaults = settings_of_rows()
    for name, (verdict, what) in rows.items():
        of_type = [n for n in refusing if n.partition("+")[0] == name]
        # Of types that are right in part, the table has the refused layers.
        of_row = [said for said in settings[name] if verdict == "right" or not said.startswith("layers")]
        not_with = [*map(setting, of_type), *(of_row if verdict in ("right", "in part") else [])]
        if verdict == "right" and (name in defaults or any(map(is_default, of_type))):
            verdict, what = "in part", f"{what}; its default is refused"
        counts[verdict] += 1
        lines.append(f"| `{name}` | {verdict} | {what} | {'; '.join(not_with)} |")
        whole = verdict == "right" and (name not in known or name in DIFFER)
        for n in [name] * (whole or verdict == "in part") + [n for n in FURTHER if n.partition("+")[0] == name]:
            if found.get(n):
                data = fixture(walked_folder / f"{n}.safetensors", found[n])
                group = next(group for group in RANGES if group[0] <= name[0].lower() <= group[-1])
                files[group][n] = np.frombuffer(data, np.uint8)
    for group in RANGES:
        save(f"model_types/{group}.safetensors", files[group], PACKAGES, NOTE)
    others = ", ".join(f"{n} {v}" for v, n in counts.most_common() if v not in ("right", "in part", "refused"))
    text = Path(__file__).with_name("model_types.md").read_text().replace("../../docs/", "")
    text = text.format(total=len(lines), right=counts["right"], part=counts["in part"], refused=counts["refused"], others=others,
                       left=", ".join(f"`{name}`" for names in sorted(left.values()) for name in names),
                       table="\n".join(lines))
    (ROOT / "docs" / "model-types.md").write_text(text)
    print(counts)
