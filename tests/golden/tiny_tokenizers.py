"""Small tokenizers for tiny models: a WordPiece and a byte-level BPE one, with letters of several scripts."""

import string

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LETTERS = string.ascii_lowercase + string.digits + "äöüßéèçñøłœæīşαβγδабвгд東京都你好"
CORPUS = [
    "Zoë Müller lives in Zürich and works for Société Générale in München.",
    "The Łódź office of Ørsted moved to Ærøskøbing, near København.",
    "Anna met François in São Paulo; they flew to 東京 and 京都 together.",
    "The cat sat on the mat, and the kitten slept on the couch all day.",
]


def wordpiece(lower_case=False):
    """BERT's normalizer, words and template, with pieces of one to four letters."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    upper = "" if lower_case else string.ascii_uppercase + "ÄÖÜØŁÆ"
    pieces = list(LETTERS + upper + string.punctuation)
    words = ["the", "in", "and", "cat", "sat", "on", "mat", "lives", "works", "office", "for", "is", "a", "who"]
    pieces += [word for word in words if word not in pieces]
    endings = list(LETTERS) + ["er", "ing", "ed", "ll", "ich", "nn", "en", "té"]
    vocab = specials + pieces + ["##" + ending for ending in endings]
    model = models.WordPiece({token: i for i, token in enumerate(vocab)}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower_case, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer.add_special_tokens(specials)
    return tokenizer


def byte_level():
    """RoBERTa's bytes, merges and template."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
