"""LoRA adapters of tiny encoders, and what the adapted models answer.

Writes for each name in ADAPTERS a folder ../fixtures/lora/<name>/ with
    adapter_config.json, adapter_model.safetensors   as PEFT's `save_pretrained` writes them
    golden.safetensors   `ids` i64 (b, s), `lengths` i64 (b), and for the base model and for the model
                         with the adapter, merged, and unmerged again
                         `base`, `adapted`, `merged`, `unmerged` f32 (b, s, h): the last hidden state,
                         with zeros at padding; (b, labels) for a classifier
All tensors of an adapter are random. The base models are ../fixtures/tiny-bert and those of
../fixtures/encoders; a classifier has the body of tiny-bert and the head that its adapter holds.

    lora/gradients.safetensors   for the adapter bert_query_value: `weights` f32 (b, s, h), the loss
                                 sum(hidden · weights) / 10, and the gradient of each of its tensors under its name
    lora/gpt2.safetensors        the attention weights of a random GPT-2 layer under their names, an adapter
                                 for them (`base_model.model.…`), and `merged.<name>`: PEFT's weights
    lora/sentences/              a sentence-transformers model with an adapter as that library saves it
                                 after `add_adapter`, on tiny-bert
    lora/sentences.safetensors   `base` and `adapted` (8, 24): the vectors of ../fixtures/tiny_sentences.json

Made with torch 2.15.0, transformers 5.23.0, peft 0.21.2, sentence-transformers 6.2.0 (stored in the
metadata).
Re-run:  python tests/golden/lora.py [name ...]
"""

import copy
import json
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import peft
import torch
import transformers as tf
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from common import FIXTURES, save

OUT = FIXTURES / "lora"
BERT, DISTILBERT, MODERNBERT = "tiny-bert", "encoders/distilbert", "encoders/modernbert"
PACKAGES = ["torch", "transformers", "peft"]

# name: (base model, model class, arguments of LoraConfig)
ADAPTERS = {
    "bert_query_value": (BERT, "AutoModel", dict(r=4, lora_alpha=8, target_modules=["query", "value"])),
    "bert_all_linear": (BERT, "AutoModel", dict(r=3, lora_alpha=5, target_modules="all-linear", use_rslora=True, bias="all")),
    "bert_dora": (BERT, "AutoModel", dict(r=2, lora_alpha=7, target_modules=["query", "dense"], use_dora=True)),
    "bert_patterns": (BERT, "AutoModel", dict(
        r=4, lora_alpha=4, target_modules=r".*layer\.\d\.(attention\.self|output)\.(query|key|dense)",
        rank_pattern={"query": 2, r"layer\.1\.output\.dense": 5}, alpha_pattern={r".*\.0\..*key": 9})),
    "bert_layers": (BERT, "AutoModel", dict(
        r=2, lora_alpha=6, target_modules=["value"], layers_to_transform=[1], layers_pattern="layer")),
    "bert_embeddings": (BERT, "AutoModel", dict(
        r=2, lora_alpha=6, target_modules=["word_embeddings", "query"], bias="lora_only")),
    "bert_classifier": (BERT, "AutoModelForSequenceClassification", dict(
        r=2, lora_alpha=6, target_modules=["query"], task_type="SEQ_CLS")),
    "bert_tokens": (BERT, "AutoModel", dict(
        r=2, lora_alpha=6, target_modules=["query"],
        trainable_token_indices={"word_embeddings": [9, 3, 40], "position_embeddings": [1]})),
    "bert_mlm_tokens": ("encoders/bert_mlm", "AutoModelForMaskedLM", dict(
        r=2, lora_alpha=6, target_modules=["value"], trainable_token_indices=[5, 2, 11, 7])),
    "distilbert_query_value": (DISTILBERT, "AutoModel", dict(r=3, lora_alpha=6, target_modules=["q_lin", "v_lin"])),
    "distilbert_all_linear": (DISTILBERT, "AutoModel", dict(r=2, lora_alpha=3, target_modules="all-linear")),
    "nomic_bert_all_linear": ("encoders/nomic_bert", "AutoModel", dict(r=2, lora_alpha=3, target_modules="all-linear")),
    "jina_v3_query_dora": ("encoders/jina_embeddings_v3", "AutoModel", dict(
        r=2, lora_alpha=3, target_modules=["q_proj", "o_proj", "fc1"], use_dora=True)),
    "modernbert_all_linear": (MODERNBERT, "AutoModel", dict(r=2, lora_alpha=5, target_modules="all-linear")),
}


def randomise(model, seed):
    """Fills everything that an adapter trains: changes that are visible, magnitudes and biases near their own."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "lora_A" in name or "lora_B" in name or "lora_embedding" in name:
            p.data.copy_(0.2 * noise)
        elif "lora_magnitude" in name or p.requires_grad:
            p.data.add_(0.1 * noise)


def inputs(base):
    """The ids of the base model's own fixture, the attention mask, and the lengths."""
    if base == BERT:
        golden = load_file(FIXTURES / "tiny_bert.safetensors")
        return golden["ids"], golden["mask"].long(), golden["mask"].long().sum(1)
    golden = load_file(FIXTURES / base / "golden.safetensors")
    ids, lengths = golden["ids"].long(), golden["lengths"].long()
    return ids, (torch.arange(ids.shape[1])[None] < lengths[:, None]).long(), lengths


