// The page: text, search, attention and model, and what passes between them.

import { resized, showAttention } from "./attention.js";
import { dropped, picked, readModel, readText } from "./files.js";
import { Model, newest } from "./model.js";
import { SearchBox } from "./search.js";
import { sentencesOf, shortened } from "./sentences.js";
import { TextPane } from "./text.js";

const byId = (id) => document.getElementById(id);
const RESULTS = 8;
const PAUSE = 120; // milliseconds without a key before a changed text is read
const SLOW = 300; // milliseconds before progress is shown
const SPOKEN = 200; // characters of a sentence that are announced
const EMBEDDED = "embedded, 3 MB";
const EXAMPLES = ["bad weather", "secret messages", "stars and planets", "protect my login", "losing money"];
const narrow = matchMedia("(max-width: 999px)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

let sentences = []; // of the text, as they are shown
let version = 0, shown = 0; // of the text, and of its sentences
let chosen = null; // the text of the chosen sentence
let modelName = EMBEDDED, isReady = false;

let focused = null; // what had the focus before the problem

/**
 * One clear sentence about what went wrong, perhaps with the name of a file in it; none takes it away, and the focus goes back
 * to where it was before.
 */
function problem(message = "", name = "", rest = "") {
  const box = byId("problem"), hadFocus = box.contains(document.activeElement);
  box.hidden = !message;
  box.replaceChildren();
  if (!message && hadFocus) focused?.focus({ preventScroll: true });
  if (!message) return;
  const line = document.createElement("p"), close = document.createElement("button"), bdi = document.createElement("bdi");
  bdi.textContent = visible(name);
  line.append(visible(message), bdi, visible(rest), /[.!?]$/.test(message + rest) ? "" : ".");
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => problem());
  box.append(line, close);
  if (hadFocus) close.focus();
}
byId("problem").addEventListener("focusin", ({ relatedTarget }) => { if (!byId("problem").contains(relatedTarget)) focused = relatedTarget; });

/** A name that cannot turn around the sentence it is in: without the characters that change the direction of a text. */
const visible = (name) => name.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

/** Shows that the model works until a promise is settled, if that takes longer than `pause` milliseconds. */
const works = new Set();
function working(promise, pause = 0) {
  const bar = byId("loading"), show = () => {
    if (!isReady) return;
    works.add(promise);
    bar.removeAttribute("value");
    bar.hidden = false;
  };
  const timer = setTimeout(show, pause);
  return promise.finally(() => {
    clearTimeout(timer);
    works.delete(promise);
    bar.hidden = !works.size;
  });
}

let announcing = 0;
/** Tells screen readers, once nothing new comes. */
function announce(message) {
  clearTimeout(announcing);
  announcing = setTimeout(() => { byId("announced").textContent = message; }, 800);
}
const count = (n, name) => `${n.toLocaleString("en")} ${name}${n === 1 ? "" : "s"}`;

const model = new Model((message) => {
  isReady = false;
  document.documentElement.dataset.state = "failed";
  byId("loading").hidden = byId("embedding").hidden = true;
  problem(`The model stopped: ${message}. Reload the page to go on`);
});

const search = new SearchBox({
  examples: EXAMPLES,
  onQuery: (query) => find(query),
  onMove: (index) => choose(index, false),
  onChoose: (index) => choose(index, true),
});
const pane = new TextPane({ onText: read, onChoose: (index, isFinal) => choose(index, isFinal) });

/** The hits with their texts and how far each is from the middle of all scores to the best, from 0 to 1. */
function withStrength({ hits, middle }) {
  const best = hits[0]?.score ?? 0;
  const strength = (score) => (best > middle ? Math.max((score - middle) / (best - middle), 0) : 1);
  return hits.map(({ index, score }) => ({ index, score, strength: strength(score), text: sentences[index].text }));
}

