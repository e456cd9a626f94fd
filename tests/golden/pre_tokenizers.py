"""Splits a hard text by each record of crates/text/src/gguf/pre_tokenizers.txt, by the library tokenizers.

    python tests/golden/pre_tokenizers.py

Writes tests/fixtures/pre_tokenizers.json: the text, and the offsets at which the pieces start, by the first name of a record.

Made with tokenizers 0.23. The Rust library uses another engine of expressions. Whether the records are those of llama.cpp is
another question: `VOCABULARIES=models cargo test -p candle-attention-text --release -- --ignored vocabularies_of_llama_cpp` compares ids
with those of the files `models/ggml-vocab-*.gguf` of its repository.
"""

import json
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers import Regex

ROOT = Path(__file__).parents[2]
TEXT = (
    "Don't WE'LL I'd  say: \"naïve Ångström\" 3.14159 12345678 ½ x2y²\n\n\r\n   \t end  .\n"
    "日本語のテキスト、カタカナ！ 한국어 텍스트 ก็ไทย हिन्दी ಠ_ಠ e\u0301te\u0301 "
    "<sentinel:12> IMGIMGABZ $100+<=>^~|` foo_bar(); //… a\u00a0b 🦙🦙\u200d👩 ПРИВЕТмир İstanbul'da /path/to\\n   "
)


def records():
    names = None
    for line in (ROOT / "crates/text/src/gguf/pre_tokenizers.txt").read_text().splitlines():
        if line.startswith("    "):
            expressions.append(line[4:])
        elif not line.startswith("#"):
            if names:
                yield names, expressions
            names, expressions = line.split(":")[0].split(" "), []
    yield names, expressions


def pieces(expressions):
    steps = [ByteLevel(False, use_regex=True) if e == "GPT-2" else Split(Regex(e), "isolated") for e in expressions]
    if "GPT-2" not in expressions:
        steps.append(ByteLevel(False, use_regex=False))
    return [start for _, (start, _) in Sequence(steps).pre_tokenize_str(TEXT)]


starts = {names[0]: pieces(expressions) for names, expressions in records()}
(ROOT / "tests/fixtures/pre_tokenizers.json").write_text(json.dumps({"text": TEXT, "starts": starts}, ensure_ascii=False) + "\n")
print(len(starts), "records")
