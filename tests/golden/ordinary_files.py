"""Models as trainers, converters and older libraries write them, and what the library that owns each one answers.

Writes ../fixtures/ordinary_files.json: cases that each change a copy of another fixture.
    base     the folder below ../fixtures
    edits    what is changed in the copy, in this order:
                 write    files, each with its new content (JSON or text)
                 set      JSON files, each with keys and their values; null removes a key, and
                          `~Infinity` is written as that number
                 reverse  new tensors, each made of another one: its rows from the last to the first,
                          times a factor
                 drop     tensors that are left out
                 prefix   what is put in front of all names of tensors
                 within   [old, new]: replaces the first `old` in all names of tensors
    run      encode, query or document (SentenceTransformer, for `texts`), pairs (CrossEncoder: the
             scores of `texts`, a query and its documents), sparse (SparseEncoder), logits (the
             masked language model of transformers, on the first row of `ids` in the base's
             golden.safetensors)
    want     the numbers, one list per text; for `sparse` the dense vectors. Where it is absent, the
             owning library refuses the files too, or reads something that cannot be known here
    error    parts of the error that is expected, where there is no `want`

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0.
Re-run:  python tests/golden/ordinary_files.py
"""

import json
import math
import shutil
import tempfile
import warnings
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

from common import FIXTURES

TEXTS = ["The cat sat on the mat, and the mat is a mat that many cats read in this world.", "a dog"]
LENGTH_FILES = [f"sentence_{name}_config.json"
                for name in ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]]
SETTINGS = LENGTH_FILES[0]
MEAN = {
    "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                     {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}],
    "1_Pooling/config.json": {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True},
}


def case(name, base, run, edits, texts=None, error=None):
    return dict(name=name, base=base, run=run, edits=edits, texts=texts or TEXTS, error=error)


def head_cases():
    """Decoders and biases of masked language models, alone and beside what they may be tied to."""
    families = {
        "bert": ("bert.embeddings.word_embeddings", "cls.predictions.decoder", "cls.predictions.bias"),
        "roberta": ("roberta.embeddings.word_embeddings", "lm_head.decoder", "lm_head.bias"),
        "albert": ("albert.embeddings.word_embeddings", "predictions.decoder", "predictions.bias"),
        "deberta": ("deberta.embeddings.word_embeddings", "cls.predictions.decoder", "cls.predictions.bias"),
        "distilbert": ("distilbert.embeddings.word_embeddings", "vocab_projector", None),
        "electra": ("electra.embeddings.word_embeddings", "generator_lm_head", None),
        "modernbert": ("model.embeddings.tok_embeddings", "decoder", None),
    }
    for family, (words, decoder, bias) in families.items():
        base = f"encoders/{family}_mlm"
        own = {f"{decoder}.weight": [f"{words}.weight", -0.7]}
        biases = {f"{decoder}.bias": [bias, -0.5]} if bias else {}
        yield case(f"{family}: a decoder of its own, said to be tied", base, "logits", {"reverse": own})
        yield case(f"{family}: a decoder and a bias that are not tied", base, "logits",
                   {"reverse": own | biases, "set": {"config.json": {"tie_word_embeddings": False}}})
        yield case(f"{family}: words under the name of the decoder", base, "logits",
                   {"reverse": own, "drop": [f"{words}.weight"]})
        if bias:
            yield case(f"{family}: two biases", base, "logits", {"reverse": biases})
            yield case(f"{family}: the bias under its other name", base, "logits", {"reverse": biases, "drop": [bias]})
    words = "bert.embeddings.word_embeddings.weight"
    splade = {"reverse": {"cls.predictions.decoder.weight": [words, -0.7]}}
    yield case("sparse: a decoder of its own", "sparse/splade", "sparse", splade)
    head = {"reverse": {"lm_head.weight": ["model.embed_tokens.weight", -0.7]}}
    yield case("qwen3: a head of its own, said to be tied", "rerankers/qwen3", "pairs", head)
    yield case("qwen3: words under the name of the head", "rerankers/qwen3", "pairs",
               head | {"drop": ["model.embed_tokens.weight"]})
    both = {"reverse": {"encoder.embed_tokens.weight": ["shared.weight", -0.7]}}
    yield case("t5: words of the encoder's own", "sentence_models/t5", "encode", both)
    yield case("t5: the encoder's words alone", "sentence_models/t5", "encode", both | {"drop": ["shared.weight"]})
    yield case("t5: the decoder's words alone", "sentence_models/t5", "encode",
               {"reverse": {"decoder.embed_tokens.weight": ["shared.weight", 1.0]}, "drop": ["shared.weight"]},
               error=["`shared.weight` is missing", "`decoder.embed_tokens.weight`"])
    yield case("bert: words in the decoder alone, without the head", "encoders/bert_mlm", "encode",
               {"write": MEAN | {"tokenizer.json": None}, "reverse": {"cls.predictions.decoder.weight": [words, 1.0]},
                "drop": [words]},
               error=["word_embeddings.weight` is missing", "`cls.predictions.decoder.weight`"])


