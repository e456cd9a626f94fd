"""The keys of `config.json` that transformers reads for the attention of each model type, found in its sources.

Writes ../fixtures/config_keys.txt: a line for each model type, with the keys that its config class (`config`), its
attention (`attention`), rotary embeddings (`rotary`), masks (`mask`), layers (`layer`) and models (`model`) read. A key
is listed once, at the first of these in the order of KINDS. `text_config.x` is the key `x` of a section, `rope_parameters.x` one of a
set, `x=` a key that code writes, and `a->b` an alias of `attribute_map`: the file's `a` counts as `b`.

The sources are parsed, never imported: no torch is needed. What the parse follows: names that are bound to a
configuration or to a section of one, `getattr` and `hasattr`, base classes, functions that are handed a configuration,
and which class makes which other one.

Made with transformers 5.24.0.
Re-run:  python tests/golden/config_keys.py
"""

import ast
import functools
import importlib.metadata
import importlib.util
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(importlib.util.find_spec("transformers").submodule_search_locations[0])
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
KINDS = ["attention", "rotary", "mask", "layer", "model", "config"]

# By the name of a class or of a function, the first that fits. Classes of the last kind are not walked.
KIND_OF_NAME = [
    ("mask", r"[a-z_]*mask[a-z_]*$|\w+_mask_function$"),
    ("attention", r"\w*(Attention|Attn|attention|MultiHead|Multihead)"),
    ("rotary", r"\w*(Rotary|Rope|RoPE|rope|rotary|RelPos|RelativePosition|PositionalEncoding|Alibi|alibi|Sinusoid)"),
    (None, r"\w*(MLP|Mlp|FeedForward|FFN|Expert|Router|Moe(?!\w*(Layer|Model))|MoE|Norm$|Embeddings?$|Loss|Conv|Tokenizer|PreTrainedModel|ForCausalLM|ForMasked|ForSequence|ForToken|ForQuestion|ForMultiple|LMHead|Classif|Mamba|DeltaNet|ShortConv|Vocoder|Upsampl|Downsampl|Quantiz|HifiGan|Criterion|Matcher)"),
    ("layer", r"\w*(Layer|Block|Output|Stage)"),
    ("model", r"\w*(Model|Encoder|Decoder|Transformer|Tower|Backbone|Resampler|Perceiver|Former|ViT|Thinker|Talker|Head$)"),
    (None, r""),
]
# Bases that all share; what they read of a configuration is no matter of one model type.
SHARED_BASES = {"PreTrainedConfig", "PreTrainedModel", "GradientCheckpointingLayer", "GenerationMixin"}
# Names in code that stand for all functions that compute a rotation.
ROPE_FUNCTIONS = {"ROPE_INIT_FUNCTIONS", "dynamic_rope_update"}
# What every class that has `rope_parameters` takes into them (`modeling_rope_utils.py`).
ROPE_KEYS = ["rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings",
             "max_position_embeddings"]


def kind_of(name):
    return next(kind for kind, pattern in KIND_OF_NAME if re.match(pattern, name))


class Module:
    """A source file: its classes, its functions and its imports."""

    def __init__(self, path):
        self.path, self.classes, self.functions, self.imports = path, {}, {}, {}
        for node in ast.parse(path.read_text()).body:
            nodes = ast.walk(node) if isinstance(node, (ast.If, ast.Try)) else [node]
            for node in nodes:
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name] = node
                elif isinstance(node, ast.FunctionDef):
                    self.functions.setdefault(node.name, node)
                elif isinstance(node, ast.ImportFrom) and node.level:
                    folder = path.parents[node.level - 1]
                    target = folder.joinpath(*(node.module or "").split("."))
                    for alias in node.names:
                        self.imports[alias.asname or alias.name] = (target.with_suffix(".py"), alias.name)


MODULES = {}


def module(path):
    if path not in MODULES:
        MODULES[path] = Module(path) if path.is_file() else None
    return MODULES[path]


