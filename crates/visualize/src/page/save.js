// The view as a picture: as SVG, and as PNG made of it.

const NAMESPACE = "http://www.w3.org/2000/svg";
const EDGE = 16, ROW = 22, BETWEEN = 260, LONGEST = 150; // pixels
const measure = document.createElement("canvas").getContext("2d");
/** A color as every reader of SVG knows it. */
function plain(color) {
  measure.fillStyle = color;
  return measure.fillStyle;
}

function node(name, attributes, ...children) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
/** Text of at most `room` pixels, with a tenth more for other fonts. */
function words(x, y, content, room = Infinity, attributes = {}) {
  measure.font = font(attributes["font-size"] ?? 12);
  return node("text", { x, y, fill: plain(style("--ink")), ...attributes }, shorten(measure, content, room / 1.1));
}
function roomFor(tokens) {
  measure.font = font(12);
  return Math.min(Math.max(...tokens.shown.map((place) => 1.1 * measure.measureText(tokens.labels[place]).width)) + 10, LONGEST);
}
function name(tokens, place, chosen, x, y, attributes) {
  const [ink, soft, mark, second] = ["--ink", "--soft", "--mark", "--second"].map((name) => plain(style(name)));
  const special = tokens.has(place, SPECIAL) ? soft : tokens.has(place, SECOND) ? second : ink;
  return words(x, y, tokens.labels[place], LONGEST - 10, { fill: place === chosen ? mark : special, ...attributes });
}
/** A bar of the colors at levels from 0 to 1, with the weight at each tick. */
function legend(x, y, stops, weightAt) {
  const colors = node("linearGradient", { id: "scale" }, ...stops.map((stop, i) => node("stop", { offset: i / (stops.length - 1), ...stop })));
  const ticks = TICKS.map((at) => words(x + 200 * at, y + 28, at === 0 ? "0" : text(weightAt(at)), Infinity, { "font-size": 10, "text-anchor": "middle" }));
  return [node("defs", {}, colors), words(x, y, "Attention weight", Infinity, { fill: plain(style("--soft")), "font-size": 11 }),
    node("rect", { x, y: y + 6, width: 200, height: 10, fill: "url(#scale)", stroke: plain(style("--line")) }), ...ticks];
}

/** The map: for each color one path of strokes as wide as a cell. Returns its elements, width and height. */
function mapPicture(top) {
  const [rows, columns] = [queries.shown, keys.shown], cell = Math.max(Math.min(Math.floor(560 / Math.max(rows.length, columns.length)), 36), 4);
  const named = cell >= 10, [left, above] = named ? [roomFor(queries), roomFor(keys)] : [0, 0];
  const [wide, high, x, y] = [cell * columns.length, cell * rows.length, EDGE + left, top + above];
  const paths = new Map(), { query: row, key: column } = marked();
  rows.forEach((query, i) => columns.forEach((key, j) => {
    const level = shade(current.numbers[query * keys.names.length + key], current.most);
    if (level > 0) paths.set(level, `${paths.get(level) ?? ""}M${j} ${i}h1`);
  }));
  const frame = (x, y, width, height, color) => node("rect", { x, y, width, height, fill: "none", stroke: plain(style(color)) });
  const color = (level) => plain(inks[level][0]), middle = (i) => (i + 0.5) * cell;
  const cells = [...paths].map(([level, d]) => node("path", { d, stroke: color(level) }));
  const made = [
    node("rect", { x, y, width: wide, height: high, fill: color(0) }),
    node("g", { transform: `translate(${x} ${y + cell / 2}) scale(${cell})`, "shape-rendering": "crispEdges" }, ...cells), frame(x, y, wide, high, "--line"),
  ];
  const second = (d) => node("path", { d, stroke: plain(style("--second")), "stroke-dasharray": "6 4" });
  if (border(queries) !== null) made.push(second(`M${x} ${y + border(queries) * cell}h${wide}`));
  if (border(keys) !== null) made.push(second(`M${x + border(keys) * cell} ${y}v${high}`));
  if (row >= 0) made.push(frame(x, y + rows.indexOf(row) * cell, wide, cell, "--mark"));
  if (column >= 0) made.push(frame(x + columns.indexOf(column) * cell, y, cell, high, "--mark"));
  if (named) {
    rows.forEach((place, i) => made.push(name(queries, place, row, x - 6, y + middle(i) + 4, { "text-anchor": "end" })));
    columns.forEach((place, j) => made.push(name(keys, place, column, 0, 0, { transform: `translate(${x + middle(j) + 4} ${y - 6}) rotate(-90)` })));
  }
  const ramp = (dark() ? data.dark : data.light).map((stop) => ({ "stop-color": plain(`rgb(${stop.join(" ")})`) }));
  made.push(...legend(x, y + high + 26, ramp, (level) => current.most * level * level));
  return [made, x + Math.max(wide, 216), y + high + 60];
}