def name_cases():
    """Names that trainers change."""
    for base in ["tiny-bert", "sentence_models/qwen3", "sentence_models/t5"]:
        for prefix in ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module.", "0.auto_model.", "auto_model.",
                       "0.model.", "_fsdp_wrapped_module."] + (["model.", "model._orig_mod."] if "bert" in base else []):
            yield case(f"{base}: names below {prefix}", base, "encode", {"prefix": prefix})
        yield case(f"{base}: names below student.", base, "encode", {"prefix": "student."},
                   error=["`student.", "renamed"])
    for base, within in [("tiny-bert", ["encoder.layer", "encoder._orig_mod.layer"]),
                         ("sentence_models/qwen3", ["layers.1.", "layers.1._checkpoint_wrapped_module."])]:
        yield case(f"{base}: a wrapper within", base, "encode", {"within": within})
    for family in ["bert", "modernbert"]:
        for prefix in ["_orig_mod.", "module.", "auto_model.", "model."]:
            yield case(f"{family} with a head: names below {prefix}", f"encoders/{family}_mlm", "logits",
                       {"prefix": prefix})
    yield case("a head below student.", "encoders/bert_mlm", "logits", {"within": ["cls.", "student.cls."]},
               error=["`student.cls.predictions.transform.dense.weight`", "renamed"])
    yield case("a head below module.", "encoders/bert_mlm", "logits", {"within": ["cls.", "module.cls."]})
    yield case("a module that is not the family's", "tiny-bert", "encode",
               {"reverse": {"encoder.layer.1.adapter.weight": ["embeddings.LayerNorm.weight", 1.0]}},
               error=["`encoder.layer.1.adapter.weight` is stored"])
    yield case("the first layer of two", "tiny-bert", "encode", {"set": {"config.json": {"num_hidden_layers": 1}}})
    yield case("another head", "tiny-bert", "encode",
               {"reverse": {"classifier.weight": ["embeddings.word_embeddings.weight", 1.0]}})


