"""What the tests of the page share: the built page on a server, a browser, and short ways to use the page."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

from browser import Browser, Page, serve

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILT = pathlib.Path(os.environ.get("DEMO", ROOT / "target/demo"))

# Notes what the worker answers, before the page runs.
PRELUDE = """
window.progress = [];
const Plain = Worker;
window.Worker = class extends Plain {
  constructor(...all) {
    super(...all);
    this.addEventListener("message", ({ data }) => { if (data.progress) progress.push(data.progress); });
  }
};
"""


class PageTest(unittest.TestCase):
    """A test with a browser and a server. What any page asked another host for, or complained about, fails it."""

    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())
        cls.address, stop = serve(BUILT)
        cls.addClassCleanup(stop)

    def setUp(self):
        self.pages, self.expected = [], ()

    def tearDown(self):
        for page in self.pages:
            others = [url for url in page.requests if not url.startswith(("http://127.0.0.1:", "file://", "blob:"))]
            self.assertEqual(others, [])
            wrong = [error for error in page.errors if not any(part in error for part in self.expected)]
            self.assertEqual(wrong, [])
            page.close()

    def page(self, address=None, state="ready", **options):
        """A page that is ready."""
        page = Page(self.browser, prelude=PRELUDE, **options)
        self.pages.append(page)
        page.open(address or self.address, state)
        return page

    def results(self, page):
        """The results shown: `[(score, text)]`."""
        rows = page.run("[...document.querySelectorAll('.result')].map((r) => [r.querySelector('.score').title, r.querySelector('.words').textContent])")
        return [(float(score), text) for score, text in rows]

    def search(self, page, query):
        """Types a query in place of the present one and returns the results."""
        page.run("document.getElementById('query').select()")
        page.click("#query")
        page.run("document.getElementById('query').select()")
        page.type(query)
        self.assertEqual(page.run("document.getElementById('query').value"), query)
        return self.settled(page)

    def settled(self, page):
        """The results once no more come."""
        page.wait("document.querySelectorAll('.result').length > 0")
        page.run("new Promise((done) => setTimeout(done, 400))")
        return self.results(page)

    def paste(self, page, text):
        """Pastes a text in place of the present one, and waits until its sentences are embedded."""
        script = "const data = new DataTransfer(); data.setData('text/plain', TEXT); window.progress.length = 0;"
        script += "document.body.dispatchEvent(new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true }))"
        page.run("{" + script.replace("TEXT", json.dumps(text)) + "}")

    def embedded(self, page, count):
        """Waits until a number of different sentences is embedded."""
        page.wait(f"progress.some(([done, all]) => done === all && all === {count})")

    def watch(self, page):
        """Measures how long the page does nothing else: `longest`, in milliseconds."""
        page.run("window.longest = 0; { let last = performance.now(); setInterval(() => { longest = Math.max(longest, performance.now() - last); last = performance.now(); }, 5) }")

    def copy(self):
        """A copy of the page, to be changed, and its address."""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "page"
        shutil.copytree(BUILT, folder)
        address, stop = serve(folder)
        self.addCleanup(stop)
        return folder, address

    def slow(self, message, milliseconds=4000):
        """The address of a copy of the page whose worker takes long for a kind of message."""
        folder, address = self.copy()
        with open(folder / "worker.js", "a") as worker:
            worker.write("{ const { %s: quick } = answers; answers.%s = async (...all) => {" % (message, message))
            worker.write(" await new Promise((done) => setTimeout(done, %d)); return quick(...all); }; }" % milliseconds)
        return address

    def shown(self, page):
        """The sentence whose attention is shown."""
        return page.run("document.getElementById('title').textContent")

    def problem(self, page):
        page.wait("!document.getElementById('problem').hidden")
        return page.run("document.querySelector('#problem p').textContent")