def answer(model, ids, mask):
    output = model(input_ids=ids, attention_mask=mask)
    if "logits" in output:
        return output.logits
    return torch.where(mask[:, :, None] == 1, output.last_hidden_state, 0.0)


def adapter(name):
    base, cls, settings = ADAPTERS[name]
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    model = getattr(tf, cls).from_pretrained(FIXTURES / base, attn_implementation="eager").eval()
    ids, mask, lengths = inputs(base)
    values = {"ids": ids, "lengths": lengths, "base": answer(model, ids, mask)}
    model = peft.get_peft_model(model, peft.LoraConfig(**copy.deepcopy(settings))).eval()
    randomise(model, seed)
    values["adapted"] = answer(model, ids, mask)
    assert (values["adapted"] - values["base"]).abs().max() > 0.05, name
    shutil.rmtree(OUT / name, ignore_errors=True)
    for config in model.peft_config.values():
        config.base_model_name_or_path = None
    model.save_pretrained(OUT / name, save_embedding_layers=False)
    (OUT / name / "README.md").unlink()
    path = OUT / name / "adapter_config.json"
    path.write_text(path.read_text().replace(f"{FIXTURES}/", ""))
    if settings.get("bias", "none") == "none" and "task_type" not in settings:
        model.merge_adapter()
        values["merged"] = answer(model, ids, mask)
        model.unmerge_adapter()
        with model.disable_adapter():
            values["unmerged"] = answer(model, ids, mask)
        if cls == "AutoModelForMaskedLM":
            # PEFT's decoder has no bias until rows of tied weights are merged.
            del values["adapted"]
        for key, like in [("merged", "adapted"), ("unmerged", "base")]:
            if like not in values:
                continue
            torch.testing.assert_close(values[key], values[like], rtol=0, atol=2e-5)
    values = {key: value.contiguous() for key, value in values.items()}
    save(f"lora/{name}/golden.safetensors", values, PACKAGES, f"{cls} of {base} with {settings}", framework="torch")


def gradients():
    """Gradients of the tensors of an adapter by PyTorch."""
    ids, mask, _ = inputs(BERT)
    model = tf.AutoModel.from_pretrained(FIXTURES / BERT, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model, OUT / "bert_query_value", is_trainable=True).eval()
    with torch.enable_grad():
        hidden = answer(model, ids, mask)
        weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(3))
        (hidden * weights).sum().div(10).backward()
    values = {"weights": weights}
    for name, p in model.named_parameters():
        assert (p.grad is not None) == ("lora_" in name), name
        if p.grad is not None:
            values[name.replace(".default", "")] = p.grad.clone()
    save("lora/gradients.safetensors", values, PACKAGES, "gradients of an adapter", framework="torch")


def gpt2():
    """Weights that are stored (in, out), one of them square."""
    torch.manual_seed(7)
    config = tf.GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = tf.GPT2Model(config)
    kept = {k: v for k, v in model.state_dict().items() if k.startswith("h.0.attn.c_") and not k.endswith("bias")}
    for name, weight in kept.items():
        weight.copy_(torch.randn(weight.shape))
    values = {name: weight.clone() for name, weight in kept.items()}
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["attn.c_attn", "attn.c_proj"], fan_in_fan_out=True))
    randomise(model, 7)
    values |= peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    merged = model.merge_and_unload().state_dict()
    values |= {f"merged.{name}": merged[name] for name in kept}
    values = {key: value.clone().contiguous() for key, value in values.items()}
    save("lora/gpt2.safetensors", values, PACKAGES, "GPT-2 attention weights and an adapter", framework="torch")


def sentences():
    texts = json.loads((FIXTURES / "tiny_sentences.json").read_text())
    model = SentenceTransformer(str(FIXTURES / "tiny-bert"), device="cpu")
    values = {"base": model.encode(texts, convert_to_tensor=True)}
    model.add_adapter(peft.LoraConfig(r=2, lora_alpha=8, target_modules=["query", "value"],
                                      task_type=peft.TaskType.FEATURE_EXTRACTION))
    randomise(model, 11)
    model.eval()
    values["adapted"] = model.encode(texts, convert_to_tensor=True)
    assert (values["adapted"] - values["base"]).abs().max() > 0.05
    shutil.rmtree(OUT / "sentences", ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, create_model_card=False)
        print("sentence-transformers saved:", sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("*")))
        loaded = SentenceTransformer(folder, device="cpu")
        torch.testing.assert_close(loaded.encode(texts, convert_to_tensor=True), values["adapted"], rtol=0, atol=1e-6)
        shutil.copytree(folder, OUT / "sentences")
    path = OUT / "sentences" / "adapter_config.json"
    config = json.loads(path.read_text())
    # Without the path of the machine; a test puts its own here.
    path.write_text(json.dumps(config | {"base_model_name_or_path": "tiny-bert"}, indent=2, sort_keys=True) + "\n")
    save("lora/sentences.safetensors", values, [*PACKAGES, "sentence-transformers"],
         "tiny-bert with an adapter of add_adapter", framework="torch")


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.disable_progress_bar()
    others = {"gpt2": gpt2, "gradients": gradients, "sentences": sentences}
    for name in sys.argv[1:] or [*ADAPTERS, *others]:
        others.get(name, lambda: adapter(name))()


if __name__ == "__main__":
    main()
