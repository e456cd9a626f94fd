"""Finds the attention layers of a saved model, and catches what goes into and out of them (see model_types.py)."""

import inspect
import re
from collections import UserDict

import torch

# Tensor names under which attention is published: of queries, keys and values, and of the output. A fused projection
# has one name. They are those of `src/families/layouts.rs`.
LAYOUTS = [
    (["q_proj", "k_proj", "v_proj"], "o_proj"),
    (["self.query", "self.key", "self.value"], "output.dense"),
    (["self.query_proj", "self.key_proj", "self.value_proj"], "output.dense"),
    (["self.in_proj"], "output.dense"),
    (["self.qkv_linear"], "output.dense"),
    (["q_lin", "k_lin", "v_lin"], "out_lin"),
    (["query", "key", "value"], "dense"),
    (["attn.q", "attn.k", "attn.v"], "attn.o"),
    (["q", "k", "v"], "o"),
    (["attention.query", "attention.key", "attention.value"], "output.dense"),
    (["attention.query", "attention.key", "attention.value"], "post_attention.conv1d"),
    (["qkv"], "proj"),
    (["q_proj", "k_proj", "v_proj"], "out_proj"),
    (["q_proj", "k_proj", "v_proj"], "proj"),
    (["q_proj", "k_proj", "v_proj"], "dense"),
    (["qkv_proj"], "o_proj"),
    (["gqkv_proj"], "o_proj"),
    (["Wqkv"], "Wo"),
    (["Wqkv"], "out_proj"),
    (["query_key_value"], "dense"),
    (["qkv_proj"], "out_proj"),
    (["q_attn", "c_attn"], "c_proj"),
    (["c_attn"], "c_proj"),
    (["q", "kv"], "proj"),
    (["q_proj", "k_proj", "v_proj"], "projection_layer"),
    (["query", "key", "value"], "output"),
    (["att_proj"], "out_proj"),
    (["att_proj"], "attn_out"),
    (["in_proj"], "o_proj"),
    (["q_proj.linear", "k_proj.linear", "v_proj.linear"], "o_proj.linear"),
    (["query", "key", "value"], "proj"),
    (["to_q", "to_k", "to_v"], "to_out"),
    (["wq", "wk", "wv"], "proj"),
    (["wq_a", "wkv"], "wo_b"),
    (["q_a_proj", "kv_a_proj_with_mqa"], "o_proj"),
    (["q_proj", "kv_a_proj_with_mqa"], "o_proj"),
    (["q_proj", "kv_a_proj_with_mqa"], "dense"),
    # Not of a layout, but attention all the same.
    (["query", "key", "value"], "out_proj"),
    (["query", "key", "value"], "output.dense"),
    (["query", "key", "value"], "projection"),
    (["query", "key", "value"], "proj"),
    (["q", "k", "v"], "proj"),
    (["q", "k", "v"], "out"),
    (["q", "k", "v"], "proj_out"),
    (["w_qkv"], "out_proj"),
    (["project_q", "project_k", "project_v"], "attention_out"),
    (["q_proj", "k_proj", "v_proj"], "output"),
    (["qkv"], "projection"),
    (["qkv"], "out_proj"),
    (["to_q", "to_k", "to_v"], "to_out.0"),
    (["query_proj", "key_proj", "value_proj"], "out_proj"),
    (["query", "key_protein", "value_protein"], "out_proj"),
    (["attn.q_proj", "attn.k_proj", "attn.v_proj"], "post"),
    (["q_proj.linear", "k_proj.linear", "v_proj.linear"], "post.linear"),
    (["linear_q", "linear_k", "linear_v"], "linear_out"),
    (["q_proj", "k_proj", "v_proj"], "linear_out"),
    (["self.query", "self.key", "self.value"], "output"),
    (["longformer_self_attn.query", "longformer_self_attn.key", "longformer_self_attn.value"], "output"),
    (["self_attention.qkv"], "self_attention.dense"),
    (["wq", "wk", "wv"], "wo"),
    (["to_q", "to_kv"], "to_out"),
    (["to_q", "to_k", "to_v"], "out_proj"),
    (["att.query", "att.key", "att.value"], "output.dense"),
    (["query_net", "key_net", "value_net"], "out_projection"),
    (["wqkv"], "wo"),
    (["Wq", "Wk", "Wv"], "dense"),
    (["q_proj", "k_proj", "v_proj"], "Wo"),
    (["q_proj", "k_proj", "v_proj"], "output_proj"),
    # A query without a projection.
    (["k_proj", "v_proj"], "output_proj"),
    # Contents and positions apart, with sines of places in cross-attention.
    ([f"self_attn_{x}_proj" for x in ("query_content", "query_pos", "key_content", "key_pos", "value")],
     "self_attn.output_proj"),
    *[([f"cross_attn_{x}_proj" for x in ("query_content", *placed, "query_pos_sine", "key_content", "key_pos", "value")],
       "cross_attn.output_proj") for placed in (["query_pos"], [])],
    # The same beside the modules of the outputs.
    (["sa_qcontent_proj", "sa_qpos_proj", "sa_kcontent_proj", "sa_kpos_proj", "sa_v_proj"], "self_attn.out_proj"),
    *[(["ca_qcontent_proj", *placed, "ca_qpos_sine_proj", "ca_kcontent_proj", "ca_kpos_proj", "ca_v_proj"],
       "encoder_attn.out_proj") for placed in (["ca_qpos_proj"], [])],
    # Values and an output without projections.
    (["hidden_to_hidden", "input_to_hidden"], "score"),
    # Keys that are values, and layers with the keys and values of another one.
    (["q_proj", "k_proj"], "o_proj"),
    (["q_proj"], "o_proj"),
]


