"""Walks over all model types of the installed transformers: is the attention layer right, or refused?

For each model type a tiny model with random weights is built, saved and run, each in a process of its own. Hooks on the
projections catch what goes into and out of its attention (model_types_hooks.py). The result is OUT/<model_type>.json and
.safetensors, as families.py writes them; OUT is $MODEL_TYPES, or `model_types` in the folder of temporary files.

    python tests/golden/model_types.py [--again] [model_type ...]    # the walk; what is there is kept
    python tests/golden/model_types.py --table                       # fixtures and docs/model-types.md (needs cargo)

Made with torch 2.15.0, transformers 5.24.0, timm 1.0.31.
"""

import argparse
import importlib
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.modeling_utils import PreTrainedModel

import model_types_table
import model_types_tiny as tiny
from model_types_hooks import attention_around, beginnings, is_attention, prefixes, unmet, watch

torch.set_num_threads(1)
torch.set_grad_enabled(False)
tf.utils.logging.set_verbosity_error()
tf.utils.logging.disable_progress_bar()

OUT = Path(os.environ.get("MODEL_TYPES", Path(tempfile.gettempdir()) / "model_types"))


def randomise(model):
    """Fills the parameters in the order of their names, as families.py does."""
    unit = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for name, p in sorted(model.named_parameters()):
        if not p.is_floating_point() or not p.requires_grad:
            continue  # without a gradient: a table of sines
        wide = id(p) in unit or name.endswith((".sinks", "bias_table", "latent", "probe"))
        base = 1.0 if p.numel() and bool((p == 1).all()) else 0.0
        narrow = "position_bias_mlp" in name  # of 512 numbers, whose sum would have no five digits left
        p.data.normal_(0.0, 1.0 if wide else 0.05 if narrow else 0.2).add_(base)
    for name, b in model.named_buffers():
        if name.endswith("attn_mask_probs"):  # as a trained model has them
            b.zero_()
        if name.endswith(tiny.LIMITS):  # that are met
            b.uniform_(0.3, 0.7).mul_(-1.0 if name.endswith("_min") else 1.0)
    return model.eval()


def without_detectron2():
    """LayoutLMv2 whose image is what its backbone would make of it: detectron2 is not there."""
    from transformers.models.layoutlmv2 import modeling_layoutlmv2 as module

    class Backbone(torch.nn.Flatten):
        def __init__(self, config):
            super().__init__(1, 2)
    module.LayoutLMv2PreTrainedModel._init_weights = lambda *_: None
    module.LayoutLMv2VisualBackbone = Backbone
    module.requires_backends = lambda *_: None


def classes(model_type, config_class):
    """Model classes of a configuration, those with the names of published checkpoints first."""
    def of(mapping):
        names = getattr(modeling_auto, mapping, {}).get(model_type, ())
        return [names] if isinstance(names, str) else list(names)
    order = []
    if not of("MODEL_FOR_MASKED_LM_MAPPING_NAMES"):
        order += ["MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
                  "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"]
    order += ["MODEL_MAPPING_NAMES"]
    order += sorted(m for m in dir(modeling_auto) if m.endswith("_MAPPING_NAMES") and m not in order
                    and not m.startswith("CONFIG"))
    names = list(dict.fromkeys(name for mapping in order for name in of(mapping)))
    if model_type in tiny.CLASSES:
        names = [tiny.CLASSES[model_type]]
    found = [c for c in (getattr(tf, n, None) for n in names) if c is not None]
    package = config_class.__module__.rsplit(".", 1)[0]
    folder = Path(importlib.import_module(config_class.__module__).__file__).parent
    for file in sorted(folder.glob("modeling_*.py")):
        try:
            module = importlib.import_module(f"{package}.{file.stem}")
        except Exception:
            continue
        mine = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, PreTrainedModel)
                and getattr(c, "config_class", None) is config_class and c.__module__ == module.__name__]
        mine.sort(key=lambda c: ("PreTrained" in c.__name__, "For" not in c.__name__ and not c.__name__.endswith("Model"),
                                 c.__name__))
        found += [c for c in mine if c not in found and "PreTrained" not in c.__name__]
    return found