const find = newest(async (query) => {
  if (!query || !isReady) return showHits([], "");
  const start = performance.now();
  try {
    const found = await model.search(query, RESULTS);
    if (found.version !== shown) return; // the text has changed: the next search is on its way
    const among = count(found.searched, "sentence"), spent = (performance.now() - start).toFixed(0);
    showHits(withStrength(found), `Best ${found.hits.length} of ${among}, ${spent} ms`);
  } catch (error) {
    problem(`The search failed: ${error.message}`);
  }
});
function showHits(hits, note) {
  search.show(hits);
  pane.mark(pane.isEdited ? [] : hits);
  byId("found").textContent = hits.length ? note : "";
  if (hits.length) pane.reveal(hits[0].index);
  if (hits.length) announce(`${count(hits.length, "result")}. The best: ${shortened(hits[0].text, SPOKEN)}`);
}

const attend = newest(async (text) => {
  try {
    const found = await working(model.attend(text), SLOW);
    if (text !== chosen) return;
    byId("attention").hidden = false;
    byId("none").hidden = true;
    byId("attention").classList.toggle("many", found.heads > 6 || found.layers > 4);
    await showAttention(text, found, modelName);
    const { tokens, totalTokens } = found;
    byId("limit").textContent = totalTokens > tokens.length ? `The first ${tokens.length} of ${count(totalTokens, "token")}.` : "";
  } catch (error) {
    byId("attention").hidden = true;
    byId("none").hidden = false;
    byId("none").textContent = `No attention to show: ${error.message}`;
  }
});

/** Shows the attention of a sentence; `isFinal` if the reader wants to go there. */
function choose(index, isFinal) {
  const sentence = sentences[index];
  if (!sentence || !isReady) return;
  if (pane.isEdited) pane.edit(false);
  pane.choose(index);
  pane.reveal(index);
  chosen = sentence.text;
  attend(chosen);
  if (!isFinal) return;
  announce(`Attention of: ${shortened(chosen, SPOKEN)}`);
  if (narrow.matches) byId("attention").scrollIntoView({ behavior: still.matches ? "auto" : "smooth" });
  if (document.activeElement === byId("sentences")) byId("queries").focus({ preventScroll: true });
}

function chooseFirst() {
  if (sentences.length) return choose(0, false);
  chosen = null;
  byId("attention").hidden = true;
}

let reading = 0;
/** Reads a text that has changed: at once if it was replaced, after a pause while it is typed. */
function read(text) {
  clearTimeout(reading);
  reading = setTimeout(() => embed(text), pane.isEdited ? PAUSE : 0);
}
async function embed(text) {
  const mine = ++version, isNewest = () => mine === version;
  const found = await sentencesOf(text, isNewest);
  if (!found) return;
  sentences = found;
  shown = mine;
  byId("count").textContent = count(sentences.length, "sentence");
  if (!pane.isEdited) pane.show(sentences);
  byId("sentences").classList.toggle("empty", !sentences.length);
  pane.choose(sentences.findIndex((sentence) => sentence.text === chosen));
  if (!isReady) return;
  await index(isNewest);
}
async function index(isNewest) {
  const bar = byId("embedding"), start = performance.now();
  const progress = (done, all) => {
    if (!isNewest()) return;
    bar.hidden = done === all || performance.now() - start < SLOW;
    bar.value = done / all;
  };
  // The first batch may take long, too.
  const showing = setTimeout(() => { if (isNewest()) bar.hidden = false; }, SLOW);
  bar.value = 0;
  try {
    const taken = await model.texts(sentences.map(({ text }) => text), shown, progress);
    if (!taken || !isNewest()) return;
    if (taken.failed) problem(`${count(taken.failed, "sentence")} cannot be searched: ${taken.error}`);
    bar.hidden = true;
    find(search.query);
    if (!pane.isEdited && !sentences.some(({ text }) => text === chosen)) chooseFirst();
  } catch (error) {
    bar.hidden = true;
    problem(`The text cannot be searched: ${error.message}`);
  } finally {
    clearTimeout(showing);
  }
}