def resolve(where, name, table):
    """The module and node of a class or function that `name` means in a module."""
    for _ in range(5):
        if where is None:
            return None
        if name in getattr(where, table):
            return where, getattr(where, table)[name]
        if name not in where.imports:
            return None
        path, name = where.imports[name]
        where = module(path)
    return None


def bases(where, node):
    """A class and its bases, the nearest first."""
    found = [(where, node)]
    for base in node.bases:
        name = base.id if isinstance(base, ast.Name) else None
        if name and name not in SHARED_BASES and (target := resolve(where, name, "classes")):
            found += [pair for pair in bases(*target) if pair not in found]
    return found


@functools.cache
def nodes_of(function):
    return list(ast.walk(function))


@functools.cache
def calls_super(function):
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "super" for n in nodes_of(function))


def methods(where, node):
    """The methods of a class, those of its bases among them unless they are replaced; each with its module."""
    seen, found = set(), []
    for owner, cls in bases(where, node):
        for item in cls.body:
            if isinstance(item, ast.FunctionDef):
                if item.name not in seen:
                    found.append((owner, item))
                if not calls_super(item):
                    seen.add(item.name)
    return found


def configs_in(annotation):
    """Names of config classes in an annotation."""
    if annotation is None:
        return []
    return [name for name in re.findall(r"\w+Config\b", ast.unparse(annotation)) if name not in ("PreTrainedConfig", "PretrainedConfig")]


class Config:
    """A config class: its model type, sections, aliases, and what its own code reads."""

    def __init__(self, where, node):
        self.where, self.name, self.chain = where, node.name, bases(where, node)
        self.model_type, self.sections, self.aliases, self.fields = None, {}, {}, {}
        # What the class states for sections that are silent, where its code says so.
        self.given = {}
        for _, cls in reversed(self.chain):
            for item in cls.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    self.fields[item.target.id] = item.value
                if not isinstance(item, ast.Assign) or not isinstance(item.targets[0], ast.Name):
                    continue
                target = item.targets[0].id
                if target == "model_type" and isinstance(item.value, ast.Constant):
                    self.model_type = item.value.value
                elif target == "sub_configs" and isinstance(item.value, ast.Dict):
                    self.sections = {k.value: ast.unparse(v) for k, v in zip(item.value.keys, item.value.values) if isinstance(k, ast.Constant)}
                elif target == "sub_configs_defaults" and isinstance(item.value, ast.Dict):
                    for key, spec in zip(item.value.keys, item.value.values):
                        if isinstance(spec, ast.Name):
                            self.sections[key.value] = spec.id
                        for argument in spec.keywords if isinstance(spec, ast.Call) else []:
                            if argument.arg == "config_class":
                                self.sections[key.value] = ast.unparse(argument.value)
                            if argument.arg == "init_kwargs" and isinstance(argument.value, ast.Dict):
                                self.given[key.value] = [k.value for k in argument.value.keys if isinstance(k, ast.Constant)]
                elif target == "attribute_map" and isinstance(item.value, ast.Dict):
                    self.aliases = {k.value: v.value for k, v in zip(item.value.keys, item.value.values)}
                elif not target.startswith("_"):
                    self.fields.setdefault(target, item.value)
        for name, value in self.fields.items():
            # A field of a section: `text_config: ... = SubConfig(XConfig)` or a class in its annotation.
            if name.endswith("config") and name not in self.sections:
                annotations = [i.annotation for _, c in self.chain for i in c.body if isinstance(i, ast.AnnAssign) and isinstance(i.target, ast.Name) and i.target.id == name]
                names = [n for a in annotations for n in configs_in(a)] + configs_in(value)
                self.sections[name] = names[0] if names else "AutoConfig"

    def reads(self):
        found = set()
        for _, method in methods(self.where, self.chain[0][1]):
            if method.name.startswith("validate") or method.name in ("to_dict", "from_pretrained"):
                continue
            found |= config_reads(method)
            if "init_kwargs" in (source := ast.unparse(method)):
                found |= {f"{part}.{key}=" for part, keys in self.given.items() if f"['{part}'].init_kwargs" in source for key in keys}
        own = any(method.name == "convert_rope_params_to_dict" for _, method in methods(self.where, self.chain[0][1]))
        if "rope_parameters" in self.fields and not own:
            found |= {key for key in ROPE_KEYS if key == "rope_parameters" or key != "rope_scaling" or key not in self.fields}
        return found | {f"{alias}->{key}" for alias, key in self.aliases.items()}


