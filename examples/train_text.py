"""Makes the text that `weights/` was trained on, from documents that are on a Debian machine with Rust.

    apt-get -o Acquire::Languages=en update
    python3 examples/train_text.py --words all-MiniLM-L6-v2/vocab.txt --output target/text

writes `train.txt` and `held_back.txt`, one text a line: sentences and short paragraphs of the descriptions of Debian's
packages and of Rust's documentation (`rustup component add rust-docs`). Whole packages and whole pages are held back, and
of a text that differs from another in its digits only, one is kept. With `--words`, texts of words drawn from a list that
is sorted by frequency are added to those to be trained on, so that everyday words occur too. Standard library only.
"""

import argparse
import hashlib
import html
import pathlib
import random
import re
import subprocess

# Pages of reference made by programs, or with little prose.
SKIPPED = {"src", "search.index", "static.files", "trait.impl", "type.impl", "core"}
LIST = re.compile(r"^\s*([-*+•·o]|\d+[.)])\s")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"“(])")
ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|Dr|Mr|Mrs|St|No|al|approx|incl)\.$")
TAGS = re.compile(r"<[^>]*>")
PARAGRAPH = re.compile(r"<p>(.*?)</p>", re.DOTALL)


def debian():
    """(package, paragraphs) of every description that apt has."""
    lists = ["apt-get", "indextargets", "-o", "Acquire::Languages=en", "--format", "$(FILENAME)", "ShortDesc: Translation-en"]
    for path in subprocess.run(lists, check=True, capture_output=True, text=True).stdout.split():
        cat = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", path], check=True, capture_output=True, text=True)
        for record in cat.stdout.split("\n\n"):
            package = re.search(r"^Package: (.*)$", record, re.MULTILINE)
            _, found, description = record.partition("\nDescription-en: ")
            if package and found:
                short, _, long = description.partition("\n")
                lines = [line[1:] for line in long.split("\n")]
                # Verbatim lines start with a space: lists, tables, commands.
                text = "\n".join("" if line == "." or line.startswith(" ") or LIST.match(line) else line for line in lines)
                yield package[1], [short, *re.split(r"\n\s*\n", text)]


def rust():
    """(page, paragraphs) of the documentation that rustup has."""
    root = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    root = pathlib.Path(root) / "share/doc/rust/html"
    if not root.is_dir():
        raise SystemExit("error: no documentation of Rust here: rustup component add rust-docs")
    for path in sorted(root.rglob("*.html")):
        parts = path.relative_to(root).parts
        # The unstable vendor intrinsics alone are as many as all the rest.
        if parts[0] not in SKIPPED and "arch" not in parts and path.name != "print.html":
            page = path.read_text(encoding="utf-8", errors="replace")
            yield "/".join(parts), [html.unescape(TAGS.sub("", p)) for p in PARAGRAPH.findall(page)]


def texts(paragraph):
    """The sentences of a paragraph, and itself where it is short."""
    paragraph = " ".join(paragraph.split())
    sentences = [""]
    for sentence in SENTENCE.split(paragraph):
        glue = not sentences[-1] or ABBREVIATION.search(sentences[-1])
        if glue:
            sentences[-1] = f"{sentences[-1]} {sentence}".strip()
        else:
            sentences.append(sentence)
    return [text for text in {paragraph: None, **dict.fromkeys(sentences)} if is_prose(text)]


def is_prose(text):
    words = text.split()
    letters = sum(c.isalpha() or c == " " for c in text)
    return 3 <= len(words) <= 60 and len(text) <= 400 and letters >= 0.8 * len(text) and text.isprintable()


def held_back(document):
    """One in fifty, by its name alone, so that a later run holds back the same."""
    return hashlib.sha256(document.encode()).digest()[0] < 5


def words(path, count, generator):
    """Texts of one to eight words, rarer ones more rarely."""
    listed = [word for word in path.read_text(encoding="utf-8").split() if re.fullmatch(r"[a-z]{3,}", word)]
    weights = [(rank + 100) ** -0.5 for rank in range(len(listed))]
    drawn = (" ".join(generator.choices(listed, weights, k=generator.randint(2, 8))) for _ in range(count))
    return [*listed, *drawn]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=pathlib.Path, help="a list of words, the most frequent first, such as vocab.txt")
    parser.add_argument("--word-texts", type=int, default=60_000, help="texts to make of them")
    parser.add_argument("--held-back", type=int, default=2_000, help="texts to hold back")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    if arguments.words and not arguments.words.is_file():
        parser.error(f"--words {arguments.words}: no such file")

    generator = random.Random(0)
    seen, train, held = set(), [], []
    # What is held back comes first, so that a text that occurs in both is held back only.
    documents = sorted([*debian(), *rust()], key=lambda document: not held_back(document[0].split("/")[-1]))
    for name, paragraphs in documents:
        for text in (text for paragraph in paragraphs for text in texts(paragraph)):
            key = re.sub(r"[\d.\s]+", " ", text.lower())
            if key not in seen:
                seen.add(key)
                (held if held_back(name.split("/")[-1]) else train).append(text)
    generator.shuffle(held)
    if arguments.words:
        train += words(arguments.words, arguments.word_texts, generator)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, lines in [("train.txt", train), ("held_back.txt", held[: arguments.held_back])]:
        (arguments.output / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"{name}: {len(lines)} texts, {sum(len(line.split()) for line in lines)} words")


if __name__ == "__main__":
    main()
