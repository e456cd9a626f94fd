"""Token classifiers of tiny random models with small real tokenizers, and what transformers' pipeline finds in texts.

Writes below ../fixtures/token_classifier
    <name>/         a folder: config.json, model.safetensors, tokenizer.json, tokenizer_config.json
    <name>.json     {"texts": [...], "<strategy>": [[entity, ...], ...]}: what the pipeline says of each text;
                    "<strategy>, <length>, <stride>" of "long" texts in windows of so many tokens
with the names
    bert            WordPiece, whose tokens within words begin with ##
    roberta         byte-level BPE, whose tokens mark the space before a word

Made with torch 2.15.0, transformers 5.23.0, tokenizers as they require it.
Re-run:  python tests/golden/token_classifier.py
"""

import json
import shutil
import warnings

import torch
import transformers as tf

import tiny_tokenizers
from common import FIXTURES

OUT = FIXTURES / "token_classifier"
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
STRATEGIES = ["none", "simple", "first", "average", "max"]
TEXTS = [
    "Zoë Müller lives in Zürich.",
    "Anna met François in São Paulo; they flew to 東京都 together.",
    "The Łódź office of Ørsted moved, near København!",
    "  the cat sat on the mat\tand   slept  ",
    "e\u0301te\u0301 cafe\u0301 \U0001f600 smile, don't!",
    "the cat's mat (in München) is a mat-like cat: 12.5%",
    "a",
    "",
]
# Longer than a window, of words that windows split; one that fits, one that just fits into 12 tokens with [CLS] and [SEP].
LONG = [
    "Zoë Müller lives in Zürich. Anna met François in São Paulo; they flew to 東京都 together.",
    "The Łódź office of Ørsted moved, near København! the cat's mat (in München) is a mat-like cat: 12.5%",
    "a",
    "a a a a a a a a a a",
]
# Lengths and strides of windows.
WINDOWS = [(12, 0), (12, 4), (20, 17)]
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=20,
             max_position_embeddings=64, id2label=dict(enumerate(LABELS)))


def plain(entities):
    """Entities with numbers that JSON has."""
    return [{k: round(float(v), 7) if k == "score" else v for k, v in e.items()} for e in entities]


def make(name, model_class, tokenizer, sizes):
    torch.manual_seed(len(name))
    fast = tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=60,
        **dict(zip(["cls_token", "pad_token", "sep_token", "unk_token", "mask_token"],
                   ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if name == "roberta" else
                   ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"])))
    config = model_class.config_class(vocab_size=len(fast), pad_token_id=fast.pad_token_id, **(SIZES | sizes))
    model = model_class(config).eval()
    for _, p in sorted(model.named_parameters()):
        p.data.normal_(1.0 if bool((p == 1).all()) else 0.0, 0.2)
    # So that labels differ, and by more than rounding.
    model.classifier.weight.data.mul_(4)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)

    said = {"texts": TEXTS}
    pipeline = tf.pipeline("token-classification", model=model, tokenizer=fast)
    for strategy in STRATEGIES:
        found = [pipeline(text, aggregation_strategy=strategy) for text in TEXTS]
        said[strategy] = [plain(entities) for entities in found]
        print(name, strategy, sum(map(len, found)), found[0][:2])
    said["simple, all but LOC"] = [
        plain(pipeline(text, aggregation_strategy="simple", ignore_labels=["LOC"])) for text in TEXTS]
    said["long"] = LONG
    for length, stride in WINDOWS:
        fast.model_max_length = length
        for strategy in STRATEGIES[1:]:
            found = [pipeline(text, aggregation_strategy=strategy, stride=stride) for text in LONG]
            said[f"{strategy}, {length}, {stride}"] = [plain(entities) for entities in found]
    (OUT / f"{name}.json").write_text(json.dumps(said, ensure_ascii=False, indent=None) + "\n")


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    OUT.mkdir(exist_ok=True)
    make("bert", tf.BertForTokenClassification, tiny_tokenizers.wordpiece(), {})
    make("roberta", tf.RobertaForTokenClassification, tiny_tokenizers.byte_level(), dict(type_vocab_size=1))


if __name__ == "__main__":
    main()