def text(node):
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def config_reads(method):
    """What a method of a config class reads: its own fields, and what else a file states (`kwargs`)."""
    found, names = set(), {}
    methods_called = {n.func.attr for n in nodes_of(method) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    for n in nodes_of(method):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self":
            if n.attr in methods_called:
                continue
            if isinstance(n.ctx, ast.Load):
                found.add(n.attr)
        elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Attribute) and isinstance(n.value.value, ast.Name) and n.value.value.id == "self":
            if (n.value.attr.endswith("config") or n.value.attr in ("encoder", "decoder")) and n.attr not in methods_called:
                found.add(f"{n.value.attr}.{n.attr}" + ("" if isinstance(n.ctx, ast.Load) else "="))
        elif isinstance(n, ast.Call):
            func = n.func
            if isinstance(func, ast.Attribute) and func.attr in ("pop", "get", "setdefault") and n.args and (key := text(n.args[0])):
                owner = re.sub(r"\[.*?\]", "", ast.unparse(func.value))
                if owner == "kwargs":
                    found.add(key)
                elif owner.startswith("self."):
                    found.add(f"{owner[5:]}.{key}")
            elif isinstance(func, ast.Name) and func.id in ("getattr", "hasattr", "setattr") and len(n.args) > 1 and (key := text(n.args[1])):
                if ast.unparse(n.args[0]) == "self" and func.id != "setattr":
                    found.add(key)
        elif isinstance(n, ast.Compare) and isinstance(n.ops[0], (ast.In, ast.NotIn)) and (key := text(n.left)):
            owner = ast.unparse(n.comparators[0])
            if owner == "kwargs":
                found.add(key)
        elif isinstance(n, ast.Subscript) and (key := text(n.slice)):
            owner = re.sub(r"\[.*?\]", "", ast.unparse(n.value))
            if owner == "kwargs":
                found.add(key)
            elif owner.startswith("self."):
                found.add(f"{owner[5:]}.{key}")
    # Arguments of a class that is not a dataclass.
    if method.name == "__init__":
        found |= {a.arg for a in method.args.args + method.args.kwonlyargs if a.arg not in ("self", "kwargs")}
    return found


