#!/usr/bin/env python3
"""Model folders: a published one gives the numbers of sentence-transformers, a broken one leaves the model in use."""

import json
import os
import pathlib
import shutil
import struct
import tempfile
import unittest

from pages import ROOT, PageTest

MINILM = os.environ.get("CANDLE_ATTENTION_MINILM")


def golden():
    """The sentences of the fixtures with their embeddings by sentence-transformers."""
    content = (ROOT / "tests/fixtures/minilm.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    entry = json.loads(content[8 : 8 + size])["embeddings"]
    rows, columns = entry["shape"]
    start = 8 + size + entry["data_offsets"][0]
    numbers = struct.unpack(f"<{rows * columns}f", content[start : start + 4 * rows * columns])
    sentences = json.loads((ROOT / "tests/fixtures/minilm_sentences.json").read_text())
    return sentences, [numbers[row * columns : (row + 1) * columns] for row in range(rows)]


class Models(PageTest):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "a-model"
        shutil.copytree(ROOT / "weights", self.folder)

    def refused(self, page, path, choose=False):
        """The message that a folder gives. The embedded model has to stay in use."""
        if choose:
            page.files("#model-files", [path])
        else:
            page.drop("#text", [path])
        said = self.problem(page)
        page.wait("document.getElementById('loading').hidden")
        self.assertEqual(page.run("document.getElementById('model').textContent"), "embedded, 3 MB")
        self.assertTrue(said.startswith(f"The folder “{path.name}” was not loaded: "), said)
        self.assertTrue(said.endswith(". The model in use stays."), said)
        self.assertTrue(self.search(page, "stars and planets")[0][1].startswith("Draw the orbits"))
        page.click("#problem button")
        self.assertTrue(page.run("document.getElementById('problem').hidden"))
        return said

    def loaded(self, path, choose=False):
        """Loads a folder in a new page."""
        page = self.page()
        if choose:
            page.files("#model-files", [path])
        else:
            page.drop("#text", [path])
        page.wait(f"document.getElementById('model').textContent === {json.dumps(path.name)}")
        self.assertTrue(page.run("document.getElementById('problem').hidden"))

    @unittest.skipUnless(MINILM, "CANDLE_ATTENTION_MINILM is not set")
    def test_minilm_gives_the_golden_scores(self):
        sentences, embeddings = golden()
        chosen = [i for i, text in enumerate(sentences) if 20 < len(text) < 80 and text.isascii() and "\n" not in text][:12]
        page = self.page()
        page.files("#model-files", [MINILM])
        page.wait("document.getElementById('model-facts').textContent.startsWith('384 ')")
        self.assertEqual(page.run("document.getElementById('model').textContent"), pathlib.Path(MINILM).name)
        self.paste(page, "\n".join(sentences[i] for i in chosen))
        page.wait("progress.some(([done, all]) => done === all)")
        texts = page.run("[...document.querySelectorAll('#sentences [role=option]')].map((item) => item.textContent)")
        query = chosen[3]
        found = self.search(page, sentences[query])
        known = {sentences[i].strip(): embeddings[i] for i in chosen}
        compared = [(score, known[text]) for score, text in found if text in known]
        self.assertGreater(len(compared), 4, (texts, found))
        for score, embedding in compared:
            cosine = sum(a * b for a, b in zip(embedding, embeddings[query]))
            self.assertAlmostEqual(score, cosine, delta=2e-6)
        page.click("#s0")
        page.wait("document.querySelectorAll('#overview canvas').length === 72")

    def test_a_dropped_folder_is_loaded(self):
        # As a program saved it, with weights in other formats beside it, in a folder of its own.
        for name in ["onnx/model.onnx", "onnx/config.json", "pytorch_model.bin"]:
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"not read")
        page = self.page()
        before = self.search(page, "stars and planets")
        page.drop("#text", [self.folder])
        page.wait("document.getElementById('model').textContent === 'a-model'")
        self.assertEqual(self.search(page, "stars and planets"), before)
        self.assertTrue(page.run("document.getElementById('problem').hidden"))

    def test_the_name_of_the_folder_says_nothing(self):
        for name in ["checkpoint-500", "onnx", ".hidden", "0_Transformer", "2024_my-model"]:
            self.folder = self.folder.rename(self.folder.parent / name)
            for choose in [False, True]:
                self.loaded(self.folder, choose)

    def test_a_model_deep_in_a_folder(self):
        read, deeper = [self.folder.parent / name for name in ["read", "deeper"]]
        shutil.copytree(self.folder, read / "a/b/c/d/e")
        shutil.copytree(self.folder, deeper / "a/b/c/d/e/f/g/h/i")
        for choose in [False, True]:
            self.loaded(read, choose)
            self.assertIn("it has no config.json in a folder that this page reads", self.refused(self.page(), deeper, choose))

    def test_too_many_files(self):
        page = self.page()
        for number in range(2001):
            (self.folder / f"{number}.json").write_text("{}")
        for choose in [False, True]:
            self.assertIn("it has more than 2000 files", self.refused(page, self.folder, choose))

    def test_a_folder_dropped_while_the_page_loads(self):
        page = self.page(self.slow("load"), state="loading")
        # A drop while the text moves the page under the pointer is none.
        page.wait("document.getElementById('count').textContent === '40 sentences'")
        page.drop("#text", [self.folder])
        page.wait("document.getElementById('model').textContent === 'a-model'")

    def test_the_last_folder_dropped_is_used(self):
        page = self.page()
        first = self.folder.parent / "first"
        shutil.copytree(self.folder, first)
        with open(first / "notes.json", "wb") as file:  # takes longer to read
            file.truncate(100 << 20)
        page.drop("#text", [first])
        page.drop("#text", [self.folder])
        page.wait("document.getElementById('model').textContent === 'a-model'")
        page.run("new Promise((done) => setTimeout(done, 3000))")
        page.wait("document.getElementById('loading').hidden")
        self.assertEqual(page.run("document.getElementById('model').textContent"), "a-model")

    def lengthen(self, positions):
        """Makes the model one of more tokens: its table of positions is repeated."""
        path = self.folder / "model.safetensors"
        content = path.read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
        entry = next(entry for name, entry in header.items() if name.endswith("position_embeddings.weight"))
        start, end = entry["data_offsets"]
        table = data[start:end] * (positions // entry["shape"][0])
        entry |= {"shape": [positions, entry["shape"][1]], "data_offsets": [len(data), len(data) + len(table)]}
        # The format has no holes: the old table gets a name of its own.
        header["old"] = {"dtype": entry["dtype"], "shape": [128, entry["shape"][1]], "data_offsets": [start, end]}
        new = json.dumps(header).encode()
        new += b" " * (-len(new) % 8)
        path.write_bytes(struct.pack("<Q", len(new)) + new + data + table)
        for name, changes in {
            "config.json": {"max_position_embeddings": positions},
            "sentence_bert_config.json": {"max_seq_length": positions},
            "tokenizer_config.json": {"model_max_length": positions},
        }.items():
            file = self.folder / name
            file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    def test_the_attention_of_a_long_sentence_is_that_of_its_beginning(self):
        self.lengthen(2048)
        page = self.page()
        page.drop("#text", [self.folder])
        page.wait("document.getElementById('model-facts').textContent === '128 dimensions, 2048 tokens'")
        self.paste(page, "A cat sleeps.\n" + "猫" * 1900)
        page.wait("document.getElementById('count').textContent === '2 sentences'")
        page.run("document.getElementById('s1').click()")
        page.wait("document.getElementById('limit').textContent === 'The first 256 of 1,902 tokens.'")
        self.assertEqual(page.run("document.querySelectorAll('#queries .token').length"), 256)
        page.run("document.getElementById('s0').click()")
        page.wait("document.getElementById('limit').textContent === ''")

    def test_a_folder_without_a_file(self):
        page = self.page()
        (self.folder / "tokenizer.json").unlink()
        self.assertIn("tokenizer.json", self.refused(page, self.folder))
        (self.folder / "config.json").unlink()
        (self.folder / "modules.json").unlink()
        self.assertIn("it has no config.json", self.refused(page, self.folder, choose=True))

    def test_broken_weights(self):
        page = self.page()
        weights = self.folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:100_000])
        self.assertIn("model.safetensors", self.refused(page, self.folder))

    def test_too_large_a_model_is_not_read(self):
        page = self.page()
        with open(self.folder / "model.safetensors", "wb") as file:
            file.truncate(3 << 30)
        self.assertIn("its files have 3.0 GiB, and this page takes at most 2.0 GiB", self.refused(page, self.folder))


if __name__ == "__main__":
    unittest.main()
