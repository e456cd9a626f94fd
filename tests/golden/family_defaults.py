"""What the config classes of transformers hold where a config.json is silent.

Writes ../fixtures/family_defaults.json, a JSON object {model_type: {key: value}} for every model
type that a row in src/families names and transformers knows. Values are those of a configuration made
without arguments; `layer_types` is that of the first eight layers.

Made with transformers 5.23.0.
Re-run:  python tests/golden/family_defaults.py
"""

import json
import re
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from common import FIXTURES

KEYS = [
    "num_attention_heads", "rope_parameters", "layer_types", "sliding_window", "local_attention",
    "window_size", "rms_norm_eps", "layer_norm_eps", "norm_eps", "query_pre_attn_scalar",
    "attention_multiplier", "attn_logit_softcapping", "key_multiplier", "rotary_dim",
]

transformers.utils.logging.set_verbosity_error()
source = Path(__file__).resolve().parents[2] / "src" / "families"
text = "".join(file.read_text() for file in source.glob("*.rs"))
named = set(re.findall(r'"([\w-]+)"', text))
held = {}
for model_type in sorted(named & set(CONFIG_MAPPING.keys())):
    try:
        config = CONFIG_MAPPING[model_type]()
    except Exception as e:  # a configuration of parts that must be given
        print(model_type, e)
        continue
    config.allow_global_per_layer_attribute_access = True
    values = {key: getattr(config, key, None) for key in KEYS}
    if isinstance(values["layer_types"], list):
        values["layer_types"] = values["layer_types"][:8]
    if values["num_attention_heads"] is not None:  # the others only hold parts
        held[model_type] = {key: value for key, value in values.items() if value is not None}
lines = (f"{json.dumps(name)}: {json.dumps(values)}" for name, values in held.items())
(FIXTURES / "family_defaults.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
print(len(held), "model types, transformers", transformers.__version__)