# How the names of projections begin that stand beside the modules of the outputs, which are the prefixes of the layers.
BESIDE = {"self_attn": "sa_", "encoder_attn": "ca_"}


def beginnings(prefix):
    """How the names of all tensors of a layer begin."""
    above, _, last = prefix.rpartition(".")
    beside = [f"{above}.{BESIDE[last]}"] if last in BESIDE else []
    return (f"{prefix}." if prefix else "", *beside)


def prefixes(saved):
    """(prefix, names of weights in, name of the weight out) of all attention layers by their names."""
    found = {}
    for inputs, output in LAYOUTS:
        for kernel in (".weight", ""):  # or parameters without modules
            for name in saved:
                if not name.endswith(f"{inputs[0]}{kernel}"):
                    continue
                prefix = name[: -len(inputs[0] + kernel)]
                if prefix and not prefix.endswith("."):
                    continue
                names = [f"{prefix}{x}{kernel}" for x in (*inputs, output)]
                other = inputs == ["q_proj"] and any(n.startswith(f"{prefix}kv") for n in saved)
                if all(n in saved for n in names) and not other:
                    claimed = {n for ns in found.values() for n in ns}
                    if names[0] not in claimed:
                        last = output.partition(".")[0]
                        beside = inputs[0].startswith(BESIDE.get(last, "."))
                        found[f"{prefix}{last}" if beside else prefix.rstrip(".")] = names
    for name in saved:
        if name.endswith("in_proj_weight") and name.replace("in_proj_weight", "out_proj.weight") in saved:
            found[name[: -len("in_proj_weight")].rstrip(".")] = [name, name.replace("in_proj_weight", "out_proj.weight")]
    return found


# Modules of attention that read the weights of their projections without calling them.
WHOLE = {"WavLMAttention"}


# Modules of attention that add something after the projection of the output.
ADDS_AFTER = {"FunAsrNanoAttention"}

# Modules of attention that project with the time as the first dimension, and give it second.
TIME_FIRST = {"LongformerSelfAttention", "LEDEncoderSelfAttention"}

# Classes of attention; those of linear attention have names of their own.
ATTENTION = re.compile("Attention|Attn|DeltaNet")
# Modules that only hold attention, or follow it.
AROUND = re.compile("(Layer|Block|Stage|Norm|Pooling|Output|Embeddings?|Mask|Model|PreTrained|Merger)$")


def is_attention(cls):
    return bool(ATTENTION.search(cls.__name__)) and not AROUND.search(cls.__name__)


def attention_around(model, path):
    """The name of the class of attention that holds the projection at this path, if there is one."""
    modules = dict(model.named_modules())
    while path:
        path = path.rpartition(".")[0]
        if is_attention(type(modules[path])):
            return type(modules[path]).__name__
    return None


