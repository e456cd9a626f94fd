// The part of this module that is not the crate's own page: the shown weights are those of a model that runs beside the page.

import { shortened } from "./sentences.js";

const MARKERS = /^(\[(CLS|SEP|BOS|EOS|PAD)\]|<\/?(s|bos|eos|pad)>|<\|.*\|>)$/;
const WORDLIKE = /^[\p{L}\p{M}\p{N}]+$/u;
const LONGEST_NAME = 60, LONGEST_TITLE = 300; // characters
const HIDDEN = { tokens: [""], layers: 1, heads: 1, weights: new Float32Array(1) };
const address = location.hash;
let attention = HIDDEN, isFirst = true;

/** The weights of a head, in units. */
function stored(layer, head) {
  const count = attention.tokens.length ** 2, start = (layer * attention.heads + head) * count;
  return Uint16Array.from(attention.weights.subarray(start, start + count), (weight) => Math.round(weight * UNITS));
}

/** The marks of tokens. A token continues a word if nothing is between it and the token before it in the text. */
function marksOf(tokens, text) {
  const plain = text.normalize("NFD").replace(/\p{Mn}/gu, "").toLowerCase();
  let end = 0, inWord = false;
  return tokens.map((token) => {
    if (MARKERS.test(token)) return SPECIAL;
    const name = token.normalize("NFD").replace(/\p{Mn}/gu, "").toLowerCase(), at = plain.indexOf(name, end);
    const continues = at === end && inWord && WORDLIKE.test(name);
    if (at >= 0) end = at + name.length;
    inWord = at >= 0 && WORDLIKE.test(name);
    return continues ? CONTINUES : 0;
  });
}

function show(text, found, model) {
  attention = found;
  // A tokenizer may make one token of any length.
  const names = found.tokens.map((token) => shortened(token, LONGEST_NAME));
  const layers = Array.from({ length: found.layers }, (_, layer) => ({ layer, heads: Array.from({ length: found.heads }, (_, head) => head) }));
  const query_marks = marksOf(found.tokens, text);
  showText({ title: shortened(text, LONGEST_TITLE), model, queries: names, query_marks, keys: null, truncation: null, layers, ...COLORMAPS });
}

/**
 * Shows the attention weights `{ tokens, layers, heads, weights }` of a text. Layer, head and view stay as they are; the first
 * time, they are those of the address.
 */
export async function showAttention(text, found, model) {
  show(text, found, model);
  const { theme } = state, wanted = new URLSearchParams(address.slice(1));
  const token = Math.max(queries.names.findIndex((_, place) => !queries.has(place, SPECIAL)), 0);
  if (isFirst) {
    isFirst = false;
    history.replaceState(null, "", address || location.pathname + location.search);
    await fromHash();
    await choose({ theme: theme ?? state.theme, ...(wanted.has("token") ? {} : { token }) });
  } else await choose({ token, list: "first" });
  await drawOverview();
}

/** Draws again what depends on the room there is. */
export function resized() {
  layOut();
  schedule();
}

show("", HIDDEN, "");
state.theme = ["light", "dark"].find((theme) => address.includes(`theme=${theme}`)) ?? null;
recolor();
