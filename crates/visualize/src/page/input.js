// What the reader does: pointer, touch and keyboard.

const placeOf = (event) => {
  const item = event.target.closest("[data-place]");
  return item ? Number(item.dataset.place) : null;
};
/** A list of tokens to point at and to choose from. */
function listen(list, directionOf) {
  list.addEventListener("pointerover", (event) => {
    const token = placeOf(event);
    if (event.pointerType === "mouse" && token !== null) hover({ direction: directionOf(), token });
  });
  list.addEventListener("pointerleave", () => hover(null));
  list.addEventListener("click", (event) => {
    const token = placeOf(event);
    if (token === null) return;
    hover(null);
    choose({ direction: directionOf(), token });
  });
}
listen(byId("queries"), () => (selfAttention ? state.direction : "from"));
listen(byId("keys"), () => "to");
for (const direction of ["from", "to"]) {
  listen(lists[direction], () => direction);
  lists[direction].addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    if (state.direction === direction) stepToken(by);
    else choose({ direction });
  });
}

/** Chooses the shown token some places after the chosen one. */
function stepToken(by) {
  hover(null);
  const tokens = asks(state.direction), at = tokens.shown.indexOf(state.token) + by;
  choose({ token: tokens.shown[Math.min(Math.max(at, 0), tokens.shown.length - 1)] });
}

// The map.
byId("map").addEventListener("pointermove", (event) => {
  if (event.pointerType === "mouse") point(current && cellAt(event), event);
});
byId("map").addEventListener("pointerleave", (event) => {
  if (event.pointerType === "mouse") point(null);
});
byId("map").addEventListener("click", (event) => {
  const at = current && cellAt(event);
  if (!at) return;
  choose({ token: state.direction === "from" ? at.query : at.key });
  point(at, event);
});
document.addEventListener("pointerdown", (event) => { if (cell && event.target !== byId("map")) point(null); });
byId("map").addEventListener("keydown", (event) => {
  const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [];
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = ({ shown }, place, by) => shown[Math.min(Math.max(shown.indexOf(place) + by, 0), shown.length - 1)];
  if (down !== undefined) {
    const start = { query: queries.shown[0], key: keys.shown[0] };
    start[state.direction === "from" ? "query" : "key"] = state.token;
    const to = cell ? { query: step(queries, cell.query, down), key: step(keys, cell.key, right) } : start;
    reveal(to);
    point(to);
  } else if (event.key === "Enter" && cell) choose({ token: state.direction === "from" ? cell.query : cell.key });
  else if (event.key === "Escape") point(null);
  else return;
  event.preventDefault();
  event.stopPropagation();
});
byId("map").addEventListener("blur", () => point(null));
for (const room of ["map-room", "lines-room"]) byId(room).addEventListener("scroll", () => { if (current) drawView(); });
byId("map-room").addEventListener("wheel", (event) => {
  if (!event.ctrlKey) return; // a pinch on a touch pad
  event.preventDefault();
  zoom(map.cell * Math.exp(-event.deltaY / 100), event);
}, { passive: false });
let pinch = null; // the distance of two fingers, and the size of a cell at its start
byId("map-room").addEventListener("touchmove", (event) => {
  if (event.touches.length !== 2) { pinch = null; return; }
  event.preventDefault();
  const [a, b] = event.touches, distance = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
  pinch ??= { distance, cell: map.cell };
  zoom((pinch.cell * distance) / pinch.distance, { clientX: (a.clientX + b.clientX) / 2, clientY: (a.clientY + b.clientY) / 2 });
}, { passive: false });
byId("map-room").addEventListener("touchend", () => { pinch = null; });

// The lines.
byId("heads").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) toggleHead(Number(button.dataset.head));
});
byId("heads-all").addEventListener("click", () => choose({ heads: heads().map((_, head) => head) }));
byId("heads-one").addEventListener("click", () => choose({ heads: [state.head] }));

// The overview.
byId("overview").addEventListener("click", (event) => {
  const at = event.target.closest("button")?.dataset.at;
  if (at) { const [layer, head] = at.split("-").map(Number); choose({ layer, head }); }
});
byId("overview").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation();
  choose({ layer: state.layer + step[0], head: state.head + step[1] });
  byId("overview").querySelector("[aria-current=true]").focus();
});

// The controls, each with what it does and, for some, its key on the whole page.
const turn = {
  direction: () => choose({ direction: state.direction === "from" ? "to" : "from" }),
  view: () => choose({ view: state.view === "map" ? "lines" : "map" }),
  special: () => choose({ special: !state.special }),
  lines: () => choose({ lines: state.lines === "all" ? "token" : "all" }),
};
const stepHead = (by) => choose({ head: state.head + by });
const stepLayer = (by) => choose({ layer: state.layer + by });
const buttons = {
  "layer-back": () => stepLayer(-1), "layer-on": () => stepLayer(1), "head-back": () => stepHead(-1), "head-on": () => stepHead(1),
  "from": () => choose({ direction: "from" }), "to": () => choose({ direction: "to" }),
  "view-map": () => choose({ view: "map" }), "view-lines": () => choose({ view: "lines" }),
  "special": turn.special, "lines-only": turn.lines,
  "zoom-in": () => zoom(map.cell * 1.5), "zoom-out": () => zoom(map.cell / 1.5), "zoom-fit": () => zoom("fit"),
  "all": () => choose({ list: state.list === "all" ? "first" : "all" }),
  "save-svg": () => save("svg"), "save-png": () => save("png"),
  "theme": () => choose({ theme: dark() ? "light" : "dark" }),
};
for (const [id, press] of Object.entries(buttons)) byId(id).addEventListener("click", press);
byId("layer").addEventListener("change", (event) => choose({ layer: Number(event.target.value) }));
byId("head").addEventListener("change", (event) => choose({ head: Number(event.target.value) }));
const side = () => (byId(asks(state.direction).id).dir === "rtl" ? -1 : 1);
const shortcuts = {
  ArrowLeft: () => stepToken(-side()), ArrowRight: () => stepToken(side()),
  Home: () => stepToken(-Infinity), End: () => stepToken(Infinity),
  j: () => stepHead(1), k: () => stepHead(-1), J: () => stepLayer(1), K: () => stepLayer(-1),
  d: turn.direction, v: turn.view, s: turn.special,
  "+": buttons["zoom-in"], "-": buttons["zoom-out"], "0": buttons["zoom-fit"],
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
  if (!Object.hasOwn(shortcuts, event.key)) return;
  shortcuts[event.key]();
  event.preventDefault();
});
system.addEventListener("change", () => choose({}));
addEventListener("resize", () => { layOut(); schedule(); });
addEventListener("hashchange", fromHash);
