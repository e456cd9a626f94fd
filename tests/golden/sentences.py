"""Sentence embeddings of a real checkpoint: all-MiniLM-L6-v2 through sentence-transformers.

Writes
    ../fixtures/minilm_sentences.json    40 texts (everything outside ASCII is escaped)
    ../fixtures/minilm.safetensors       embeddings  f32 (40, 384)
                                         tokens      i64 (40,), with [CLS] and [SEP], after truncation
    ../fixtures/minilm_outputs.safetensors
                                         truncated   f32 (4, 64): texts 6 to 9 with truncate_dim=64, normalized
                                         spans       f32 (3, 384): late chunking of PARAGRAPH, its sentences; the mean of the
                                                     vectors of the tokens that share a character with each, normalized
                                         spans.bytes i64 (3, 2)
The environment variable CANDLE_ATTENTION_MINILM names the folder of the checkpoint (the one
with modules.json). It also compares batch sizes 1 and 32 with the batch size 8 that is saved.

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0 (stored in the metadata).
Re-run:  CANDLE_ATTENTION_MINILM=<folder> python tests/golden/sentences.py
"""

import json
import os

import torch
from sentence_transformers import SentenceTransformer

from common import FIXTURES, save

PARAGRAPH = (
    "The harbour wakes before the town does. Nets are dragged over the wet stones, somebody "
    "swears at a winch, and two gulls argue about a crab. By seven o'clock the first lorry has "
    "left for the market, its driver humming, 38 crates of mackerel behind him; the baker's "
    "daughter opens the shutters and counts the boats that came home. "
)


def words(n):
    """n words that are one token each, so that the text has n + 2 tokens."""
    pool = "the river runs past old stone houses and green fields under a wide grey sky".split()
    return " ".join(pool[i % len(pool)] for i in range(n))


TEXTS = [
    # nothing, or next to nothing
    "",
    " \t\n ",
    "a",
    "?",
    "  leading and trailing spaces   ",
    "first line\nsecond line\r\n\tand a tab\n\n",
    # English
    "This is an example sentence.",
    "Each sentence is converted to a vector of 384 numbers.",
    "The quick brown fox jumps over the lazy dog.",
    "A man is eating a piece of bread, isn't he?",
    "MiXeD cAsE tExT wItH SHOUTING and camelCaseNames",
    "mixed case text with shouting and camelcasenames",
    "In 2024, 1,234.56 USD were 3.14159% of 0x1F4A9 -- or -7e-12?",
    "See https://example.org/a/b?c=d&e=%20f#g or mail to someone@example.org.",
    "fn main() { let x: Vec<f32> = vec![1.0; 8]; println!(\"{:?}\", x[0]); } // done",
    # around and far beyond the limit of 256 tokens
    words(252),
    words(253),
    words(254),
    words(255),
    PARAGRAPH * 15,
    "x" * 200,
    "a" * 100 + " is a word of 100 characters, more makes it unknown: " + "a" * 101,
    # Chinese, Japanese, Korean, Arabic, Hebrew, Hindi, Thai, Russian, Greek
    "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u6563\u6b65\u5427\u3002",
    "\u6771\u4eac\u30bf\u30ef\u30fc\u306f\u9ad8\u3044\u3067\u3059\u304b\uff1f\u306f\u3044\u3001\u9ad8\u3044\u3067\u3059\u3002",
    "\uc548\ub155\ud558\uc138\uc694, \uc624\ub298\uc740 \ub0a0\uc528\uac00 \uc88b\ub124\uc694.",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643 \u0641\u064a \u0627\u0644\u0645\u0643\u062a\u0628\u0629\u060c \u0643\u064a\u0641 \u062d\u0627\u0644\u0643\u061f",
    "\u05e9\u05dc\u05d5\u05dd, \u05d0\u05d9\u05e4\u05d4 \u05ea\u05d7\u05e0\u05ea \u05d4\u05e8\u05db\u05d1\u05ea?",
    "\u092f\u0939 \u090f\u0915 \u0909\u0926\u093e\u0939\u0930\u0923 \u0935\u093e\u0915\u094d\u092f \u0939\u0948\u0964",
    "\u0e27\u0e31\u0e19\u0e19\u0e35\u0e49\u0e2d\u0e32\u0e01\u0e32\u0e28\u0e14\u0e35\u0e21\u0e32\u0e01",
    "\u0421\u044a\u0435\u0448\u044c \u0436\u0435 \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a.",
    "\u0397 \u03b8\u03ac\u03bb\u03b1\u03c3\u03c3\u03b1 \u03ae\u03c4\u03b1\u03bd \u03ae\u03c1\u03b5\u03bc\u03b7, \u039f\u0394\u039f\u03a3 \u03ba\u03b1\u03b9 \u03bf\u03b4\u03cc\u03c2.",
    # emoji: family joined with ZWJ, flag, skin tone, keycap, and two the vocabulary may know
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd 1\ufe0f\u20e3 \U0001f600 \u2764\ufe0f",
    "I love it \U0001f60d\U0001f60d!!",
    # the same accents precomposed (NFC) and combining (NFD)
    "Caf\u00e9 na\u00efve, \u00c5ngstr\u00f6m, \u0130stanbul, \u1ec7",
    "Cafe\u0301 nai\u0308ve, A\u030angstro\u0308m, I\u0307stanbul, e\u0323\u0302",
    # characters that vanish or count as white space
    "con\u0000trol\u0007 char\u001bacters\u007f \u0085and \ufffd more",
    "zero\u200bwidth\u200djoin\ufeffer soft\u00adhyphen no\u00a0break em\u2003space \u202eright-to-left\u202c",
    # special tokens inside the text
    "before [SEP] after",
    "[CLS] hello [MASK] [PAD][PAD] [UNK]",
    "[sep] is not [SEP], and neither is [ SEP ] nor [Mask]",
]