def settings_cases():
    """The file of a transformer's settings, under its seven names and with each of its keys."""
    base, length = "tiny-bert", {"max_seq_length": 8, "do_lower_case": False}
    alone = {"tokenizer_config.json": {"model_max_length": None}}
    for name in LENGTH_FILES:
        yield case(name, base, "encode", {"write": {SETTINGS: None} | {name: length}, "set": alone})
    yield case("the first of two", base, "encode",
               {"write": {SETTINGS: {"max_seq_length": 9}, LENGTH_FILES[1]: {"max_seq_length": 6}}, "set": alone})
    yield case("an empty one and another", base, "encode",
               {"write": {SETTINGS: {}, LENGTH_FILES[4]: {"max_seq_length": 6}}, "set": alone})
    text = lambda **options: {"processing_kwargs": {"text": options}}
    for name, keys in {
        "max_length": text(max_length=8), "max_length, shorter": text(max_length=5) | {"max_seq_length": 9},
        "common": {"processing_kwargs": {"common": {"max_length": 7}, "text": {"max_length": 5}}},
        "truncation": text(truncation=True), "no special tokens": text(add_special_tokens=False),
        "tokenizer_args": {"tokenizer_args": {"model_max_length": 8}, "max_seq_length": 12},
        "processor_kwargs": {"processor_kwargs": {"model_max_length": 8}},
        "config_args": {"config_args": {"layer_norm_eps": 0.5, "hidden_act": "relu"}},
        "config_kwargs": {"config_kwargs": {"num_hidden_layers": 1}},
        "dtype": {"model_args": {"dtype": "float32", "attn_implementation": "eager"}},
        "task": {"transformer_task": "feature-extraction", "unpad_inputs": False},
        "modality": {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
                     "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}},
    }.items():
        yield case(f"settings: {name}", base, "encode", {"write": {SETTINGS: keys}})
    lengths = {"write": {SETTINGS: {"query_length": 6, "document_length": 9, "max_seq_length": 12}}}
    for run in ["encode", "query", "document"]:
        yield case(f"settings: lengths, {run}", base, run, lengths)
    yield case("settings: queries longer than the positions", base, "query", {"write": {SETTINGS: {"query_length": 1000}}})
    for other, run in [("rerankers/qwen3_head", "pairs"), ("sparse/splade", "sparse")]:
        stated = json.loads((FIXTURES / other / SETTINGS).read_text())
        short = stated | {"max_seq_length": 9}
        yield case(f"{other}: another name", other, run,
                   {"write": {SETTINGS: None, LENGTH_FILES[2]: short}, "set": alone})
        yield case(f"{other}: lower case", other, run, {"write": {SETTINGS: stated | {"do_lower_case": True}}},
                   ["The CAT \u039f\u0394\u039f\u03a3", "A Cat [MASK]", "SAT"])
    for name, keys, error in [
        ("unknown", {"made_up": 3}, "made_up"),
        ("model_kwargs", {"model_kwargs": {"layer_norm_eps": 0.5}}, "model_kwargs.layer_norm_eps"),
        ("truncation_side", {"tokenizer_args": {"truncation_side": "left"}}, "processor_kwargs.truncation_side"),
        ("fill-mask", {"transformer_task": "fill-mask"}, "`fill-mask`, expected `feature-extraction`"),
        ("no truncation", text(truncation=False), "processing_kwargs.text.truncation"),
        ("pooler", {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}},
                    "module_output_name": "sentence_embedding"}, "pooler_output"),
        ("expansion", {"query_expansion": {"strategy": "fixed", "length": 9}}, "query_expansion"),
        ("tokenizer elsewhere", {"tokenizer_name_or_path": "elsewhere"}, "tokenizer_name_or_path"),
    ]:
        yield case(f"settings, refused: {name}", base, "encode", {"write": {SETTINGS: keys}}, error=[SETTINGS, error])
    for file, keys, error in [
        ("1_Pooling/config.json", {"pooling_mode_first_last_avg": True}, "pooling_mode_first_last_avg"),
        ("2_Normalize/config.json", {"p": 1}, "`p`"),
        ("tokenizer_config.json", {"split_special_tokens": True}, "split_special_tokens"),
        ("tokenizer_config.json", {"do_lower_case": False}, "do_lower_case"),
        ("tokenizer_config.json", {"model_max_length": "16"}, "model_max_length"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"5": {"content": "cat"}}}, "`cat`"),
        ("config.json", {"layer_norm_eps": "Infinity"}, "layer_norm_eps"),
        ("config.json", {"hidden_size": 24.5}, "hidden_size"),
    ]:
        yield case(f"refused: {file} {error}", base, "encode", {"set": {file: keys}}, error=[file, error])


def lower_case_cases():
    """Special tokens and the last sigma of a word, where texts are lower-cased."""
    settings = {SETTINGS: {"do_lower_case": True}}
    general = {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}
    words = ["The [MASK] Cat [SEP] SAT", "[UNK][UNK] \u039f\u0394\u039f\u03a3 \u0130\u1e9e", "THE CAT"]
    yield case("lower case: an uncased vocabulary", "tiny-bert", "encode", {"write": settings}, words)
    yield case("lower case: a cased vocabulary", "token_classifier/bert", "encode",
               {"write": MEAN | settings, "set": general}, words)
    yield case("lower case: bytes", "token_classifier/roberta", "encode", {"write": MEAN | settings, "set": general},
               ["<MASK> cat", "<mask> \u039f\u0394\u039f\u03a3", "THE CAT"])


def class_cases():
    """Classes of modules and of activations."""
    transformer, pooling, normalize = json.loads((FIXTURES / "tiny-bert" / "modules.json").read_text())
    for which, module in [("Transformer", transformer), ("Pooling", pooling), ("Normalize", normalize)]:
        for path in ["mine.", "custom_st.", "sentence_transformers_x.", "", "a/b--mine."]:
            modules = [dict(m, type=path + which) if m is module else m for m in (transformer, pooling, normalize)]
            yield case(f"class {path}{which}", "tiny-bert", "encode", {"write": {"modules.json": modules}},
                       error=["modules.json", f"`{path}{which}" if path else f"`{which} (of no Python module)"])
        modules = [dict(m, type="sentence_transformers.models." + which) if m is module else m
                   for m in (transformer, pooling, normalize)]
        yield case(f"class of earlier versions: {which}", "tiny-bert", "encode", {"write": {"modules.json": modules}})
    activation = lambda name: {"set": {"config_sentence_transformers.json": {"activation_fn": name}}}
    yield case("activation: torch's", "rerankers/qwen3_head", "pairs",
               activation("torch.nn.modules.linear.Identity"))
    yield case("activation: a class of its own", "rerankers/qwen3_head", "pairs", activation("mine.Identity"),
               error=["mine.Identity"])