def unmet(model, met, saved):
    """{prefix in the file: class} of the modules of attention of which no projection was caught.

    met: the paths of those that were."""
    around = {path.rpartition(".")[0] for path in met}
    for path in list(around):
        while path:
            path = path.rpartition(".")[0]
            around.add(path)
    names = {}
    for name, t in saved.items():
        if t.dim() >= 2 and t.numel():
            names.setdefault(rows(t)[0].numpy().tobytes(), name)
    found, inside = {}, ()
    for path, m in model.named_modules():
        held = [(n, p) for n, p in m.named_parameters() if p.dim() >= 2 and p.numel()]
        if not is_attention(type(m)) or len(held) < 2 or path in around or (inside and path.startswith(inside)):
            continue
        inside += (f"{path}.",)
        stored = [names.get(rows(p)[0].numpy().tobytes(), "") for _, p in held]
        alike = [name[: -len(n)].rstrip(".") for name, (n, _) in zip(stored, held) if name.endswith(f".{n}") or name == n]
        parts = [name.split(".")[:-2] for name in stored if name]
        common = ".".join(p for p, *others in zip(*parts) if all(o == p for o in others)) if parts else path
        found[alike[0] if alike else common or path] = type(m).__name__
    return found


def rows(t):
    t = t.detach().float()
    return t.reshape(t.shape[0], -1) if t.dim() > 1 else t.reshape(1, -1)


class Index:
    """Finds the module that holds a saved weight: by its numbers, since saved names may differ from those at run time."""

    def __init__(self, model):
        self.at = {}
        modules = dict(model.named_modules())
        for path, p in model.named_parameters(remove_duplicate=False):
            if p.dim() < 2 or not p.is_floating_point() or p.numel() == 0:
                continue
            owner = path.rpartition(".")[0]
            for row in rows(p):
                self.at.setdefault(row.numpy().tobytes(), (owner, modules[owner]))

    def find(self, t):
        if t.dim() < 2 or not t.numel():
            return None
        for row in rows(t)[:: max(1, t.shape[0] - 1)]:
            if (hit := self.at.get(row.numpy().tobytes())) is not None:
                return hit
        return None


def clean(x):
    return x.detach().clone().float()


def tokens(module, x):
    """A tensor of a projection as tokens: convolutions have channels before pixels or frames."""
    pointwise = isinstance(module, (torch.nn.Conv1d, torch.nn.Conv2d))
    return clean(x.flatten(2).transpose(1, 2) if pointwise else x)


