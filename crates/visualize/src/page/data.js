// The data of the text that is shown, the tokens of both axes, and what the reader has chosen.

const UNITS = 10000; // weights are whole numbers of these
const SPECIAL = 1, CONTINUES = 2, SECOND = 4; // bits of a token's marks
const byId = (id) => document.getElementById(id);

/** The tokens of the rows (queries) or columns (keys) of a map. `shown` are the places of those that are not hidden. */
function axis(id, names, marks) {
  const has = (place, bit) => ((marks[place] ?? 0) & bit) !== 0;
  const labels = names.map((name, place) => (has(place, CONTINUES) ? `##${name}` : name));
  return { id, names, labels, has, shown: names.map((_, place) => place), items: [] };
}
let data, selfAttention, queries, keys, axes;
let canHide; // special tokens can be hidden if others are left
/** Takes the data of a text. */
function take(found) {
  data = found;
  selfAttention = data.keys === null;
  queries = axis("queries", data.queries, data.query_marks);
  keys = selfAttention ? queries : axis("keys", data.keys, data.key_marks);
  axes = selfAttention ? [queries] : [queries, keys];
  canHide = any(SPECIAL) && axes.every((tokens) => ordinary(tokens).length > 0);
}

const places = (tokens) => tokens.names.map((_, place) => place);
const ordinary = (tokens) => places(tokens).filter((place) => !tokens.has(place, SPECIAL));
const any = (bit) => axes.some((tokens) => places(tokens).some((place) => tokens.has(place, bit)));
/** How many of the shown tokens come before the second text; null without a second text, or with nothing before it. */
function border(tokens) {
  const at = tokens.shown.findIndex((place) => tokens.has(place, SECOND));
  return at > 0 ? at : null;
}

// Layer, head and heads are places in the lists, not numbers. A token is the place of a query if the direction is "from",
// of a key if it is "to". A `zoom` of null is the default, otherwise "fit" or the pixels of a cell.
const state = {
  layer: 0, head: 0, token: 0, direction: "from", view: "map", heads: [0], lines: "all",
  special: true, zoom: null, list: "first", theme: null,
};
let hovered = null; // a direction and a token, while the pointer is on it
let cell = null; // a query and a key, while the pointer or the cursor is on their cell
let loaded = []; // the weights of the heads that are shown
let current = null; // those of the chosen head

const asking = () => hovered ?? state;
const asks = (direction) => (direction === "from" ? queries : keys);
const answers = (direction) => (direction === "from" ? keys : queries);
/** The weight between a token that asks and another, in units. */
function weightOf(numbers, { direction, token }, other) {
  const [query, key] = direction === "from" ? [token, other] : [other, token];
  return numbers[query * keys.names.length + key];
}
const heads = () => data.layers[state.layer].heads;
/** The places of the heads that the view shows. */
const shownHeads = () => (state.view === "lines" ? state.heads.toSorted((a, b) => a - b) : [state.head]);

const text = (units) => (units / UNITS).toFixed(4);
// Isolated, so that a right-to-left token does not reorder the text beside it.
const quoted = (tokens, place) => `“\u2068${tokens.labels[place]}\u2069” (${place})`;
function element(tag, name, content) {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = content;
  return made;
}
