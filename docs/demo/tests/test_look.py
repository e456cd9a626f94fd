#!/usr/bin/env python3
"""The look of the page: phones, contrast, focus, reduced motion, names for screen readers."""

import pathlib
import tempfile
import unittest

from pages import PageTest

# The smallest contrast of a text with what is behind it, and where. Blended colors are computed by a canvas.
CONTRAST = """(() => {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const over = (colors) => {
    pen.clearRect(0, 0, 1, 1);
    for (const color of colors) { pen.fillStyle = color; pen.fillRect(0, 0, 1, 1); }
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  let worst = [Infinity, ""];
  for (const element of document.body.querySelectorAll("*")) {
    const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) || element.matches("input, textarea");
    if (!isText || !element.checkVisibility({ visibilityProperty: true }) || element.closest(":disabled, canvas, option")) continue;
    const behind = [];
    for (let e = element; e; e = e.parentElement) behind.unshift(getComputedStyle(e).backgroundColor);
    const [a, b] = [light(over([...behind, getComputedStyle(element).color])), light(over(behind))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst[0]) worst = [contrast, `${element.tagName} ${element.id} ${element.className} ${element.textContent.slice(0, 30)}`];
  }
  return worst;
})()"""
# Elements that reach out of the width of the page, other than inside a box that scrolls.
OUTSIDE = """[...document.body.querySelectorAll("*")].filter((e) => e.checkVisibility() && e.getBoundingClientRect().right > innerWidth + 0.5
  && !e.closest("#map-room, #examples, #lines-room, .unseen, .tokens")).map((e) => e.tagName + e.id + e.className)"""
# Controls that a finger cannot hit or that have no name.
SMALL = """[...document.querySelectorAll("button, select, input, textarea")].filter((e) => e.checkVisibility() && !e.closest("#overview, #examples"))
  .filter((e) => { const b = e.getBoundingClientRect(); return b.height < 40 || b.width < 40; }).map((e) => e.id)"""
NAMELESS = """[...document.querySelectorAll("button, select, input, textarea, [role=listbox], [role=group], canvas[tabindex]")]
  .filter((e) => e.checkVisibility() && !e.textContent.trim() && !e.ariaLabel && !e.labels?.length && !e.getAttribute("aria-labelledby")).map((e) => e.id)"""


class Look(PageTest):
    def states(self, page):
        """Brings the page into each of its states in turn, with their names."""
        page.wait("!document.getElementById('attention').hidden && 'ready' in document.documentElement.dataset")
        yield "start"
        self.search(page, "protect my login")
        page.key("ArrowDown", "ArrowDown")
        page.run("new Promise((done) => setTimeout(done, 300))")
        yield "results"
        page.run("document.getElementById('view-lines').click()")
        page.run("new Promise((done) => setTimeout(done, 300))")
        yield "lines"
        page.run("document.getElementById('edit').click()")
        yield "editor"
        page.files("#model-files", [self.empty])
        self.problem(page)
        yield "problem"

    def setUp(self):
        super().setUp()
        self.empty = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.empty / "notes.json").write_text("{}")

    def test_contrast_in_light_and_dark(self):
        for dark in [False, True]:
            page = self.page(dark=dark)
            self.assertEqual(page.run("document.documentElement.dataset.theme"), "dark" if dark else "light")
            for state in self.states(page):
                contrast, where = page.run(CONTRAST)
                self.assertGreaterEqual(contrast, 4.5, (state, dark, where))
        page.click("#theme")
        self.assertEqual(page.run("document.documentElement.dataset.theme"), "light")
        self.assertGreaterEqual(page.run(CONTRAST)[0], 4.5)

    def test_phones(self):
        for width in [360, 390]:
            page = self.page(width=width, height=780, phone=True)
            for state in self.states(page):
                self.assertEqual(page.run("document.documentElement.scrollWidth"), width, state)
                self.assertEqual(page.run(OUTSIDE), [], (state, width))
                self.assertEqual(page.run(SMALL), [], (state, width))

    def test_a_choice_on_a_phone_goes_to_the_attention_and_back(self):
        page = self.page(width=390, height=844, phone=True)
        page.wait("!document.getElementById('attention').hidden")
        page.click("#s4")
        page.wait("document.getElementById('title').textContent.startsWith('Memory grows')")
        page.wait("Math.abs(document.getElementById('attention').getBoundingClientRect().top) < 40")
        page.click("#back")
        page.wait("document.getElementById('text').getBoundingClientRect().top > -40")
        self.assertEqual(page.run("document.activeElement.id"), "sentences")

    def test_names(self):
        page = self.page()
        for state in self.states(page):
            self.assertEqual(page.run(NAMELESS), [], state)
        self.assertEqual(page.run("document.getElementById('query').getAttribute('aria-activedescendant')"), "r1")

    def test_reduced_motion(self):
        page = self.page()
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        page.run("document.getElementById('loading').hidden = false")
        self.assertEqual(page.run("document.getAnimations().length"), 0)


if __name__ == "__main__":
    unittest.main()