class Reader(ast.NodeVisitor):
    """What one function reads of the configurations that it is handed.

    `paths` are the names that are bound to a configuration, each with the owner (None: that of the class) and the
    section in it; `self_paths` the same for attributes of `self`."""

    def __init__(self, where, function, self_paths, sets=()):
        self.where, self.paths, self.self_paths = where, {}, self_paths
        self.sets = {}
        self.found, self.made, self.called = set(), [], []
        for arg in function.args.posonlyargs + function.args.args + function.args.kwonlyargs:
            named = configs_in(arg.annotation)
            if arg.arg == "config" or arg.arg.endswith("_config") or arg.arg == "cfg":
                self.paths[arg.arg] = (tuple(named) if arg.arg != "config" and named else None, "")
        # Bindings first, in order; assignments in loops included.
        for n in nodes_of(function):
            if isinstance(n, ast.Assign) and len(n.targets) == 1:
                target, path = n.targets[0], self.path(n.value)
                if path is not None:
                    if isinstance(target, ast.Name):
                        self.paths[target.id] = path
                    elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
                        self.self_paths[target.attr] = path
        for n in nodes_of(function):
            if isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name):
                value = n.value
                while isinstance(value, ast.Subscript) and text(value.slice) is None:
                    value = value.value
                value = value.values[0] if isinstance(value, ast.BoolOp) else value
                if isinstance(value, ast.IfExp):
                    value = value.body
                while isinstance(value, ast.Subscript) and text(value.slice) is None:
                    value = value.value
                if isinstance(value, ast.Attribute) and value.attr.startswith("rope_") and (path := self.path(value.value)):
                    self.sets[n.targets[0].id] = (path, value.attr)
        for n in nodes_of(function):
            self.read(n)

    def path(self, node):
        if isinstance(node, ast.Name):
            return self.paths.get(node.id)
        if isinstance(node, ast.Attribute):
            inner = node.value.id if isinstance(node.value, ast.Name) else None
            if inner in ("self", "module") and node.attr == "config":
                return (None, "")
            if inner == "self" and node.attr in self.self_paths:
                return self.self_paths[node.attr]
            outer = self.path(node.value)
            if outer and node.attr.endswith("_config") or outer and node.attr in ("encoder", "decoder") :
                return (outer[0], f"{outer[1]}{node.attr}.")
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name == "get_text_config":
                return self.path(node.func.value)
            if name == "deepcopy" and node.args:
                return self.path(node.args[0])
        if isinstance(node, ast.Dict):  # `mask_kwargs = {"config": self.config, ...}`
            values = [v for k, v in zip(node.keys, node.values) if k is not None and text(k) == "config"]
            return self.path(values[0]) if values else None
        if isinstance(node, ast.IfExp):
            return self.path(node.body) or self.path(node.orelse)
        if isinstance(node, ast.BoolOp):
            return next((p for v in node.values if (p := self.path(v))), None)
        return None

    def add(self, path, key):
        owner, section = path
        self.found.add((owner, f"{section}{key}"))

    def read_set(self, value, key):
        """Adds the key of a set of parameters that `value`, perhaps one of a list of sets, stands for."""
        while isinstance(value, ast.Subscript):
            value = value.value
        if isinstance(value, ast.Name) and value.id in self.sets:
            path, attr = self.sets[value.id]
            self.add(path, f"{attr}.{key}")
        elif isinstance(value, ast.Attribute) and (path := self.path(value.value)):
            self.add(path, f"{value.attr}.{key}")

    def read(self, n):
        if isinstance(n, ast.Attribute):
            path = self.path(n.value)
            if path is not None and self.path(n) is None:
                self.add(path, n.attr if isinstance(n.ctx, ast.Load) else f"{n.attr}=")
        elif isinstance(n, ast.Subscript) and (key := text(n.slice)):
            self.read_set(n.value, key)
        elif isinstance(n, ast.Call):
            name = n.func.id if isinstance(n.func, ast.Name) else getattr(n.func, "attr", "")
            if name in ("getattr", "hasattr", "setattr") and len(n.args) > 1:
                path, key = self.path(n.args[0]), text(n.args[1])
                if path is not None and key and not (self.path(ast.Attribute(n.args[0], key, ast.Load())) and name != "setattr"):
                    self.add(path, key + ("=" if name == "setattr" else ""))
                return
            if name in ("get", "pop", "setdefault") and n.args and (key := text(n.args[0])) and isinstance(n.func, ast.Attribute):
                return self.read_set(n.func.value, key)
            given = [a for a in n.args] + [k.value for k in n.keywords if k.arg is None or "config" in k.arg]
            paths = [p for a in given if (p := self.path(a)) is not None]
            if isinstance(n.func, ast.Name) and (paths or any(isinstance(a, ast.Name) and a.id == "self" for a in n.args)):
                self.called.append((n.func.id, paths[0] if paths else (None, "")))
            if isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name) and paths and n.func.attr not in ("append",):
                self.called.append((n.func.value.id, paths[0]))
        elif isinstance(n, ast.Name) and n.id in ROPE_FUNCTIONS:
            self.called.append((n.id, (None, "")))