def attention_in_code(config_class):
    """The names of the classes of attention in the code of a model type."""
    package = config_class.__module__.rsplit(".", 1)[0]
    folder, found = Path(importlib.import_module(config_class.__module__).__file__).parent, set()
    for file in folder.glob("modeling_*.py"):
        try:
            module = importlib.import_module(f"{package}.{file.stem}")
        except Exception:
            continue
        found |= {c.__name__ for c in vars(module).values() if isinstance(c, type) and issubclass(c, torch.nn.Module)
                  and is_attention(c) and c.__module__ == module.__name__}
    return sorted(found)


class TooLarge(Exception):
    pass


def build(cls, config, most=60e6):
    """The model, unless it has more than this many numbers, which are counted if there is a limit."""
    meta = None
    if most:
        with torch.device("meta"):
            try:
                meta = cls(config)
            except Exception:
                pass
    if meta is not None:
        sizes = sorted(((p.numel(), n) for n, p in meta.named_parameters()), reverse=True)
        if sum(s for s, _ in sizes) > most:
            raise TooLarge(", ".join(f"{n} {s}" for s, n in sizes[:4]))
    return cls(config).eval()


def tiny_config(model_type, variant, further=None):
    cls = CONFIG_MAPPING[model_type]
    d = tiny.shrink(cls(**tiny.ARGUMENTS.get(model_type, {})).to_dict(), variant)
    tiny.set_keys(d, tiny.CHANGES.get(model_type, {}) | tiny.FURTHER.get(further, {}))
    config = cls.from_dict(d)
    config._attn_implementation = "eager"
    return config


def eager(model):
    try:
        model.set_attn_implementation("eager")
    except Exception:
        pass
    for m in model.modules():
        config = getattr(m, "config", None)
        if config is not None and hasattr(config, "_attn_implementation_internal"):
            try:
                config._attn_implementation_internal = "eager"
            except Exception:
                pass


def complete(here):
    return all(here["in"]) and bool(here["out"])


def run(model, caught):
    """Runs the model and then those of its parts that are models, until each layer was called."""
    problems = []
    parts = [("", model)] + [(n, m) for n, m in model.named_modules() if n and isinstance(m, PreTrainedModel)]
    for name, part in parts:
        inside = [h for h in caught.values() if h["path"].startswith(name)]
        if name and all(complete(h) for h in inside):
            continue
        todo = lambda: any(not complete(h) for h in inside)
        for values in tiny.attempts(part, part.config):
            if not todo():
                break
            for h in caught.values():
                if not complete(h):
                    h["in"], h["out"] = [[] for _ in h["in"]], []
            try:
                getattr(part, tiny.METHODS.get(part.config.model_type, "__call__"))(**values)
            except Exception as e:
                where = traceback.extract_tb(e.__traceback__)[-1]
                problems.append(f"{part.__class__.__name__}({', '.join(values)}): {type(e).__name__}: {str(e)[:200]} "
                                f"at {Path(where.filename).name}:{where.lineno}")
        if not todo() and not name:
            break
    for name, module in model.named_modules():
        inputs = next((inputs for end, inputs in tiny.INNER.items() if name.endswith(end)), None)
        if inputs is not None and any(not complete(h) for h in caught.values() if h["path"].startswith(f"{name}.")):
            for h in caught.values():
                if not complete(h):
                    h["in"], h["out"] = [[] for _ in h["in"]], []
            try:
                module(**inputs(module))
            except Exception as e:
                problems.append(f"{name}: {type(e).__name__}: {str(e)[:200]}")
    return problems


def batched(x):
    return x.unsqueeze(0) if x.dim() == 2 else x.reshape(-1, *x.shape[-2:]) if x.dim() > 3 else x


