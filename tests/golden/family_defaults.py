"""What the config classes of transformers hold where a config.json is silent.

Writes ../fixtures/family_defaults.json, a JSON object {model_type: {key: value}} for every model
type that a row in src/families names and transformers knows. Values are those of a configuration made
without arguments; `layer_types` is that of the first eight layers. `knows` lists which keys of
src/families/keys.txt, and which sizes, the class has or the code of its models reads: transformers ignores the others.

Made with transformers 5.24.0; EARLIER with the same regular expressions from 4.57.6.
Re-run:  python tests/golden/family_defaults.py
"""

import ast
import inspect
import json
import re
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from common import FIXTURES
from model_types_tiny import ARGUMENTS

KEYS = [
    "num_attention_heads", "rope_parameters", "layer_types", "sliding_window", "local_attention",
    "window_size", "rms_norm_eps", "layer_norm_eps", "norm_eps", "query_pre_attn_scalar",
    "attention_multiplier", "attn_logit_softcapping", "key_multiplier", "rotary_dim", "attention_window_size",
    "attention_context_left", "attention_logit_cap",
]

SIZES = ["hidden_size", "d_model", "dim", "n_embd", "head_dim", "num_key_value_heads"]
# Keys that a class had before 5.0.
EARLIER = {"deberta": ["is_decoder"], "deberta-v2": ["is_decoder"], "layoutlm": ["is_decoder"],
           "splinter": ["is_decoder"], "jamba": ["sliding_window"], "nemotron": ["sliding_window"]}


def code(config):
    """The source of a config class, and what of its folder is not for another config class."""
    text = "".join(inspect.getsource(c) for c in config.__mro__ if c.__module__.startswith("transformers.models"))
    for file in Path(inspect.getfile(config)).parent.glob("modeling_*.py"):
        source = file.read_text()
        for node in ast.parse(source).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                part = ast.get_source_segment(source, node)
                configs = re.findall(r'\bconfig(?:_class)?\s*[:=]\s*"?(\w+Config)\b', part)
                if not configs or config.__name__ in configs:
                    text += part
    return text


def knows(model_type, config):
    held = {name for c in config.__mro__ for name in [*vars(c).get("__annotations__", {}), *vars(c)]}
    held |= set(config.attribute_map) | set(EARLIER.get(model_type, []))
    if "rope_parameters" in held:  # which transformers makes of them
        held |= {"rope_theta", "rope_scaling", "partial_rotary_factor"}
    elif "rope_scaling" not in config.__annotations__:
        held.discard("rope_scaling")  # a property of all classes
    text = code(config)
    return [key for key in CHANGES + SIZES if key in held or re.search(rf"""config\.{key}\b|["']{key}["']""", text)]


transformers.utils.logging.set_verbosity_error()
source = Path(__file__).resolve().parents[2] / "src" / "families"
text = "".join(file.read_text() for file in source.glob("*.rs"))
lines = lambda name: [line for line in (source / name).read_text().splitlines() if not line.startswith("#")]
CHANGES = [key for line in lines("keys.txt") for key in line.rsplit(": ", 1)[1].split()]
unsupported = {name for line in lines("unsupported.txt") for name in line.split(": ")[0].split()}
named = set(re.findall(r'"([\w-]+)"', text)) | unsupported
held = {}
for model_type in sorted(named & set(CONFIG_MAPPING.keys())):
    try:
        config = CONFIG_MAPPING[model_type](**ARGUMENTS.get(model_type, {}))
    except Exception as e:  # a configuration of parts that must be given
        print(model_type, e)
        continue
    config.allow_global_per_layer_attribute_access = True
    values = {key: getattr(config, key, None) for key in KEYS}
    if isinstance(values["layer_types"], list):
        values["layer_types"] = values["layer_types"][:8]
    values["knows"] = knows(model_type, type(config))
    held[model_type] = {key: value for key, value in values.items() if value is not None}
lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in held.items())
(FIXTURES / "family_defaults.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
print(len(held), "model types, transformers", transformers.__version__)
