// The text: sentences to choose from, or the text to edit.

const byId = (id) => document.getElementById(id);
const PAGE = 10; // sentences that Page Up and Page Down pass
const PARAGRAPH = 10_000; // characters of a line that make a paragraph
const PART = 5000; // characters of paragraphs that are laid out together, once they come into view
const LINE = 100; // characters that would take the room of a short paragraph

function presentation(tag) {
  const made = document.createElement(tag);
  made.setAttribute("role", "presentation");
  return made;
}

export class TextPane {
  #list = byId("sentences");
  #editor = byId("editor");
  #edit = byId("edit");
  #items = [];
  #chosen = -1;
  #marked = [];
  #previous = null; // the text before it was replaced
  #text = "";

  /** `onText(text)` is called when the text changes, `onChoose(index, isFinal)` when a sentence is chosen. */
  constructor({ onText, onChoose }) {
    this.onText = onText;
    this.onChoose = onChoose;
    this.#edit.addEventListener("click", () => this.edit(this.#editor.hidden));
    this.#editor.addEventListener("input", () => this.#change(this.#editor.value));
    this.#editor.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      this.edit(false);
      this.#list.focus();
    });
    byId("restore").addEventListener("click", () => this.replace(this.#previous));
    this.#list.addEventListener("click", (event) => {
      const index = event.target.closest("[role=option]")?.dataset.index;
      if (index !== undefined && getSelection().isCollapsed) this.onChoose(Number(index), true);
    });
    this.#list.addEventListener("keydown", (event) => this.#key(event));
  }

  get text() {
    return this.#text;
  }

  #change(text) {
    this.#text = text;
    this.onText(text);
  }

  /** Puts another text in place of this one, which "Undo" brings back. */
  replace(text) {
    this.#previous = this.#text;
    byId("restore").disabled = this.#previous === "";
    if (this.isEdited) this.#editor.value = text; // slow for a long text
    this.#change(text);
  }

  /** Shows the text to edit, or its sentences. */
  edit(isEdited) {
    this.#editor.hidden = !isEdited;
    this.#list.hidden = isEdited;
    this.#edit.textContent = isEdited ? "Done" : "Edit";
    if (isEdited) {
      this.#editor.value = this.#text;
      this.#editor.focus();
    } else this.onText(this.#text);
  }
  get isEdited() {
    return !this.#editor.hidden;
  }

  /** Shows sentences: `[{ text, line }]`. */
  show(sentences) {
    const parts = [];
    let paragraph, last = -1, inParagraph = 0, inPart = PART;
    this.#items = sentences.map(({ text, line }, index) => {
      const item = document.createElement("span");
      item.textContent = text;
      item.id = `s${index}`;
      item.dataset.index = index;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", false);
      if (line !== last || inParagraph >= PARAGRAPH) {
        paragraph = presentation("p");
        paragraph.classList.toggle("apart", last >= 0 && line > last + 1);
        if (inPart >= PART) {
          parts.push(presentation("div"));
          inPart = 0;
        }
        parts.at(-1).append(paragraph);
        last = line;
        inParagraph = 0;
        inPart += LINE;
      }
      paragraph.append(item, " ");
      inParagraph += text.length;
      inPart += text.length;
      return item;
    });
    this.#list.replaceChildren(...parts);
    this.#marked = [];
    this.#chosen = -1;
    this.#list.removeAttribute("aria-activedescendant");
  }

  /** Marks sentences by strengths from 0 to 1: `[{ index, strength }]`. */
  mark(hits) {
    for (const index of this.#marked) this.#items[index]?.style.removeProperty("--strength");
    this.#marked = hits.map(({ index }) => index);
    for (const { index, strength } of hits) this.#items[index]?.style.setProperty("--strength", `${Math.round(100 * strength)}%`);
  }

  /** Shows which sentence is chosen; -1 is none. */
  choose(index) {
    this.#items[this.#chosen]?.setAttribute("aria-selected", false);
    this.#chosen = index in this.#items ? index : -1;
    const item = this.#items[this.#chosen];
    item?.setAttribute("aria-selected", true);
    if (item) this.#list.setAttribute("aria-activedescendant", item.id);
  }

  /** Scrolls the list, and not the page, so that a sentence is in view. */
  reveal(index, isFirst = true) {
    const item = this.#items[index], list = this.#list;
    if (!item) return;
    const [room, box] = [list.getBoundingClientRect(), item.getBoundingClientRect()];
    if (box.top >= room.top && box.bottom <= room.bottom) return;
    list.scrollTop += box.top - room.top - (room.height - Math.min(box.height, room.height)) / 2;
    // Paragraphs that had not been laid out have another height than was thought.
    if (isFirst) requestAnimationFrame(() => this.reveal(index, false));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.#items.length) return;
    const last = this.#items.length - 1, at = this.#chosen;
    const to = {
      ArrowUp: at - 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - PAGE, PageDown: at + PAGE, Home: 0, End: last,
    }[event.key];
    if (to === undefined && event.key !== "Enter") return;
    event.preventDefault();
    const index = Math.min(Math.max(to ?? at, 0), last);
    this.onChoose(index, event.key === "Enter");
    this.reveal(index);
  }
}