def given_tensors(name, given, arguments, tensors, factor=1.0, neighbors=False):
    """What the call gives beyond its tokens."""
    for what, names in given.items():
        values = [arguments[n] for n in names if n in arguments]
        if what == "score_bias" and values:
            tensors[f"golden.{name}.score_bias"] = sum(values) * factor
        if what in ("positions", "token_types") and values:
            tensors[f"golden.{name}.{what}"] = values[0].float()
        if what == "shared" and values:
            for part, t in zip(("shared_keys", "shared_values"), values[0]):
                tensors[f"golden.{name}.{part}"] = t.transpose(1, 2)
        if what == "cos_sin" and values:
            for part, t in zip(("cos", "sin"), values[0]):  # pairs that are half a head apart, or neighbors
                pairs = t[..., ::2] if neighbors else t[..., : t.shape[-1] // 2]
                tensors[f"golden.{name}.{part}"] = pairs.reshape(-1, t.shape[-2], pairs.shape[-1])
        if what == "mask" and values and values[0].dim() in (1, 3, 4):
            mask = values[0]
            if mask.dim() == 1:  # where sequences of one row start and end
                number = torch.bucketize(torch.arange(int(mask[-1])), mask, right=True)
                mask = (number[:, None] == number)[None, None]
            mask = mask[:, None].bool() if mask.dim() == 3 else mask
            low = torch.finfo(torch.float32).min
            tensors[f"golden.{name}.mask"] = mask.clamp(min=low) if mask.is_floating_point() else torch.where(mask, 0.0, low)


def after_encoder(here):
    """Puts the encoder's tokens, which came to a second call of the projections of keys and values, before the others."""
    for calls in here["in"][1:]:
        calls[:] = [torch.cat([calls[1], calls[0]], 1)]
    (cos, sin), mask = here["arguments"]["position_embeddings"], here["arguments"]["merged_attention_mask"]
    s, others = cos.shape[1], mask.shape[-1] - cos.shape[1]
    still = torch.zeros_like(cos[:, :1]).expand(-1, others, -1)
    here["arguments"]["position_embeddings"] = [torch.cat([still + 1, cos], 1), torch.cat([still, sin], 1)]
    here["arguments"]["merged_attention_mask"] = torch.cat([mask[..., s:], mask[..., :s]], -1)


def after_globals(here, block):
    """Puts the global tokens, which came to a second call of the projections, before the others, which see their block."""
    for calls in here["in"]:
        calls[:] = [torch.cat([calls[1], calls[0]], 1)]
    here["out"][:] = [torch.cat(here["out"], 1)]  # whose first call is that of the global tokens
    hidden = here["arguments"]["attention_mask"] != 0
    first = here["out"][0].shape[1] - hidden.shape[1]
    number = torch.cat([torch.full((first,), -1), torch.arange(hidden.shape[1]) // block])
    sees = (number[:, None] == number) | (number == -1) | (number[:, None] == -1)
    here["arguments"]["global_mask"] = (sees & ~torch.nn.functional.pad(hidden, (first, 0)))[None]


def case_tensors(prefix, here, tensors, model_type):
    if model_type in tiny.ROWS_AND_COLUMNS:
        for calls in (*here["in"], here["out"]):
            calls[0] = calls[0].flatten(1, 2) if calls[0].dim() == 4 else calls[0]
    if "merged_attention_mask" in here["arguments"]:
        after_encoder(here)
    if "global_hidden_states" in here["arguments"]:
        after_globals(here, tiny.CHANGES[model_type]["block_size"])
    xs = [batched(i[0]) for i in here["in"]]
    if len(xs) > 3:  # queries of contents, positions and sines side by side, keys of contents and positions, values
        xs = [torch.cat(xs[:-3], -1), torch.cat(xs[-3:-1], -1), xs[-1]]
    out = batched(here["out"][0])
    if out.shape[:2] != xs[0].shape[:2] and out.shape[:2] == xs[0].shape[:2][::-1]:
        out = out.transpose(0, 1)  # the output projection alone has the time first
    q, k, v = (xs[0], xs[0], xs[0]) if len(xs) == 1 else (xs[0], xs[-1], xs[-1]) if len(xs) == 2 else xs
    if not all(torch.isfinite(t).all() for t in (q, k, v, out)):
        return "not finite"
    name = prefix or "root"
    tensors[f"golden.{name}.input"] = q
    tensors[f"golden.{name}.output"] = out
    given_tensors(name, tiny.GIVEN.get(model_type, {}), here["arguments"], tensors, tiny.DIVIDED.get(model_type, 1.0),
                  model_type in tiny.NEIGHBORS)
    given = tensors.get(f"golden.{name}.mask") if model_type in tiny.BLIND else None
    if given is not None:
        sees = (given > -1).any(-1).flatten(0, 1).any(0)
        q = q[:, sees]
        tensors |= {f"golden.{name}.input": q, f"golden.{name}.output": out[:, sees], f"golden.{name}.mask": given[:, :, sees]}
    for part in ("cos", "sin"):  # which the keys of a memory repeat
        given = tensors.get(f"golden.{name}.{part}")
        if given is not None and given.shape[1] < k.shape[1] and k.shape[1] % given.shape[1] == 0:
            tensors[f"golden.{name}.{part}"] = given.repeat(1, k.shape[1] // given.shape[1], 1)
    same = lambda a, b: a.shape == b.shape and torch.equal(a, b)
    if not same(q, k):
        tensors[f"golden.{name}.key"] = k
    if not same(k, v):
        tensors[f"golden.{name}.key"] = k
        tensors[f"golden.{name}.value"] = v
    return None


TABLES = ("relative_attention_bias", "relative_position_bias", "rel_embeddings", "encoder.LayerNorm", "embed_positions.pe_k")


def attention_classes(model):
    """The names of the classes of attention that the model has."""
    return sorted({type(m).__name__ for m in model.modules() if is_attention(type(m))})


def section_types(config):
    d = config.to_dict()
    return {k: v.get("model_type") for k, v in d.items() if isinstance(v, dict) and v.get("model_type")}


def make(name):
    """Writes OUT/<name>.safetensors; returns what there is to say."""
    best, code, problems = best_of(name)
    if best is None:
        return dict(status="not built", code=code, problems=problems[:6])
    tensors, text, cases = best.pop("file")
    if cases:
        write(OUT / f"{name}.safetensors", tensors, text, cases)
    return dict(status="built", **best | {"cls": best["cls"].__name__}, code=code, problems=problems[:8])


def write(path, tensors, text, cases):
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, path, metadata={"config": text, "cases": json.dumps(cases)})


def best_of(name):
    """The tiny model of a type with the most layers that were run, the classes of attention in its code, and problems."""
    problems = []
    tiny.NAME = name
    model_type = name.partition("+")[0]
    if model_type in ("layoutlmv2", "layoutxlm"):
        without_detectron2()
    if model_type in tiny.NOT_ALONE:
        return None, {}, ["a part of a model that masks it"]
    try:
        config_class = CONFIG_MAPPING[model_type]
    except Exception as e:
        return None, {}, [f"{type(e).__name__}: {e}"]
    try:
        candidates = classes(model_type, config_class)
    except Exception as e:
        return None, {}, [f"classes: {type(e).__name__}: {e}"]
    best, code = None, {config_class.__module__.split(".")[2]: attention_in_code(config_class)}
    for cls in candidates[:4]:
        for variant in tiny.VARIANTS:
            if best is not None and best["missing"] == 0:
                break
            torch.manual_seed(zlib.crc32(model_type.encode()))
            try:
                config = tiny_config(model_type, variant, name)
                model = build(cls, config)
            except Exception as e:
                where = traceback.extract_tb(e.__traceback__)[-1]
                problems.append(f"{cls.__name__} {variant}: {type(e).__name__}: {str(e)[:300]} "
                                f"at {Path(where.filename).name}:{where.lineno}")
                continue
            got = one(name, cls, variant, model)
            problems += got.pop("problems")
            if best is None or got["missing"] < best["missing"] or (got["cases"] and not best["cases"]):
                best = got
    return best, code, problems


def one(name, cls, variant, model):
    model_type = name.partition("+")[0]
    randomise(model)
    eager(model)
    if model_type in tiny.SDPA:
        model.set_attn_implementation("sdpa")
    if model_type in tiny.BOOLEAN:
        model.get_submodule(tiny.BOOLEAN[model_type]).set_attn_implementation("sdpa")
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        text = json.dumps(json.loads((Path(d) / "config.json").read_text()))
        saved = {}
        for file in Path(d).glob("*.safetensors"):
            saved.update(load_file(file))
    for pattern, new in tiny.RENAMED.get(name, {}).items():
        saved = {re.sub(pattern, new, key): tensor for key, tensor in saved.items()}
    layers = prefixes(saved)
    caught, lost = watch(model, layers, saved)
    problems = run(model, caught) if caught else []
    tensors, cases, missing, met = {}, [], list(lost), {}
    for prefix, here in caught.items():
        if not complete(here):
            missing.append(prefix)
            continue
        if model_type in tiny.TIME_FIRST:
            for calls in (*here["in"], here["out"]):
                calls[0] = calls[0].transpose(0, 1)
        if f"{prefix}.rel_pos_h" in saved:  # rows and columns of patches
            for calls in (*here["in"], here["out"]):
                calls[0] = calls[0].flatten(1, 2)
        if f"{prefix}.rel_pos_emb.weight" in saved:  # blocks of a sequence
            block = tiny.first(model.config, "context_size")
            for calls in (*here["in"], here["out"]):
                calls[0] = calls[0].reshape(-1, block, calls[0].shape[-1])
        problem = case_tensors(prefix, here, tensors, model_type)
        if problem:
            missing.append(f"{prefix} ({problem})")
            continue
        if here.get("masked"):
            missing.append(f"{prefix} (masked)")
        cases.append({"name": prefix or "root", "prefix": prefix})
        met[prefix] = here["path"]
    others = unmet(model, met.values(), saved)
    cases += [{"name": prefix or "root", "prefix": prefix} for prefix in others if prefix not in {c["prefix"] for c in cases}]
    inside = tuple(beginning for c in cases for beginning in beginnings(c["prefix"]))
    for key, t in saved.items():
        if (inside and key.startswith(inside)) or any(table in key for table in TABLES):
            tensors[key] = t
    return dict(cls=cls, variant=variant, layers=list(layers), missing=len(missing), not_run=missing,
                cases=[c["prefix"] for c in cases], problems=problems, sections=section_types(model.config),
                unmet=others, met={prefix: attention_around(model, path) for prefix, path in met.items()},
                classes=attention_classes(model), file=(tensors, text, cases))


def in_child(model_type, seconds=90):
    path = OUT / f"{model_type}.json"
    path.unlink(missing_ok=True)
    (OUT / f"{model_type}.safetensors").unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
            signal.alarm(seconds)
            sys.stdout = sys.stderr = open(os.devnull, "w")
            result = make(model_type)
            path.write_text(json.dumps(result))
            code = 0
        except BaseException as e:
            path.write_text(json.dumps(dict(status="not built", problems=[f"{type(e).__name__}: {e}", traceback.format_exc()[-600:]])))
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if not path.exists():
        path.write_text(json.dumps(dict(status="not built", problems=[f"ended with {status}"])))
    return json.loads(path.read_text())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if options.table:
        model_types_table.write(OUT)
        return
    for name in options.names or [*CONFIG_MAPPING_NAMES, *tiny.FURTHER]:
        if (OUT / f"{name}.json").exists() and not options.again and not options.names:
            continue
        start = time.time()
        got = in_child(name)
        print(f"{name:30} {time.time() - start:5.1f} s  {got['status']:10} {got.get('cls', '')} cases {len(got.get('cases', []))} "
              f"missing {got.get('missing', '')} {(got.get('problems') or [''])[0][:150] if not got.get('cases') else ''}", flush=True)


if __name__ == "__main__":
    main()
