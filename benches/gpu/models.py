"""Models with random weights, and texts of chosen lengths for them."""

import json
import random

from sides import ROOT
from timing import kinds

# The tokenizer of the model that this project ships: a word is one token.
TOKENIZER = ROOT / "weights"
LONGEST = 512
# hidden_size, num_attention_heads, num_hidden_layers, intermediate_size
BERT = {"MiniLM-L6": (384, 12, 6, 1536), "BERT-base": (768, 12, 12, 3072)}
# The sizes of Qwen3-Embedding-0.6B, but for the number of words.
DECODER = "Qwen3-0.6B"
NAMES = (*BERT, DECODER)


def vocabulary():
    return json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]


def config(name, tiny):
    from transformers import BertConfig, Qwen3Config

    words = len(vocabulary())
    if name == DECODER:
        return Qwen3Config(
            vocab_size=words,
            hidden_size=1024,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            num_hidden_layers=2 if tiny else 28,
            intermediate_size=3072,
            max_position_embeddings=32768,
            rope_theta=1e6,
        )
    hidden, heads, layers, inner = BERT[name]
    return BertConfig(
        vocab_size=words,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_hidden_layers=2 if tiny else layers,
        intermediate_size=inner,
        max_position_embeddings=LONGEST,
    )


def folder(options, name):
    """A folder of sentence-transformers; its weights are in bf16."""
    import torch
    from transformers import AutoModel

    path = options.scratch / "models" / name
    if not path.exists():
        part = path.with_name(f"{name}.part")
        torch.manual_seed(3)
        with torch.device(options.device):
            model = AutoModel.from_config(config(name, options.device == "cpu"))
        model.to(kinds()["bf16"]).save_pretrained(part)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            text = (TOKENIZER / file).read_text()
            (part / file).write_text(text.replace('"model_max_length": 128', f'"model_max_length": {LONGEST}'))
        last = name == DECODER
        pooling = {"word_embedding_dimension": model.config.hidden_size, "pooling_mode_cls_token": False}
        pooling |= {"pooling_mode_mean_tokens": not last, "pooling_mode_lasttoken": last}
        write = lambda file, content: (part / file).write_text(json.dumps(content))
        write("sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False})
        modules = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
        for place in modules.values():
            (part / place).mkdir(exist_ok=True)
        types = {kind: f"sentence_transformers.models.{kind}" for kind in modules}
        row = lambda i, kind: {"idx": i, "name": str(i), "path": modules[kind], "type": types[kind]}
        write("modules.json", [row(i, kind) for i, kind in enumerate(modules)])
        write("1_Pooling/config.json", pooling)
        part.rename(path)
    return path


def lengths(b, longest, ragged):
    """Tokens of each text; of a ragged batch, from an eighth of the longest to the longest, which one text has."""
    if not ragged:
        return [longest] * b
    numbers = random.Random(5)
    return [longest, *(numbers.randint(max(3, longest // 8), longest) for _ in range(b - 1))]


def texts(counts):
    """Texts of so many tokens each, the two at their ends included."""
    words = [word for word in vocabulary() if word.isascii() and word.isalpha()]
    numbers = random.Random(6)
    return [" ".join(numbers.choices(words, k=count - 2)) for count in counts]
