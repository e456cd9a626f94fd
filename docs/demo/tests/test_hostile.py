#!/usr/bin/env python3
"""Hostile texts, broken servers, and old browsers: one clear sentence, and nothing else happens."""

import pathlib
import shutil
import tempfile
import unittest

from browser import serve
from pages import BUILT, PageTest

HTML = "<img src=x onerror=\"document.title='changed'\"><script>document.title='changed'</script>"
ARABIC = "القطة تنام على الأريكة \u202e reversed \u202c."
EMOJI = "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 𝕳𝖊𝖑𝖑𝖔 \u0000\u0007\ufeff."
LONG = "word " * 20_000


class Hostile(PageTest):
    def test_texts_are_only_text(self):
        page = self.page()
        title = page.run("document.title")
        self.paste(page, "\n".join([HTML, ARABIC, EMOJI, LONG, "x" * 100_000, "A plain sentence."]))
        page.wait("document.getElementById('count').textContent.endsWith('sentences') && progress.some(([done, all]) => done === all)")
        count = page.run("document.querySelectorAll('#sentences [role=option]').length")
        for index in range(count):
            text = page.run(f"document.getElementById('s{index}').textContent")
            page.run(f"document.getElementById('s{index}').click()")
            page.wait(f"document.getElementById('title').textContent === document.getElementById('s{index}').textContent")
            self.assertFalse(page.run("document.getElementById('attention').hidden"), text[:50])
        self.search(page, HTML[:60])
        self.assertEqual(page.run("[document.title, document.images.length, document.scripts.length]"), [title, 0, 1])
        self.assertIn(HTML[:20], page.run("document.getElementById('sentences').textContent"))
        self.assertEqual(page.run("document.documentElement.scrollWidth - innerWidth"), 0)
        self.assertTrue(page.run("document.getElementById('problem').hidden"))

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

    def copy(self):
        """A copy of the page, to be broken, and its address."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "page"
        shutil.copytree(BUILT, folder)
        address, stop = serve(folder)
        self.addCleanup(stop)
        return folder, address

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

    def test_a_page_opened_as_a_file(self):
        self.expected = ("file://", "CORS")
        page = self.page(f"file://{BUILT}/index.html", state=None)
        page.wait("getComputedStyle(document.getElementById('problem')).visibility === 'visible'", 10)
        self.assertIn("needs JavaScript, a browser of 2024 or later, and a file server", self.problem(page))


if __name__ == "__main__":
    unittest.main()
