// Changes of what is chosen: checked, written to the address of the page, loaded and drawn.

function draw() {
  if (!current) return;
  drawTokens();
  drawList();
  if (state.view === "lines") drawSides();
  drawView();
}
/** What changes when its box scrolls. */
function drawView() {
  if (state.view === "map") drawMap();
  else drawLines();
}
let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; draw(); });
}

/** Brings what was asked for into the range of what there is. */
function check() {
  const clamp = (i, n) => (Number.isFinite(i) ? Math.min(Math.max(Math.trunc(i), 0), n - 1) : 0);
  state.layer = clamp(state.layer, data.layers.length);
  state.head = clamp(state.head, heads().length);
  state.heads = [...new Set(state.heads)].filter((head) => head in heads());
  if (!state.heads.includes(state.head)) state.heads = [...state.heads, state.head];
  state.special ||= !canHide;
  for (const tokens of axes) tokens.shown = state.special ? places(tokens) : ordinary(tokens);
  const tokens = asks(state.direction), token = clamp(state.token, tokens.names.length);
  const nearer = (best, place) => (Math.abs(place - token) < Math.abs(best - token) ? place : best);
  state.token = tokens.shown.reduce(nearer);
}

function hash() {
  const numbers = heads(), parts = { layer: data.layers[state.layer].layer, head: numbers[state.head], token: state.token };
  if (state.direction === "to") parts.direction = "to";
  if (state.view === "lines") parts.view = "lines";
  if (state.heads.length > 1) parts.heads = state.heads.map((head) => numbers[head]).join(".");
  if (state.lines === "token") parts.lines = "token";
  if (!state.special) parts.special = "hidden";
  if (state.zoom !== null) parts.zoom = state.zoom;
  if (state.list === "all") parts.list = "all";
  if (state.theme) parts.theme = state.theme;
  return `#${new URLSearchParams(parts)}`;
}
/** What the address says. Without a layer in it the page opens on the view that comes with the data, if there is one. */
function fromHash() {
  const wanted = new URLSearchParams(location.hash.slice(1)), is = (name, value) => wanted.get(name) === value;
  const view = wanted.has("layer") ? null : data.view;
  const layer = Math.max(data.layers.findIndex((l) => is("layer", String(l.layer))), 0), numbers = data.layers[layer].heads;
  const head = Math.max(numbers.findIndex((number) => is("head", String(number))), 0);
  const picked = (wanted.get("heads") ?? "").split(".").map((number) => numbers.findIndex((n) => String(n) === number));
  const size = Number(wanted.get("zoom"));
  return choose({
    layer, head, heads: picked.filter((head) => head >= 0), token: Number(wanted.get("token") ?? 0),
    direction: is("direction", "to") ? "to" : "from", view: is("view", "lines") ? "lines" : "map",
    lines: is("lines", "token") ? "token" : "all", special: !is("special", "hidden"),
    zoom: is("zoom", "fit") ? "fit" : size > 0 ? size : null, list: is("list", "all") ? "all" : "first",
    theme: ["light", "dark"].find((theme) => is("theme", theme)) ?? null, ...(view && { ...view, special: false }),
  });
}

function fillSelect(select, numbers, chosen) {
  select.replaceChildren(...numbers.map((number, i) => new Option(number, i, false, i === chosen)));
}
function drawControls() {
  const numbers = data.layers.map((l) => l.layer), press = (id, on) => byId(id).setAttribute("aria-pressed", on);
  fillSelect(byId("layer"), numbers, state.layer);
  fillSelect(byId("head"), heads(), state.head);
  byId("layer-back").disabled = state.layer === 0;
  byId("layer-on").disabled = state.layer === numbers.length - 1;
  byId("head-back").disabled = state.head === 0;
  byId("head-on").disabled = state.head === heads().length - 1;
  press("from", state.direction === "from");
  press("to", state.direction === "to");
  press("view-map", state.view === "map");
  press("view-lines", state.view === "lines");
  press("special", state.special);
  byId("zoom").hidden = byId("map-part").hidden = state.view !== "map";
  byId("lines-part").hidden = state.view !== "lines";
  const shown = shownHeads().map((head) => heads()[head]).join(", ");
  byId("view-name").textContent = `Layer ${numbers[state.layer]}, head${shownHeads().length > 1 ? "s" : ""} ${shown}`;
  markThumbnail();
}

let refused = 0;
/**
 * Writes the state into the address. Safari and Firefox refuse that after some hundred times in ten seconds: then later, but not
 * for ever, because a page that is part of another one may never do it.
 */
function remember(tries = 20) {
  clearTimeout(refused);
  if (location.hash === hash()) return;
  try {
    history.replaceState(null, "", hash());
  } catch {
    if (tries > 0) refused = setTimeout(remember, 1000, tries - 1);
  }
}

/** Changes the state and shows it. A head chosen in place of another takes its place among the lines. */
async function choose(change) {
  const { head } = state;
  Object.assign(state, change);
  if ("head" in change && !("heads" in change)) state.heads = state.heads.filter((shown) => shown !== head);
  check();
  drawControls();
  remember();
  const asked = JSON.stringify(state), shown = data, found = await load();
  if (asked !== JSON.stringify(state) || shown !== data) return; // something else was chosen meanwhile
  loaded = found;
  current = found.find(({ head }) => head === state.head);
  recolor();
  drawLegend();
  draw();
  if ("token" in change) revealToken();
}
let colored = ""; // what the colors were last mixed for
/** Mixes the colors and draws the thumbnails, if the theme or the shown tokens changed. */
function recolor() {
  const wanted = `${dark()} ${state.special}`;
  if (wanted === colored) return;
  colored = wanted;
  document.documentElement.dataset.theme = dark() ? "dark" : "light";
  mix();
  thumbnails.forEach(drawThumbnail);
}
