#!/usr/bin/env python3
"""What a reader does with the page: search, edit, choose, by pointer and by keyboard."""

import unittest

from pages import PageTest

# The best sentence of the sample for each query that the page proposes.
BEST = {
    "bad weather": "A cold wind from the north brought the first snow of the winter.",
    "secret messages": "Each message is encrypted with the public key of its recipient.",
    "stars and planets": "Draw the orbits of the planets for any date and place.",
    "protect my login": "Passwords are stored as salted hashes, never as plain text.",
    "losing money": "Enter what you spend, and see at once what is left of the month's money.",
}


class Use(PageTest):
    def test_first_result(self):
        page = self.page()
        milliseconds = page.run("performance.getEntriesByName('first-result')[0].startTime")
        print(f"\nfirst result after {milliseconds:.0f} ms", end=" ", flush=True)
        page.wait("!document.getElementById('attention').hidden")
        self.assertEqual(self.shown(page), "The program crashes at startup when the configuration file is missing.")
        self.assertEqual(page.run("document.querySelectorAll('#overview canvas').length"), 8)

    def test_search_finds_by_meaning(self):
        page = self.page()
        proposed = page.run("[...document.querySelectorAll('#examples button')].map((button) => button.textContent)")
        self.assertEqual(proposed, list(BEST))
        for query, best in BEST.items():
            found = self.search(page, query)
            self.assertEqual(found[0][1], best, query)
            self.assertEqual(found, sorted(found, key=lambda hit: -hit[0]))
        marked = page.run("[...document.querySelectorAll('#sentences [role=option]')].filter((s) => s.style.getPropertyValue('--strength')).length")
        self.assertEqual(marked, 8)

    def test_a_click_shows_the_attention(self):
        page = self.page()
        self.search(page, "bad weather")
        page.click("#r1")
        page.wait("document.getElementById('title').textContent.startsWith('Heavy rain')")
        page.click("#s6")
        page.wait("document.getElementById('title').textContent.startsWith('Passwords')")
        tokens = page.run("[...document.querySelectorAll('#queries .token')].map((token) => token.textContent)")
        self.assertEqual((tokens[0], tokens[1], tokens[-1]), ("[CLS]", "Passwords", "[SEP]"))
        rows = page.run("[...document.querySelectorAll('#list .weight')].map((cell) => Number(cell.textContent))")
        self.assertEqual(rows, sorted(rows, reverse=True))
        self.assertEqual(len(rows), len(tokens))
        self.assertAlmostEqual(sum(rows), 1, delta=0.002)
        page.click("[data-at='1-2']")
        page.wait("location.hash.startsWith('#layer=1&head=2&')")

    def test_the_address_has_layer_and_head_and_no_text(self):
        page = self.page(self.address + "#layer=1&head=3&token=2")
        page.wait("document.getElementById('view-name').textContent === 'Layer 1, head 3'")
        self.search(page, "bad weather")
        page.click("#r0")
        page.wait("document.getElementById('title').textContent.startsWith('A cold wind')")
        self.assertRegex(page.run("location.href"), r"/#layer=1&head=3&token=\d+$")

    def test_only_changed_sentences_are_embedded_again(self):
        page = self.page()
        # More than the model is given at a time.
        self.paste(page, "\n".join(f"The number {i} is a number." for i in range(200)))
        self.embedded(page, 200)
        page.click("#edit")
        page.wait("document.activeElement.id === 'editor'")
        page.run("{ const e = document.getElementById('editor'); e.setSelectionRange(e.value.length, e.value.length); progress.length = 0 }")
        page.type(" Penguins cannot fly")
        page.wait("progress.length > 0")
        page.run("new Promise((done) => setTimeout(done, 500))")
        # Several pauses of the typing may have been read, each with one new sentence.
        self.assertTrue(all(found == [201, 201] for found in page.run("progress")), page.run("progress"))
        self.assertEqual(page.run("document.getElementById('count').textContent"), "201 sentences")
        self.assertEqual(self.search(page, "penguins")[0][1], "Penguins cannot fly")
        page.click("#edit")
        page.wait("document.querySelectorAll('#sentences [role=option]').length === 201")

    def test_keyboard_alone(self):
        page = self.page()
        page.wait("!document.getElementById('attention').hidden")
        page.key("/")
        self.assertEqual(page.run("document.activeElement.id"), "query")
        page.type("music/")
        self.assertEqual(page.run("document.getElementById('query').value"), "music/")
        second = self.settled(page)[1][1]
        page.key("ArrowDown", "ArrowDown", "Enter")
        page.wait(f"document.getElementById('title').textContent === {second!r}")
        self.assertEqual(page.run("document.querySelector('.result[aria-selected=true] .words').textContent"), second)
        page.key("Escape")
        page.wait("document.querySelectorAll('.result').length === 0")
        stops = []
        while page.run("document.activeElement.id") != "sentences":
            page.key("Tab")
            stops.append(page.run("document.activeElement.id || document.activeElement.textContent"))
            self.assertLess(len(stops), 20, stops)
        page.key("Home", "ArrowDown", "Enter")
        page.wait("document.getElementById('title').textContent.startsWith('A library was upgraded')")
        page.wait("document.activeElement.id === 'queries'")
        page.key("ArrowRight", "J", "j")
        page.wait("document.getElementById('list-name').textContent.includes('library') || document.getElementById('list-name').textContent.includes('(2)')")
        page.wait("document.getElementById('view-name').textContent === 'Layer 1, head 1'")
        self.assertEqual(page.run("getComputedStyle(document.activeElement).outlineStyle"), "solid")

    def test_undo_and_a_text_file(self):
        page = self.page()
        self.paste(page, "One sentence. And another one!")
        self.embedded(page, 2)
        page.click("#restore")
        page.wait("document.getElementById('count').textContent === '40 sentences'")

    def test_ten_thousand_sentences(self):
        page = self.page()
        self.watch(page)
        lines = "\n".join(f"Number {i} is a sentence about {word}." for i in range(2500) for word in ["cats", "rain", "money", "music"])
        self.paste(page, lines)
        page.wait("!document.getElementById('embedding').hidden")
        self.assertEqual(page.run("document.querySelectorAll('#sentences [role=option]').length"), 10_000)
        # A search is answered, and a sentence chosen, while the rest is still being embedded.
        self.assertIn("rain", self.search(page, "rain")[0][1])
        page.click("#s3")
        page.wait("document.getElementById('title').textContent === 'Number 0 is a sentence about music.'")
        self.assertTrue(page.run("progress.every(([done, all]) => done < all)"))
        # A newer text takes the place of the one that is being embedded.
        self.paste(page, "Penguins cannot fly. The moon is full.")
        self.embedded(page, 2)
        self.assertEqual(self.search(page, "birds")[0][1], "Penguins cannot fly.")
        self.assertTrue(page.run("document.getElementById('embedding').hidden"))
        print(f"\nlongest wait of the page with 10,000 sentences: {page.run('longest'):.0f} ms", end=" ", flush=True)


if __name__ == "__main__":
    unittest.main()
