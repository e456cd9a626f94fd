#!/usr/bin/env python3
"""Hostile texts, broken servers, and old browsers: one clear sentence, and nothing else happens."""

import json
import pathlib
import tempfile
import unittest

from pages import BUILT, PageTest

HTML = "<img src=x onerror=\"document.title='changed'\"><script>document.title='changed'</script>"
ARABIC = "القطة تنام على الأريكة \u202e reversed \u202c."
EMOJI = "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 𝕳𝖊𝖑𝖑𝖔 \u0000\u0007\ufeff."
LONG = "word " * 20_000


class Hostile(PageTest):
    def test_texts_are_only_text(self):
        page = self.page()
        name = page.run("document.title")
        self.paste(page, "\n".join([HTML, ARABIC, EMOJI, LONG, "x" * 100_000, "A plain sentence."]))
        page.wait("document.getElementById('count').textContent.endsWith('sentences') && progress.some(([done, all]) => done === all)")
        count = page.run("document.querySelectorAll('#sentences [role=option]').length")
        for index in range(count):
            text = page.run(f"document.getElementById('s{index}').textContent")
            page.run(f"document.getElementById('s{index}').click()")
            title = text if len(text) <= 300 else f"{text[:300]}…"
            page.wait(f"document.getElementById('title').textContent === {json.dumps(title)}")
            self.assertFalse(page.run("document.getElementById('attention').hidden"), text[:50])
        self.search(page, HTML[:60])
        self.assertEqual(page.run("[document.title, document.images.length, document.scripts.length]"), [name, 0, 1])
        self.assertIn(HTML[:20], page.run("document.getElementById('sentences').textContent"))
        self.assertEqual(page.run("document.documentElement.scrollWidth - innerWidth"), 0)
        self.assertTrue(page.run("document.getElementById('problem').hidden"))

    def use_line(self, line, shortest):
        """Uses a page with one line of 4 MB, given as a script. All its sentences but the last have `shortest` to 2,000 characters."""
        page = self.page()
        self.watch(page)
        script = "const data = new DataTransfer(); data.setData('text/plain', LINE); document.body.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }))"
        page.run("{" + script.replace("LINE", line) + "}")
        page.wait("document.getElementById('sentences').textContent.length > 1e6")
        items = "[...document.querySelectorAll('#sentences [role=option]')].map((item) => item.textContent)"
        lengths = page.run(f"{items}.map((text) => text.length)")[:-1]
        self.assertLessEqual(max(lengths), 2000)
        self.assertGreaterEqual(min(lengths), shortest)
        self.assertTrue(page.run(f"{items}.every((text) => text.isWellFormed())"))
        # It can be used while it is being embedded: a search is answered, a sentence chosen.
        page.click("#s1")
        page.wait("document.getElementById('title').textContent.length > 10")
        self.search(page, "cats")
        self.assertLessEqual(page.run("document.getElementById('title').textContent.length"), 301)
        self.assertLessEqual(page.run("Math.max(...[...document.querySelectorAll('.words')].map((words) => words.textContent.length))"), 301)
        page.wait("document.getElementById('announced').textContent !== ''")
        self.assertLess(page.run("document.getElementById('announced').textContent.length"), 300)
        self.assertLess(page.run("longest"), 4000)

    def test_a_long_word(self):
        self.use_line("'a'.repeat(4e6)", 2000)

    def test_a_long_sentence(self):
        self.use_line("'word '.repeat(8e5)", 1999)

    def test_a_long_sentence_of_characters_in_two_units(self):
        self.use_line("'x' + '👩'.repeat(2e6)", 1999)

    def test_a_line_of_many_sentences(self):
        sentence = "A cat sleeps here, and nothing that the dog next door does will ever wake it up before it is evening, or rains. "
        self.use_line(f"{sentence!r}.repeat(36000)", len(sentence) - 1)

    def test_a_long_query_is_cut(self):
        page = self.page()
        page.click("#query")
        page.send("Input.insertText", text="word " * 10_000)
        self.assertEqual(page.run("document.getElementById('query').value.length"), 2000)

    def test_an_empty_text(self):
        page = self.page()
        self.paste(page, " \n\t\n ")
        page.wait("document.getElementById('count').textContent === '0 sentences'")
        page.click("#query")
        page.type("cats")
        page.run("new Promise((done) => setTimeout(done, 300))")
        self.assertEqual(page.run("[document.querySelectorAll('.result').length, document.getElementById('problem').hidden]"), [0, True])

    def test_text_files(self):
        page = self.page()
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "good.txt").write_text("Ein Satz. Noch einer.")
        (folder / "bad.txt").write_bytes(b"\xff\xfe\x00\x80" * 9)
        (folder / "large.txt").write_bytes(b"a" * (17 << 20))
        for name, said in [
            ("bad.txt", "The file “bad.txt” was not read: it is not text in UTF-8."),
            ("large.txt", "The file “large.txt” was not read: it has 17 MiB, and this page takes at most 16 MiB."),
        ]:
            page.files("#text-file", [folder / name])
            page.wait(f"document.querySelector('#problem p')?.textContent.includes({name!r})")
            self.assertEqual(self.problem(page), said)
        page.drop("#text", [folder / "good.txt"])
        page.wait("document.getElementById('count').textContent === '2 sentences'")
        self.assertTrue(page.run("document.getElementById('problem').hidden"))

    def test_a_missing_module(self):
        self.expected = ("404",)
        folder, address = self.copy()
        (folder / "pkg/bindings_bg.wasm").unlink()
        page = self.page(address, state="failed")
        self.assertEqual(self.problem(page), "The model cannot run here: pkg/bindings_bg.wasm: the server answered 404.")
        page.click("#theme")
        self.assertEqual(page.run("document.documentElement.dataset.theme"), "dark")

    def test_a_browser_without_simd(self):
        folder, address = self.copy()
        worker = folder / "worker.js"
        worker.write_text(worker.read_text() + "\nWebAssembly.validate = () => false;\n")
        page = self.page(address, state="failed")
        said = "The model cannot run here: this browser has no WebAssembly SIMD, which the model needs."
        self.assertEqual(self.problem(page), said)

    def test_work_is_shown_while_the_first_sentences_are_embedded(self):
        page = self.page(self.slow("texts"), state="loading")
        page.wait("!document.getElementById('embedding').hidden && document.getElementById('embedding').value === 0")
        page.wait("document.getElementById('embedding').hidden && document.documentElement.dataset.state === 'ready'")

    def test_work_is_shown_while_attention_is_computed(self):
        page = self.page(self.slow("attend"))
        page.wait("!document.getElementById('loading').hidden")
        page.wait("document.getElementById('loading').hidden && !document.getElementById('attention').hidden")

    def test_names_cannot_turn_a_sentence_around(self):
        page = self.page()
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "abc\u202etxt.model"
        folder.mkdir()
        (folder / "notes.json").write_text("{}")
        page.drop("#text", [folder])
        self.assertIn("The folder “abc\ufffdtxt.model” was not loaded", self.problem(page))
        self.assertEqual(page.run("document.querySelector('#problem bdi').textContent"), "abc\ufffdtxt.model")

    def test_the_focus_comes_back(self):
        page = self.page()
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "notes.json").write_text("{}")
        page.click("#query")
        page.drop("#text", [folder])
        self.problem(page)
        page.run("document.querySelector('#problem button').focus()")
        page.key("Enter")
        self.assertTrue(page.run("document.getElementById('problem').hidden"))
        self.assertEqual(page.run("document.activeElement.id"), "query")

    def test_a_page_opened_as_a_file(self):
        self.expected = ("file://", "CORS")
        page = self.page(f"file://{BUILT}/index.html", state=None)
        page.wait("getComputedStyle(document.getElementById('problem')).visibility === 'visible'", 10)
        self.assertIn("needs JavaScript, a browser of 2024 or later, and a file server", self.problem(page))


if __name__ == "__main__":
    unittest.main()
