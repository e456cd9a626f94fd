// The map: one cell per query and key, enlarged by zoom. The box scrolls; the canvas is as large as the box and is drawn
// for its place, so that names stay in view and a map of any size fits into memory.

const map = { left: 0, top: 0, cell: 0, fit: 0 };
const SMALLEST_NAME = 11, NAMED = 14, LARGEST_CELL = 140;
const font = (size) => `${size}px system-ui, sans-serif`;
const mapImage = { of: "", canvas: document.createElement("canvas") };

function shorten(pen, name, room) {
  if (pen.measureText(name).width <= room) return name;
  const letters = [...name];
  while (letters.length && pen.measureText(letters.join("") + "…").width > room) letters.pop();
  return letters.join("") + "…";
}

/** Sets the size of a cell and the room for names. Returns the width and height of the whole map. */
function measureMap(pen) {
  const box = byId("map-room"), rows = queries.shown.length, columns = keys.shown.length;
  const [wide, high] = [box.parentElement.clientWidth - 2, Math.max(innerHeight * 0.65, 320)];
  const longest = (tokens) => {
    const labels = tokens.shown.slice(0, 80).map((place) => pen.measureText(tokens.labels[place]).width);
    return Math.min(Math.max(...labels) + 10, wide < 420 ? 84 : 104);
  };
  const fit = (left, top) => Math.min((wide - left - 4) / columns, (high - top - 4) / rows, LARGEST_CELL);
  pen.font = font(12);
  const [left, top] = [longest(queries), longest(keys)];
  const [named, bare] = [fit(left, top), fit(0, 0)];
  map.fit = named >= SMALLEST_NAME ? named : Math.min(bare, SMALLEST_NAME - 0.1);
  // The default has names if five times the fitting size is enough for them.
  const preset = map.fit >= SMALLEST_NAME || map.fit * 5 < NAMED ? map.fit : NAMED;
  const wanted = state.zoom === null ? preset : state.zoom === "fit" ? map.fit : state.zoom;
  map.cell = Math.max(Math.min(wanted, LARGEST_CELL), map.fit);
  [map.left, map.top] = map.cell >= SMALLEST_NAME ? [left, top] : [0, 0];
  const size = [map.left + map.cell * columns + 2, map.top + map.cell * rows + 2];
  box.style.height = `${Math.ceil(Math.min(size[1], high)) + (size[0] > wide ? 18 : 2)}px`;
  byId("zoom-in").disabled = map.cell >= LARGEST_CELL;
  byId("zoom-out").disabled = byId("zoom-fit").disabled = map.cell <= map.fit;
  return size;
}