/** The lines, and the color of each head. */
function linesPicture(top) {
  const [left, right] = [EDGE + roomFor(queries), EDGE + roomFor(queries) + BETWEEN], most = mostShown(), made = [];
  const { direction, token } = asking(), y = (tokens, place) => top + (tokens.shown.indexOf(place) + 0.5) * ROW;
  const focused = hovered !== null || state.lines === "token";
  for (const { numbers, head } of loaded) {
    const group = node("g", { stroke: plain(headColor(head)), "stroke-width": 1.5 });
    for (const asked of focused ? [token] : asks(direction).shown) for (const other of answers(direction).shown) {
      const opacity = most > 0 ? Math.min(weightOf(numbers, { direction, token: asked }, other) / most, 1) : 0;
      const [query, key] = direction === "from" ? [asked, other] : [other, asked];
      if (opacity >= FAINTEST) group.append(node("path", { d: `M${left} ${y(queries, query)}L${right} ${y(keys, key)}`, "stroke-opacity": opacity.toFixed(3) }));
    }
    made.push(group);
  }
  const chosen = (side) => (direction === side ? token : -1);
  for (const place of queries.shown) made.push(name(queries, place, chosen("from"), left - 6, y(queries, place) + 4, { "text-anchor": "end" }));
  for (const place of keys.shown) made.push(name(keys, place, chosen("to"), right + 6, y(keys, place) + 4, {}));
  const end = top + ROW * Math.max(queries.shown.length, keys.shown.length) + 26, ink = plain(style("--ink"));
  made.push(...legend(left, end, [{ "stop-color": ink, "stop-opacity": 0 }, { "stop-color": ink }], (opacity) => most * opacity));
  shownHeads().forEach((head, i) => {
    const [x, at] = [left + (i % 4) * 70, end + 50 + Math.floor(i / 4) * 18];
    made.push(node("rect", { x, y: at - 9, width: 10, height: 10, fill: plain(headColor(head)) }), words(x + 15, at, `head ${heads()[head]}`));
  });
  return [made, Math.max(right + roomFor(keys), left + 280), end + 50 + 18 * Math.ceil(state.heads.length / 4)];
}

/** The view as SVG, with its width and height. */
function pictureOfView() {
  const parts = [byId("view-name").textContent, data.model, canHide && !state.special ? "special tokens hidden" : "", data.truncation?.note];
  const about = parts.filter(Boolean).join(" · ");
  measure.font = font(12);
  const [made, wide, high] = (state.view === "map" ? mapPicture : linesPicture)(EDGE + 50);
  const least = Math.min(1.1 * measure.measureText(about).width + 2 * EDGE, 640);
  const [width, height] = [Math.ceil(Math.max(wide + EDGE, least)) + 1, Math.ceil(high + EDGE)], room = width - 2 * EDGE;
  const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": "system-ui, sans-serif", "font-size": 12 },
    node("rect", { width, height, fill: plain(style("--card")) }),
    words(EDGE, EDGE + 12, data.title, room, { "font-size": 14, "font-weight": "bold" }),
    words(EDGE, EDGE + 30, about, room, { fill: plain(style("--soft")) }), ...made);
  return { svg: new XMLSerializer().serializeToString(svg), width, height };
}

async function png({ svg, width, height }) {
  const image = new Image(), canvas = document.createElement("canvas"), sharp = Math.min(2, 8192 / Math.max(width, height));
  image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
  await image.decode();
  [canvas.width, canvas.height] = [width * sharp, height * sharp];
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}
/** Saves the view as a file of a kind, `svg` or `png`. */
async function save(kind) {
  const picture = pictureOfView(), link = document.createElement("a");
  const file = kind === "svg" ? new Blob([picture.svg], { type: "image/svg+xml" }) : await png(picture);
  link.href = URL.createObjectURL(file);
  link.download = `attention-layer-${data.layers[state.layer].layer}-head-${shownHeads().map((head) => heads()[head]).join("-")}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