def json_cases():
    """Numbers that Python's JSON has."""
    infinite = float("inf")
    yield case("infinite length", "tiny-bert", "encode",
               {"set": {"tokenizer_config.json": {"model_max_length": infinite}, SETTINGS: {"max_seq_length": None}}})
    yield case("numbers of Python that nothing reads", "tiny-bert", "encode",
               {"set": {"config.json": {"limit": [0.0, infinite], "low": -infinite, "none": float("nan")},
                        "config_sentence_transformers.json": {"none": float("nan")}}})


def apply(edits, folder):
    """Changes the copy of a fixture."""
    for file, content in edits.get("write", {}).items():
        (folder / file).parent.mkdir(exist_ok=True)
        if content is None:
            (folder / file).unlink(missing_ok=True)
        else:
            (folder / file).write_text(json.dumps(content))
    for file, keys in edits.get("set", {}).items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        stated = json.loads(path.read_text()) if path.exists() else {}
        stated |= keys
        path.write_text(json.dumps({key: value for key, value in stated.items() if value is not None}))
    if edits.keys() & {"reverse", "drop", "prefix", "within"}:
        state = load_file(folder / "model.safetensors")
        for new, (old, factor) in edits.get("reverse", {}).items():
            state[new] = (state[old].flip(0) * factor).contiguous()
        for name in edits.get("drop", []):
            del state[name]
        old, new = edits.get("within", ["", ""])
        state = {edits.get("prefix", "") + name.replace(old, new, 1): tensor for name, tensor in state.items()}
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


def answer(case, folder):
    """What the owning library gives."""
    run, texts = case["run"], case["texts"]
    if run == "logits":
        model = tf.AutoModelForMaskedLM.from_pretrained(folder).eval()
        ids = load_file(FIXTURES / case["base"] / "golden.safetensors")["ids"][:1]
        return model(input_ids=ids).logits[0]
    if run == "pairs":
        return torch.tensor(CrossEncoder(str(folder), device="cpu").predict([(texts[0], d) for d in texts[1:]]))[:, None]
    if run == "sparse":
        return SparseEncoder(str(folder), device="cpu").encode(texts, show_progress_bar=False).to_dense()
    # The libraries do not remove prefixes: they read the weights as the model was before.
    model = SentenceTransformer(str(folder), device="cpu")
    encode = {"encode": model.encode, "query": model.encode_query, "document": model.encode_document}[run]
    return encode(texts, convert_to_tensor=True, show_progress_bar=False)


def marked(value):
    """The value with texts such as `~Infinity` for numbers that only Python's JSON has."""
    if isinstance(value, dict):
        return {key: marked(x) for key, x in value.items()}
    if isinstance(value, list):
        return [marked(x) for x in value]
    return f"~{json.dumps(value)}" if isinstance(value, float) and not math.isfinite(value) else value


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.disable_progress_bar()
    tf.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    cases = [c for kind in (head_cases, name_cases, settings_cases, lower_case_cases, class_cases, json_cases)
             for c in kind()]
    for case in cases:
        if case["error"]:
            continue
        with tempfile.TemporaryDirectory() as tmp:
            folder = Path(tmp) / "model"
            shutil.copytree(FIXTURES / case["base"], folder)
            apply({k: v for k, v in case["edits"].items() if k not in ("prefix", "within")}, folder)
            numbers = answer(case, folder).float()
        case["want"] = [[float(f"{x:.7g}") for x in row] for row in numbers.tolist()]
        print(case["name"], tuple(numbers.shape))
    for case in cases:
        if case["error"] is None:
            del case["error"]
        if case["texts"] is TEXTS:
            del case["texts"]
    lines = ",\n".join(json.dumps(marked(case), ensure_ascii=False) for case in cases)
    (FIXTURES / "ordinary_files.json").write_text('{"texts": %s, "cases": [\n%s\n]}\n' % (json.dumps(TEXTS), lines))


if __name__ == "__main__":
    main()
