"""A complete sentence-transformers folder of a tiny random BERT, and what it answers.

Writes below ../fixtures
    tiny-bert/                 the folder: 2 layers, width 24, 4 heads, at most 16 tokens
    tiny-bert-variants/<name>/ the JSON files in which other poolings differ from it
    tiny_sentences.json        8 texts
    tiny_bert.safetensors      <name> = sentence vectors of tiny-bert (`mean_norm`) and of every
                               variant; `dense.linear.*` = weights of 2_Dense in `mean_dense`;
                               `ids`, `mask`, `type_ids` i64 (8, s) and `hidden` f32 (8, s, 24) =
                               the texts padded to the longest, and the last hidden state
    tiny_bert_prefixed.safetensors  the same encoder with the names of a BertForMaskedLM (`bert.`)
    tiny_bert_legacy.safetensors    the same encoder with LayerNorm.gamma and LayerNorm.beta

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0 (stored in the metadata).
Re-run:  python tests/golden/tiny_models.py
"""

import json
import re
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from common import FIXTURES, save

WIDTH, MAX_TOKENS = 24, 16
PACKAGES = ["torch", "transformers", "sentence-transformers", "tokenizers"]

TEXTS = [
    "",
    "hello world",
    "The cat sat on the mat.",
    "An unseen zebra jumps, twice!",
    "Caf\u00e9 \u4f60\u597d \u03a9mega",
    "this text has many more words than the sixteen tokens that the tiny model is able to read",
    "[CLS] a [SEP] b [MASK]",
    "cats, dogs and 12 birds",
]

# pooling mode of each variant; `mean_dense` gets a Dense layer on top
POOLINGS = {
    "cls": "cls",
    "max": "max",
    "mean_sqrt_len": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean",
    "lasttoken": "lasttoken",
    "cls_mean": ("cls", "mean"),
    "mean_dense": "mean",
}


def vocabulary():
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    digits = list("0123456789")
    words = "the a an and cat dog bird sat on mat hello world this text has many more is to read model".split()
    pieces = ["##" + c for c in letters + digits] + ["##s", "##ing", "##ed", "##er", "##tiny"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list(".,!?'-") + ["\u4f60", "\u03c9"]
    tokens += letters + digits + words + pieces
    return {t: i for i, t in enumerate(dict.fromkeys(tokens))}


def tiny_bert(folder):
    """Saves a random BERT and its tokenizer."""
    vocab = vocabulary()
    model = transformers.BertModel(transformers.BertConfig(
        vocab_size=len(vocab), hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=40, max_position_embeddings=40))
    for name, p in sorted(model.named_parameters()):
        centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        p.data.normal_(centre, 0.2)
    model.save_pretrained(folder)
    transformers.BertTokenizer(vocab=vocab, model_max_length=40).save_pretrained(folder)


def write(model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def differing_json(folder, base, target):
    """Copies the JSON files of `folder` that `base` lacks or has with other contents."""
    shutil.rmtree(target, ignore_errors=True)
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder)
        if not (base / name).exists() or (base / name).read_bytes() != path.read_bytes():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / name)


def encode(model):
    return model.encode(TEXTS, batch_size=8, convert_to_tensor=True, show_progress_bar=False)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(7)
    transformers.utils.logging.disable_progress_bar()
    base, variants = FIXTURES / "tiny-bert", FIXTURES / "tiny-bert-variants"
    shutil.rmtree(variants, ignore_errors=True)
    out = {}

    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        tiny_bert(tmp / "bert")
        bert = Transformer(str(tmp / "bert"), max_seq_length=MAX_TOKENS)

        write(SentenceTransformer(modules=[bert, Pooling(WIDTH, "mean"), Normalize()], device="cpu"), base)
        out["mean_norm"] = encode(SentenceTransformer(str(base), device="cpu"))

        for name, mode in POOLINGS.items():
            modules = [bert, Pooling(WIDTH, mode)]
            if name == "mean_dense":
                dense = Dense(WIDTH, 10, bias=True, activation_function=torch.nn.Tanh())
                for p in dense.parameters():
                    p.data.normal_(0.0, 0.3)
                out |= {f"dense.{k}": v for k, v in dense.state_dict().items()}
                modules.append(dense)
            folder = write(SentenceTransformer(modules=modules, device="cpu"), tmp / name)
            differing_json(folder, base, variants / name)
            out[name] = encode(SentenceTransformer(str(folder), device="cpu"))

    model = SentenceTransformer(str(base), device="cpu")
    batch = model.preprocess(TEXTS)
    with torch.no_grad():
        out["hidden"] = model[0](dict(batch))["token_embeddings"]
    out["ids"], out["mask"] = batch["input_ids"], batch["attention_mask"]
    out["type_ids"] = torch.zeros_like(out["ids"])
    save("tiny_bert.safetensors", out, PACKAGES, "tiny-bert on tiny_sentences.json", framework="torch")
    (FIXTURES / "tiny_sentences.json").write_text(json.dumps(TEXTS, indent=1) + "\n")

    weights = load_file(base / "model.safetensors")
    save("tiny_bert_prefixed.safetensors", {f"bert.{k}": v for k, v in weights.items()}, PACKAGES,
         "weights of tiny-bert, named as in a model with a head", framework="torch")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    save("tiny_bert_legacy.safetensors",
         {re.sub(r"LayerNorm\.(weight|bias)$", lambda m: old[m[0]], k): v for k, v in weights.items()},
         PACKAGES, "weights of tiny-bert with the LayerNorm names of old checkpoints", framework="torch")


if __name__ == "__main__":
    main()