/** The name and the numbers of the model in use. */
function showModel(name, { dimension, maxSeqLength }) {
  modelName = name;
  byId("model").textContent = name;
  byId("model-facts").textContent = `${dimension} dimensions${Number.isFinite(maxSeqLength) ? `, ${maxSeqLength} tokens` : ""}`;
}
/** Loads a model folder, unless another one was dropped or chosen meanwhile. */
const openModel = newest(async (opened, isNewest) => {
  await ready;
  if (!isReady) return; // which the page has said
  problem();
  const name = visible(opened.folder);
  try {
    const files = await working(readModel(opened));
    if (!isNewest()) return;
    const facts = await working(model.open(files));
    showModel(name, facts);
    announce(`Model ${name} is loaded`);
    showHits([], "");
    if (chosen !== null) attend(chosen);
    index(() => true); // not awaited: the next model does not wait for it
  } catch (error) {
    if (isNewest()) problem("The folder “", name, `” was not loaded: ${error.message}. The model in use stays`);
  }
});
const openText = newest(async (file, isNewest) => {
  try {
    const text = await readText(file);
    if (!isNewest()) return;
    problem();
    if (pane.isEdited) pane.edit(false);
    pane.replace(text);
  } catch (error) {
    problem("The file “", file.name, `” was not read: ${error.message}`);
  }
});
const open = (found) => (found.text ? openText(found.text) : openModel(found));

for (const [button, input] of [["open-model", "model-files"], ["open-text", "text-file"]]) {
  byId(button).addEventListener("click", () => byId(input).click());
  byId(input).addEventListener("change", () => {
    if (byId(input).files.length) open(input === "model-files" ? picked(byId(input)) : { text: byId(input).files[0] });
    byId(input).value = "";
  });
}
const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  byId("drop").hidden = false;
});
addEventListener("dragleave", (event) => { if (!event.relatedTarget) byId("drop").hidden = true; });
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  byId("drop").hidden = true;
  const found = dropped(event.dataTransfer);
  if (found) open(found);
});
addEventListener("paste", (event) => {
  const text = event.clipboardData?.getData("text/plain");
  if (event.target.closest?.("input, textarea") || !text) return;
  event.preventDefault();
  pane.replace(text);
});

// The keys of the attention page do nothing in the text and the search.
byId("text-side").addEventListener("keydown", (event) => event.stopPropagation());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea")) return;
  event.preventDefault();
  search.focus();
}, { capture: true });
byId("back").addEventListener("click", () => {
  byId("text").scrollIntoView({ behavior: still.matches ? "auto" : "smooth" });
  byId("sentences").focus({ preventScroll: true });
});
new ResizeObserver(resized).observe(byId("attention"));

async function start() {
  problem();
  document.documentElement.dataset.state = "loading";
  const loading = model.load((bytes, all) => {
    if (all) byId("loading").value = bytes / all;
    byId("model-facts").textContent = `${(bytes / 1e6).toFixed(1)} MB`;
  });
  loading.catch(() => {}); // it is awaited below, once the sample is there
  try {
    const sample = await fetch("sample.txt").then((response) => (response.ok ? response.text() : ""), () => "");
    if (pane.text === "") pane.replace(sample);
    const facts = await loading;
    isReady = true;
    showModel(EMBEDDED, facts);
    byId("loading").hidden = true;
    byId("open-model").disabled = false;
    await index(() => true);
    document.documentElement.dataset.state = "ready";
    performance.mark("first-result");
  } catch (error) {
    byId("loading").hidden = true;
    byId("model").textContent = "none";
    byId("model-facts").textContent = "";
    document.documentElement.dataset.state = "failed";
    problem(`The model cannot run here: ${error.message}`);
  }
}
const ready = start();
