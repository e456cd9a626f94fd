// The page: text, search, attention and model, and what passes between them.

import { resized, showAttention } from "./attention.js";
import { dropped, picked, readModel, readText } from "./files.js";
import { Model, newest } from "./model.js";
import { SearchBox } from "./search.js";
import { sentencesOf } from "./sentences.js";
import { TextPane } from "./text.js";

const byId = (id) => document.getElementById(id);
const RESULTS = 8;
const PAUSE = 120; // milliseconds without a key before a changed text is read
const SLOW = 300; // milliseconds before progress is shown
const EMBEDDED = "embedded, 3 MB";
const EXAMPLES = ["bad weather", "secret messages", "stars and planets", "protect my login", "losing money"];
const narrow = matchMedia("(max-width: 999px)");
const still = matchMedia("(prefers-reduced-motion: reduce)");

let sentences = []; // of the text, as they are shown
let version = 0, shown = 0; // of the text, and of its sentences
let chosen = null; // the text of the chosen sentence
let modelName = EMBEDDED, isReady = false;

/** One clear sentence about what went wrong; none takes it away. */
function problem(message = "") {
  byId("problem").hidden = !message;
  byId("problem").replaceChildren();
  if (!message) return;
  const line = document.createElement("p"), close = document.createElement("button");
  line.textContent = /[.!?]$/.test(message) ? message : `${message}.`;
  close.type = "button";
  close.textContent = "Close";
  close.addEventListener("click", () => problem());
  byId("problem").append(line, close);
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
  if (hits.length) announce(`${count(hits.length, "result")}. The best: ${hits[0].text}`);
}

const attend = newest(async (text) => {
  try {
    const found = await model.attend(text);
    if (text !== chosen) return;
    byId("attention").hidden = false;
    byId("none").hidden = true;
    byId("attention").classList.toggle("many", found.heads > 6 || found.layers > 4);
    await showAttention(text, found, modelName);
    byId("limit").textContent = found.isCut ? `The model reads the first ${found.tokens.length} tokens of this text.` : "";
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
  announce(`Attention of: ${chosen}`);
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
  }
}

/** The name and the numbers of the model in use. */
function showModel(name, { dimension, maxSeqLength }) {
  modelName = name;
  byId("model").textContent = name;
  byId("model-facts").textContent = `${dimension} dimensions${Number.isFinite(maxSeqLength) ? `, ${maxSeqLength} tokens` : ""}`;
}
async function openModel(opened) {
  if (!isReady) return;
  const bar = byId("loading");
  problem();
  bar.removeAttribute("value");
  bar.hidden = false;
  byId("open-model").disabled = true;
  try {
    const facts = await model.open(await readModel(opened));
    showModel(opened.folder, facts);
    announce(`Model ${opened.folder} is loaded`);
    showHits([], "");
    if (chosen !== null) attend(chosen);
    await index(() => true);
  } catch (error) {
    problem(`The folder “${opened.folder}” was not loaded: ${error.message}. The model in use stays`);
  }
  bar.hidden = true;
  byId("open-model").disabled = false;
}
async function openText(file) {
  try {
    const text = await readText(file);
    problem();
    if (pane.isEdited) pane.edit(false);
    pane.replace(text);
  } catch (error) {
    problem(`The file “${file.name}” was not read: ${error.message}`);
  }
}
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
addEventListener("drop", async (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  byId("drop").hidden = true;
  const found = await dropped(event.dataTransfer);
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
start();