function drawMap() {
  const canvas = byId("map"), box = byId("map-room"), pen = canvas.getContext("2d"), sharp = devicePixelRatio || 1;
  const [fullWide, fullHigh] = measureMap(pen);
  byId("map-space").style.width = `${fullWide}px`;
  byId("map-space").style.height = `${fullHigh}px`;
  const [wide, high] = [Math.min(fullWide, box.clientWidth), Math.min(fullHigh, box.clientHeight)];
  const pixels = [Math.ceil(wide * sharp), Math.ceil(high * sharp)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${high}px`;
  const name = `Map of layer ${data.layers[state.layer].layer}, head ${heads()[state.head]}`;
  canvas.setAttribute("aria-label", `${name}: arrow keys move from cell to cell`);
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.clearRect(0, 0, wide, high);
  pen.save();
  pen.beginPath();
  pen.rect(map.left, map.top, wide - map.left, high - map.top);
  pen.clip();
  pen.translate(map.left - box.scrollLeft, map.top - box.scrollTop);
  drawCells(pen, sharp);
  pen.restore();
  if (map.cell >= SMALLEST_NAME) drawNames(pen, wide, high);
}

function drawCells(pen, sharp) {
  const [across, down] = [map.cell * keys.shown.length, map.cell * queries.shown.length];
  pen.imageSmoothingEnabled = map.cell * sharp < 1;
  pen.drawImage(image(current), 0, 0, across, down);
  pen.strokeStyle = style("--line");
  pen.strokeRect(0, 0, across, down);
  pen.strokeStyle = style("--second");
  pen.setLineDash([6, 4]);
  pen.beginPath();
  const [row2, column2] = [border(queries), border(keys)];
  if (row2 !== null) { pen.moveTo(0, row2 * map.cell); pen.lineTo(across, row2 * map.cell); }
  if (column2 !== null) { pen.moveTo(column2 * map.cell, 0); pen.lineTo(column2 * map.cell, down); }
  pen.stroke();
  pen.setLineDash([]);
  pen.strokeStyle = pen.fillStyle = style("--mark");
  pen.lineWidth = 2;
  const row = queries.shown.indexOf(marked().query), column = keys.shown.indexOf(marked().key);
  if (map.cell >= 6) {
    if (row >= 0) pen.strokeRect(0, row * map.cell, across, map.cell);
    if (column >= 0) pen.strokeRect(column * map.cell, 0, map.cell, down);
  } else {
    // A frame would cover the cell that it marks.
    const middle = (i) => (i + 0.5) * map.cell - 1;
    if (row >= 0) for (const x of [0, across - 10]) pen.fillRect(x, middle(row), 10, 2);
    if (column >= 0) for (const y of [0, down - 10]) pen.fillRect(middle(column), y, 2, 10);
  }
  pen.lineWidth = 1;
}
/** The query and the key whose row and column are framed; -1 is none. */
function marked() {
  const { direction, token } = asking();
  return cell ?? (direction === "from" ? { query: token, key: -1 } : { query: -1, key: token });
}
/** The weights of the shown tokens, one pixel each. */
function image({ numbers, most }) {
  const of = `${state.layer} ${state.head} ${colored}`, { canvas } = mapImage;
  if (mapImage.of === of) return canvas;
  mapImage.of = of;
  const [rows, columns] = [queries.shown, keys.shown];
  [canvas.width, canvas.height] = [columns.length, rows.length];
  const kept = rows.flatMap((query) => columns.map((key) => numbers[query * keys.names.length + key]));
  canvas.getContext("2d").putImageData(picture(kept, columns.length, rows.length, most), 0, 0);
  return canvas;
}

function drawNames(pen, wide, high) {
  const box = byId("map-room"), [ink, soft, mark, second] = ["--ink", "--soft", "--mark", "--second"].map(style);
  const fill = (tokens, place, chosen) => {
    const special = tokens.has(place, SPECIAL);
    pen.fillStyle = place === chosen ? mark : special ? soft : tokens.has(place, SECOND) ? second : ink;
  };
  const clipped = (x, y, w, h, paint) => {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, h);
    pen.clip();
    paint();
    pen.restore();
  };
  const visible = (at, size) => at > -map.cell && at < size + map.cell;
  pen.font = font(Math.min(12, map.cell));
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  clipped(0, map.top, map.left, high - map.top, () => queries.shown.forEach((place, i) => {
    const y = map.top + (i + 0.5) * map.cell - box.scrollTop;
    if (!visible(y, high)) return;
    fill(queries, place, marked().query);
    pen.direction = writing(queries.labels[place]);
    pen.fillText(shorten(pen, queries.labels[place], map.left - 8), map.left - 5, y);
  }));
  pen.textAlign = "left";
  clipped(map.left, 0, wide - map.left, map.top, () => keys.shown.forEach((place, i) => {
    const x = map.left + (i + 0.5) * map.cell - box.scrollLeft;
    if (!visible(x, wide)) return;
    fill(keys, place, marked().key);
    pen.direction = writing(keys.labels[place]);
    pen.save();
    pen.translate(x, map.top - 5);
    pen.rotate(-Math.PI / 2);
    pen.fillText(shorten(pen, keys.labels[place], map.top - 8), 0, 0);
    pen.restore();
  }));
}

function cellAt(event) {
  const box = byId("map").getBoundingClientRect(), room = byId("map-room");
  const [x, y] = [event.clientX - box.left - map.left, event.clientY - box.top - map.top];
  if (x < 0 || y < 0) return null;
  const key = keys.shown[Math.floor((x + room.scrollLeft) / map.cell)];
  const query = queries.shown[Math.floor((y + room.scrollTop) / map.cell)];
  return key === undefined || query === undefined ? null : { query, key };
}
/** Scrolls the box so that a cell is in view: at its edge, or from further away in the middle. */
function reveal({ query, key }, middle = false) {
  const box = byId("map-room"), [row, column] = [queries.shown.indexOf(query), keys.shown.indexOf(key)];
  const within = (scroll, at, room) => {
    const [start, end] = [at * map.cell, (at + 1) * map.cell - room];
    if (end <= scroll && scroll <= start) return scroll;
    return middle ? (start + end) / 2 : Math.max(Math.min(scroll, start), end);
  };
  box.scrollTop = within(box.scrollTop, row, box.clientHeight - map.top);
  box.scrollLeft = within(box.scrollLeft, column, box.clientWidth - map.left);
}

/** Scrolls a list so that one of its items is in the middle, without moving the page. */
function scrollTo(list, item) {
  const [box, at] = [list.getBoundingClientRect(), item.getBoundingClientRect()];
  if (at.top < box.top || at.bottom > box.bottom) list.scrollTop += (at.top + at.bottom - box.top - box.bottom) / 2;
}
/** Scrolls all lists and the map to the chosen token; the map also to its largest weight. */
function revealToken() {
  const { direction, token } = state, tokens = asks(direction), others = answers(direction);
  scrollTo(byId(tokens.id), tokens.items[token]);
  if (state.view === "lines") return scrollTo(byId("lines-room"), lists[direction].children[token]);
  const weight = (place) => weightOf(current.numbers, state, place);
  const other = others.shown.reduce((best, place) => (weight(place) > weight(best) ? place : best));
  if (!cell) reveal(direction === "from" ? { query: token, key: other } : { query: other, key: token }, true);
}

let remembering = 0;
/** Changes the size of cells, keeping in place what is at a point of the screen, by default the middle of the box. */
function zoom(size, event = null) {
  if (!current || state.view !== "map") return;
  const box = byId("map-room"), frame = box.getBoundingClientRect(), before = map.cell;
  const x = (event ? event.clientX - frame.left : box.clientWidth / 2) - map.left;
  const y = (event ? event.clientY - frame.top : box.clientHeight / 2) - map.top;
  const [column, row] = [(box.scrollLeft + x) / before, (box.scrollTop + y) / before];
  state.zoom = size === "fit" ? size : Math.round(Math.max(Math.min(size, LARGEST_CELL), map.fit) * 10) / 10;
  drawMap();
  [box.scrollLeft, box.scrollTop] = [column * map.cell - x, row * map.cell - y];
  drawMap();
  // Browsers limit how often the address changes, and a pinch has many steps.
  clearTimeout(remembering);
  remembering = setTimeout(() => choose({}), 200);
}