def outputs(model):
    """Embeddings with options, and late chunking."""
    truncated = model.encode(TEXTS[6:10], truncate_dim=64, normalize_embeddings=True, convert_to_tensor=True)
    vectors = model.encode(PARAGRAPH, output_value="token_embeddings")
    offsets = model.tokenizer(PARAGRAPH, return_offsets_mapping=True)["offset_mapping"]
    assert len(offsets) == len(vectors) < model.max_seq_length and PARAGRAPH.isascii()
    ends = [PARAGRAPH.index("does.") + 5, PARAGRAPH.index("crab.") + 5, len(PARAGRAPH.rstrip())]
    spans = list(zip([0, ends[0] + 1, ends[1] + 1], ends))
    pooled = [torch.stack([v for v, (a, b) in zip(vectors, offsets) if a < end and b > start]).mean(0)
              for start, end in spans]
    tensors = {"truncated": truncated, "spans": torch.nn.functional.normalize(torch.stack(pooled)),
               "spans.bytes": torch.tensor(spans)}
    save("minilm_outputs.safetensors", tensors, ["torch", "transformers", "sentence-transformers", "tokenizers"],
         "all-MiniLM-L6-v2 on texts of minilm_sentences.json and on PARAGRAPH", framework="torch", paragraph=PARAGRAPH)


def main():
    torch.set_num_threads(1)
    assert len(TEXTS) == len(set(TEXTS)) == 40 and len(TEXTS[19].split()) > 700
    model = SentenceTransformer(os.environ["CANDLE_ATTENTION_MINILM"], device="cpu")

    outputs(model)
    full = [len(ids) for ids in model.tokenizer(TEXTS, truncation=False, padding=False)["input_ids"]]
    assert full[15:19] == [254, 255, 256, 257]
    tokens = [int(model.preprocess([t])["attention_mask"].sum()) for t in TEXTS]
    assert tokens == [min(n, model.max_seq_length) for n in full]

    def encode(batch):
        return model.encode(TEXTS, batch_size=batch, convert_to_tensor=True, show_progress_bar=False)

    embeddings = encode(8)
    assert embeddings.dtype == torch.float32 and embeddings.shape == (40, 384)
    for batch in (1, 32):
        print(f"batch size {batch}: max difference {(encode(batch) - embeddings).abs().max():.1e}")

    save("minilm.safetensors", {"embeddings": embeddings, "tokens": torch.tensor(tokens)},
         ["torch", "transformers", "sentence-transformers", "tokenizers"],
         "all-MiniLM-L6-v2 on minilm_sentences.json, batch size 8", framework="torch")
    (FIXTURES / "minilm_sentences.json").write_text(json.dumps(TEXTS, indent=1) + "\n")
    for text, n in zip(TEXTS, tokens):
        print(f"{n:4d} {ascii(text[:60])}")


if __name__ == "__main__":
    main()
