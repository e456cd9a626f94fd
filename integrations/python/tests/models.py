"""Tiny models with random weights, saved by sentence-transformers and transformers."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece
from transformers import BertConfig, BertForSequenceClassification, BertModel, PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHARS = string.ascii_lowercase + string.digits + string.punctuation
WORDS = ["the", "cat", "sat", "sleep", "##s", "##ing", "house", "query", "stock"]
VOCABULARY = SPECIAL + list(CHARS) + [f"##{char}" for char in string.ascii_lowercase + string.digits] + WORDS
MAX_LENGTH = 48

TEXTS = [
    "A cat sleeps on the sofa.",
    "The house",
    "",
    "Stocks fell sharply today, and the cat sat in the house while it rained: nobody had expected that at all, they said.",
    "query",
    "Größe, 大きさ & 🙂",
    "A kitten naps on the couch.",
]


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of BERT's kind that knows every letter."""
    made = Tokenizer(WordPiece({piece: i for i, piece in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"], SPECIAL))
    # As the tokenizer of BERT states it: without, a general tokenizer of transformers 5 gives no types to a pair.
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=MAX_LENGTH, model_input_names=inputs, **names
    )


def config(**with_: object) -> BertConfig:
    """A model of two layers."""
    return BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=56,
        max_position_embeddings=MAX_LENGTH,
        initializer_range=0.3,
        **with_,
    )


def save_transformer(folder: Path, model: torch.nn.Module) -> str:
    """A folder of transformers."""
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


def save_dense(folder: Path, pooling: str = "mean", normalize: bool = False, **settings: object) -> str:
    """A sentence encoder."""
    torch.manual_seed(7)
    transformer = Transformer(save_transformer(folder / "transformer", BertModel(config())))
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    model = SentenceTransformer(modules=modules + [Normalize()] * normalize, device="cpu", **settings)
    model.save(str(folder / "model"), create_model_card=False)
    return str(folder / "model")


def save_cross(folder: Path, num_labels: int) -> str:
    """A classifier of pairs, as published cross-encoders are: without files of sentence-transformers."""
    torch.manual_seed(11)
    return save_transformer(folder, BertForSequenceClassification(config(num_labels=num_labels)))
