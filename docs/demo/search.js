// The search box and its results: a combobox with a list that stays open.

import { shortened } from "./sentences.js";

const byId = (id) => document.getElementById(id);
const LONGEST = 300; // characters of a result

function element(tag, name, content) {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = content;
  return made;
}

export class SearchBox {
  #query = byId("query");
  #results = byId("results");
  #hits = [];
  #active = -1;

  /**
   * `onQuery(query)` is called as the reader types, `onMove(index)` for the sentence that the arrow keys reach,
   * `onChoose(index)` for the one that is chosen.
   */
  constructor({ examples, onQuery, onMove, onChoose }) {
    this.onMove = onMove;
    this.onChoose = onChoose;
    this.#query.addEventListener("input", () => onQuery(this.query));
    this.#query.addEventListener("keydown", (event) => this.#key(event));
    this.#results.addEventListener("pointerdown", (event) => event.preventDefault()); // the box keeps the focus
    this.#results.addEventListener("click", (event) => {
      const place = event.target.closest("[role=option]")?.dataset.place;
      if (place !== undefined) this.#choose(Number(place));
    });
    byId("examples").querySelector("span").replaceChildren(...examples.map((example) => {
      const button = element("button", "", example);
      button.type = "button";
      button.addEventListener("click", () => {
        this.#query.value = example;
        this.#query.focus();
        onQuery(example);
      });
      return button;
    }));
  }

  get query() {
    return this.#query.value.trim();
  }

  focus() {
    this.#query.focus();
    this.#query.select();
  }

  /** Shows results: `[{ index, score, strength, text }]`. */
  show(hits) {
    const kept = this.#hits[this.#active]?.index;
    this.#hits = hits;
    this.#results.replaceChildren(...hits.map(({ score, strength, text }, place) => {
      const item = element("div", "result", ""), bar = element("i", "", ""), number = element("span", "score", score.toFixed(2));
      number.title = score.toFixed(6);
      item.id = `r${place}`;
      item.dataset.place = place;
      item.setAttribute("role", "option");
      const name = element("span", "words", shortened(text, LONGEST));
      name.dir = "auto";
      bar.style.inlineSize = `${Math.round(100 * strength)}%`;
      item.append(number, bar, name);
      return item;
    }));
    this.#query.setAttribute("aria-expanded", hits.length > 0);
    byId("examples").hidden = this.query !== "";
    this.#activate(kept === undefined ? -1 : hits.findIndex(({ index }) => index === kept));
  }

  #activate(place) {
    this.#active = place;
    [...this.#results.children].forEach((item, i) => item.setAttribute("aria-selected", i === place));
    const item = this.#results.children[place];
    if (item) this.#query.setAttribute("aria-activedescendant", item.id);
    else this.#query.removeAttribute("aria-activedescendant");
    item?.scrollIntoView({ block: "nearest" });
  }

  #choose(place) {
    this.#activate(place);
    this.onChoose(this.#hits[place].index);
  }

  #key(event) {
    if (event.isComposing) return;
    const last = this.#hits.length - 1;
    const to = { ArrowDown: Math.min(this.#active + 1, last), ArrowUp: Math.max(this.#active - 1, 0) }[event.key];
    if (to !== undefined && last >= 0) {
      event.preventDefault();
      this.#activate(to);
      this.onMove(this.#hits[to].index);
    } else if (event.key === "Enter" && last >= 0) {
      event.preventDefault();
      this.#choose(Math.max(this.#active, 0));
    }
  }
}