def main():
    configs, by_class = {}, {}
    for path in sorted((ROOT / "models").glob("*/configuration_*.py")):
        if path.parent.name == "auto":
            continue
        for name, node in module(path).classes.items():
            if name.endswith("Config"):
                config = Config(module(path), node)
                by_class[path, name] = config
                if config.model_type:
                    configs.setdefault(config.model_type, config)

    def config_of(where, name):
        target = resolve(where, name, "classes")
        return by_class.get((target[0].path, name)) if target else None

    utils = {name: module(ROOT / name) for name in ("masking_utils.py", "modeling_rope_utils.py")}
    read = defaultdict(lambda: defaultdict(set))  # config -> kind -> keys

    classes = {}
    for path in sorted((ROOT / "models").glob("*/modeling_*.py")):
        if re.search(r"modeling_(tf|flax)_", path.name) or path.parent.name == "auto":
            continue
        for name, node in module(path).classes.items():
            classes[path, name] = (module(path), node)

    # What each class reads, makes and calls, and the configurations that its code names.
    facts = {}
    for key, (where, node) in classes.items():
        self_paths, found, called, named = {}, set(), [], set()
        for owner, cls in bases(where, node)[:1]:
            for item in cls.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id == "config":
                    named |= set(configs_in(item.annotation))
                if isinstance(item, ast.Assign) and ast.unparse(item.targets[0]) == "config_class":
                    named |= set(configs_in(item.value))
        every = methods(where, node)
        every.sort(key=lambda pair: pair[1].name != "__init__")
        for owner, method in every:
            args = method.args.posonlyargs + method.args.args + method.args.kwonlyargs
            if method.name == "__init__" and owner is where:
                own = [a for a in args if a.arg == "config"]
                if own:
                    named = set(configs_in(own[0].annotation)) or named
            reader = Reader(owner, method, self_paths)
            kind = "mask" if kind_of(method.name) == "mask" else None
            found |= {(kind, owner_, k) for owner_, k in reader.found}
            called += [(owner, name, path, kind) for name, path in reader.called]
            if any(ast.unparse(d) == "merge_with_config_defaults" for d in method.decorator_list):
                found.add(("mask", None, "is_causal"))
            called += [(owner, n.id, (None, ""), kind) for d in method.decorator_list for n in ast.walk(d) if isinstance(n, ast.Name) and n.id in ROPE_FUNCTIONS]
        facts[key] = (found, called, named)

    # Which configurations reach each class.
    types = defaultdict(set)
    for key, (_, _, named) in facts.items():
        where = classes[key][0]
        types[key] |= {c for name in named if (c := config_of(where, name))}
    for round_ in range(12):
        changed = False
        for key, (_, called, named) in facts.items():
            where = classes[key][0]
            for owner, name, (own, section), _ in called:
                target = resolve(owner, name, "classes")
                if not target or (target[0].path, target[1].name) not in facts:
                    continue
                target_key = (target[0].path, target[1].name)
                given = {c for n in own if (c := config_of(where, n))} if own else set(types[key])
                for part in section.split(".")[:-1]:
                    given = {s for c in given if part in c.sections and (s := config_of(c.where, c.sections[part]))}
                if facts[target_key][2] and round_ < 0:
                    continue
                if not given <= types[target_key]:
                    types[target_key] |= given
                    changed = True
        if not changed:
            break
    for key in facts:
        if not types[key]:
            same = {c for (path, _), c in by_class.items() if path.parent == key[0].parent}
            types[key] = same if len(same) == 1 else set()

    def credit(config, section, kind, key):
        """A key of a section belongs to the config class of that section, if it is known."""
        parts = (section + key).split(".")
        while len(parts) > 1 and parts[0] in config.sections:
            inner = config_of(config.where, config.sections[parts[0]])
            if inner is None:
                break
            if parts[-1].endswith("="):
                break
            config, parts = inner, parts[1:]
        read[id(config)][kind].add(".".join(parts))

    memo = {}

    def function_reads(where, name, depth=0):
        """What a function reads of its configuration, with the kind that its name tells."""
        if name in ROPE_FUNCTIONS:
            out = set()
            for fname in utils["modeling_rope_utils.py"].functions:
                if "compute" in fname or "frequency_update" in fname:
                    out |= function_reads(utils["modeling_rope_utils.py"], fname, depth + 1)
            return {("rotary", k) for _, k in out}
        target = resolve(where, name, "functions")
        if not target or depth > 4:
            return set()
        key = (target[0].path, target[1].name)
        if key not in memo:
            memo[key] = set()
            reader = Reader(target[0], target[1], {})
            kind = kind_of(target[1].name)
            kind = kind if kind in ("mask", "attention", "rotary") else None
            out = {(kind, k) for _, k in reader.found}
            for inner, (_, section) in reader.called:
                out |= {(kind or k2, section + k) for k2, k in function_reads(target[0], inner, depth + 1)}
            memo[key] = out
        return memo[key]

    for key, (found, called, _) in facts.items():
        where, node = classes[key]
        kind = kind_of(node.name)
        for config in types[key]:
            for own_kind, owner, name in found:
                # Code of heads is walked for what it writes alone.
                as_kind = own_kind or kind or ("model" if name.endswith("=") else None)
                owners = [c for n in owner if (c := config_of(where, n))] if owner else [config]
                for c in owners if as_kind else []:
                    credit(c, "", as_kind, name)
            for owner, name, (own, section), method_kind in called:
                owners = [c for n in own if (c := config_of(where, n))] if own else [config]
                for k2, k in function_reads(owner, name):
                    as_kind = k2 or method_kind or kind
                    for c in owners if as_kind else []:
                        credit(c, section, as_kind, k)

    for config in by_class.values():
        read[id(config)]["config"] |= config.reads()

    # Keys that many read together are one word.
    shared = sorted({k for _, k in function_reads(None, "ROPE_INIT_FUNCTIONS")} - {"standardize_rope_params", "head_dim", "hidden_size", "num_attention_heads", "max_position_embeddings", "rope_parameters"})
    shared = [k for k in shared if not NEVER & set(k.split(".")) and not k.startswith("_")]
    lines = [f"%rope | rotary: {' '.join(shared)}"]
    for model_type, config in sorted(configs.items()):
        seen, parts = set(), []
        for kind in KINDS:
            keys = sorted(k for k in read[id(config)][kind] - seen if not k.startswith("_") and not k.split(".")[-1].startswith("_"))
            keys = [k for k in keys if not NEVER & set(k.rstrip("=").split("."))]
            seen |= set(keys)
            if kind == "rotary" and set(shared) <= set(keys):
                keys = ["%rope"] + [k for k in keys if k not in shared]
            if keys:
                parts.append(f"{kind}: {' '.join(keys)}")
        lines.append(f"{model_type} | " + " | ".join(parts))
    version = importlib.metadata.version("transformers")
    head = [f"# The keys that transformers {version} reads for attention, by model type (tests/golden/config_keys.py)."]
    (FIXTURES / "config_keys.txt").write_text("\n".join(head + lines) + "\n")
    print(len(lines), "model types")


# Methods and fields of the class that all configurations have.
NEVER = set("""
get_text_config to_dict to_diff_dict use_return_dict return_dict output_attentions output_hidden_states dtype torch_dtype
problem_type num_labels id2label label2id name_or_path architectures tie_word_embeddings is_composition model_type
__class__ keys update from_dict to_json_string get_mtp_config standardize_rope_params sub_configs_defaults validate_rope
default_theta default_rope_type ignore_keys_at_rope_validation nested_rope_parameter_keys sub_configs get validate_layer_type
""".split())

if __name__ == "__main__":
    main()