def watch_arguments(model, path, here):
    """Hooks on the modules around a projection, which keep the arguments of their calls."""
    modules = dict(model.named_modules())
    for _ in range(2):
        path = path.rpartition(".")[0]

        def before(m, args, kwargs):
            try:
                given = inspect.signature(m.forward).bind_partial(*args, **kwargs).arguments
            except TypeError:
                return
            if "layout_inputs" in given and hasattr(m, "layout_query"):
                heads = [m.transpose_for_scores(p(given["layout_inputs"]), r=m.channel_shrink_ratio)
                         for p in (m.layout_query, m.layout_key)]
                scores = heads[0] @ heads[1].transpose(-1, -2)
                here["arguments"]["layout_scores"] = scores / (m.attention_head_size // m.channel_shrink_ratio) ** 0.5
            if "cross_attention_states" in given:
                given["cross_mask"] = given.get("attention_mask")
            if isinstance(shared := given.get("shared_kv_states"), (dict, UserDict)) and hasattr(m, "layer_type"):
                given["shared_kv_states"] = shared.get(m.layer_type)
            for name, value in {**given, **given.get("kwargs", {})}.items():
                if isinstance(value, torch.Tensor):
                    here["arguments"][name] = clean(value) if value.is_floating_point() else value.clone()
                elif isinstance(value, (tuple, list)) and len(value) == 2 and isinstance(value[0], torch.Tensor):
                    here["arguments"][name] = [clean(v) for v in value]
        modules[path].register_forward_pre_hook(before, with_kwargs=True)


def watch_cell(cell, here):
    """Hooks on a recurrent cell that attends by its state: the context is what goes into it before the symbol."""
    def before(_m, args, kwargs):
        state, tokens = (*args, *kwargs.values())[:2]
        here["in"][0].append(clean(state[:, None]))
        here["in"][1].append(clean(tokens))

    def context(_m, args):
        here["out"].append(clean(args[0][:, None, : cell.input_to_hidden.in_features]))
    cell.register_forward_pre_hook(before, with_kwargs=True)
    cell.rnn.register_forward_pre_hook(context)


def watch_parameters(attention, here):
    """Hooks on XLNet's attention, whose projections are no modules: its output goes through the last dropout."""
    here["in"], here["path"] = [[], [], []], f"{here['path']}.q"
    signature = inspect.signature(attention.forward)

    def before(_m, args, kwargs):
        given = signature.bind(*args, **kwargs).arguments
        h, mems, segments = given["h"], given.get("mems"), given.get("seg_mat")
        keys = h if mems is None else torch.cat([mems, h])
        for calls, x in zip(here["in"], (h, keys, keys)):
            calls.append(clean(x.transpose(0, 1)))
        if segments is not None:  # (queries, keys, b, own or other); the number of a type is that of its first query
            own = segments[..., 0].bool()
            first = torch.where(own.any(0), own.int().argmax(0), -1)
            here["arguments"]["token_types"] = first.transpose(0, 1)

    def after(_m, _args, out):
        if out.dim() == 3:
            here["out"].append(clean(out.transpose(0, 1)))
    attention.register_forward_pre_hook(before, with_kwargs=True)
    attention.dropout.register_forward_hook(after)


def watch(model, layers, saved):
    """Hooks on the projections of each layer; what they catch comes into the returned dictionary."""
    index, caught, lost = Index(model), {}, []
    for prefix, names in layers.items():
        owners = [index.find(saved[n]) for n in names]
        if len(names) == 2:  # one weight in the file, and perhaps three projections in the model
            parts = [index.find(part) for part in saved[names[0]].chunk(3)]
            if all(parts) and len({path for path, _ in parts}) == 3:
                owners = [*parts, owners[-1]]
        if any(o is None for o in owners):
            lost.append(prefix)
            continue
        here = caught.setdefault(prefix, {"in": [[] for _ in owners[:-1]], "out": [], "path": owners[0][0]})
        here["arguments"] = {}
        modules = [m for _, m in owners]
        for i, (path, _) in enumerate(owners):  # with the limits on what goes in and comes out
            around = model.get_submodule(path.rpartition(".")[0])
            if type(around).__name__.endswith("ClippableLinear"):
                modules[i] = around
        if isinstance(modules[0], torch.nn.MultiheadAttention):
            mha = modules[0]
            here["mha"] = True
            here["in"] = [[], [], []]

            def before(m, args, kwargs, here=here):
                qkv = list(args[:3])
                for i, n in enumerate(("query", "key", "value")):
                    x = qkv[i] if i < len(qkv) else kwargs[n]
                    here["in"][i].append(clean(x if m.batch_first or x.dim() == 2 else x.transpose(0, 1)))
                padding, mask = kwargs.get("key_padding_mask", args[3] if len(args) > 3 else None), kwargs.get("attn_mask")
                here["masked"] = isinstance(padding, torch.Tensor) or isinstance(mask, torch.Tensor)
                if isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and mask.dim() == 3:
                    here["arguments"]["attn_mask"] = ~mask.reshape(-1, m.num_heads, *mask.shape[1:])
                    here["masked"] = isinstance(padding, torch.Tensor)

            def after(m, args, out, here=here):
                out = out[0]
                here["out"].append(clean(out if m.batch_first or out.dim() == 2 else out.transpose(0, 1)))

            mha.register_forward_pre_hook(before, with_kwargs=True)
            mha.register_forward_hook(after)
            continue
        if type(modules[0]).__name__ == "XLNetRelativeAttention":
            watch_parameters(modules[0], here)
            continue
        parent = model.get_submodule(owners[0][0].rpartition(".")[0])
        if hasattr(parent, "hidden_to_hidden"):
            watch_cell(parent, here)
            continue
        if type(parent).__name__ in WHOLE:
            modules = [parent, parent]
            here["in"] = [[]]
        watch_arguments(model, owners[0][0], here)
        query = parent.cls_token if hasattr(parent, "cls_token") and len(modules) == 3 else None  # the head of AIMv2
        if query is not None:
            here["in"].insert(0, [])
            modules = [modules[0], *modules]
        if type(parent).__name__ in ADDS_AFTER:
            modules = [*modules[:-1], parent]
        for i, m in enumerate(modules[:-1]):
            def before(_m, args, kwargs, here=here, i=i, parent=parent, query=query):
                x = args[0] if args else next(iter(kwargs.values()))
                x = query if i == 0 and query is not None else x
                x = x.transpose(0, 1) if type(parent).__name__ in TIME_FIRST else x
                here["in"][i].append(tokens(_m, x))
            m.register_forward_pre_hook(before, with_kwargs=True)

        def after(_m, _args, out, here=here, bias=getattr(parent, "dense_bias", None)):
            out = tokens(_m, out[0] if isinstance(out, tuple) else out)
            here["out"].append(out if bias is None else out + clean(bias))
        modules[-1].register_forward_hook(after)
    return caught, lost
