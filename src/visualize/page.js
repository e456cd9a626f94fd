"use strict";
(() => {
  const UNITS = 10000; // weights are whole numbers of these
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const queries = data.queries, keys = data.keys ?? data.queries, self = data.keys === null;
  const state = { layer: 0, head: 0, query: 0 }; // places in the lists, not numbers
  let hovered = null, pointed = null, all = false, shown = null;

  // Isolated, so that a right-to-left token does not reorder the text beside it.
  const quoted = (token) => `“\u2068${token}\u2069”`;
  const text = (units) => (units / UNITS).toFixed(4);

  // Attention weights, unpacked when first shown; the latest are kept.
  const unpacked = new Map(), KEPT = 24;
  function weights(layer, head) {
    const id = `w${layer}-${head}`;
    const found = unpacked.get(id) ?? unpack(byId(id).textContent);
    unpacked.delete(id);
    unpacked.set(id, found);
    if (unpacked.size > KEPT) unpacked.delete(unpacked.keys().next().value);
    return found;
  }
  async function unpack(base64) {
    const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
    const count = bytes.length / 2, numbers = new Uint16Array(count);
    let most = 0;
    for (let i = 0; i < count; i++) {
      numbers[i] = bytes[i] | (bytes[count + i] << 8);
      if (numbers[i] > most) most = numbers[i];
    }
    return { numbers, most };
  }

  // Colors.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  function color(level) {
    const ramp = dark() ? data.dark : data.light;
    const at = Math.min(Math.max(level, 0), 1) * (ramp.length - 1);
    const low = Math.min(Math.floor(at), ramp.length - 2);
    return ramp[low].map((a, i) => Math.round(a + (ramp[low + 1][i] - a) * (at - low)));
  }
  const level = (weight, most) => (most > 0 ? Math.sqrt(weight / most) : 0);
  const light = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 118;
  const style = (name) => getComputedStyle(document.body).getPropertyValue(name);
  // The colors of 256 levels: as canvas pixels, and the text color that is legible on each.
  const palette = new Uint32Array(256), inks = [];
  function mix() {
    const bytes = new Uint8ClampedArray(palette.buffer);
    for (let i = 0; i < 256; i++) {
      const mixed = color(i / 255);
      bytes.set([...mixed, 255], 4 * i);
      inks[i] = [`rgb(${mixed})`, light(mixed) ? "#101418" : "#f6f8fa"];
    }
  }
  const shade = (weight, most) => Math.round(255 * level(weight, most));
  function picture(numbers, columns, rows, most) {
    const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
    for (let i = 0; i < pixels.length; i++) pixels[i] = palette[shade(numbers[i], most)];
    return image;
  }

  // Tokens.
  const ofTheRight = (token) => /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(token);
  function fill(list, tokens, role) {
    list.dir = tokens.filter(ofTheRight).length * 2 > tokens.length ? "rtl" : "ltr";
    list.replaceChildren(...tokens.map((token, i) => {
      const item = document.createElement("span");
      item.textContent = token;
      item.dataset.place = i;
      if (role) { item.id = `q${i}`; item.setAttribute("role", "option"); }
      return item;
    }));
  }
  const place = (event) => {
    const item = event.target.closest("[data-place]");
    return item ? Number(item.dataset.place) : null;
  };
  const asking = () => hovered ?? state.query;

  // Layer and head selection.
  function fillSelect(select, numbers, chosen) {
    select.replaceChildren(...numbers.map((number, i) => new Option(number, i, false, i === chosen)));
  }
  const heads = () => data.layers[state.layer].heads;

  async function choose(change) {
    Object.assign(state, change);
    const clamp = (i, n) => (Number.isFinite(i) ? Math.min(Math.max(Math.trunc(i), 0), n - 1) : 0);
    state.layer = clamp(state.layer, data.layers.length);
    state.head = clamp(state.head, heads().length);
    state.query = clamp(state.query, queries.length);
    fillSelect(byId("layer"), data.layers.map((l) => l.layer), state.layer);
    fillSelect(byId("head"), heads(), state.head);
    byId("layer-back").disabled = state.layer === 0;
    byId("layer-on").disabled = state.layer === data.layers.length - 1;
    byId("head-back").disabled = state.head === 0;
    byId("head-on").disabled = state.head === heads().length - 1;
    byId("queries").setAttribute("aria-activedescendant", `q${state.query}`);
    for (const button of byId("overview").querySelectorAll("button")) {
      const current = button.dataset.at === `${state.layer}-${state.head}`;
      if (current !== (button.getAttribute("aria-current") === "true")) button.setAttribute("aria-current", current);
      button.tabIndex = current ? 0 : -1;
    }
    const { layer, heads: numbers } = data.layers[state.layer];
    const hash = `#layer=${layer}&head=${numbers[state.head]}&token=${state.query}`;
    if (location.hash !== hash) history.replaceState(null, "", hash);
    const asked = `${state.layer}-${state.head}`;
    const found = await weights(state.layer, state.head);
    if (asked !== `${state.layer}-${state.head}`) return; // another head was chosen meanwhile
    shown = found;
    shown.image = null;
    byId("most").textContent = text(shown.most);
    draw();
  }
  function fromHash() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const layer = Math.max(data.layers.findIndex((l) => String(l.layer) === wanted.get("layer")), 0);
    const head = Math.max(data.layers[layer].heads.findIndex((h) => String(h) === wanted.get("head")), 0);
    return choose({ layer, head, query: Number(wanted.get("token") ?? 0) });
  }

  /** What depends on the token that asks. */
  function draw() {
    if (!shown) return;
    const query = asking(), row = shown.numbers.subarray(query * keys.length, (query + 1) * keys.length);
    const items = byId(self ? "queries" : "keys").children;
    for (let i = 0; i < keys.length; i++) {
      [items[i].style.background, items[i].style.color] = inks[shade(row[i], shown.most)];
      items[i].title = text(row[i]);
      items[i].classList.toggle("pointed", i === pointed);
    }
    const asks = byId("queries").children;
    for (let i = 0; i < queries.length; i++) {
      asks[i].classList.toggle("asks", i === query);
      asks[i].setAttribute("aria-selected", i === state.query);
    }
    drawList(row, query);
    drawMap();
  }

  const FIRST = keys.length <= 16 ? 16 : 12;
  function drawList(row, query) {
    byId("list-name").textContent = `${quoted(queries[query])} (${query}) looks at`;
    const order = [...row.keys()].sort((a, b) => row[b] - row[a] || a - b);
    const listed = all ? order : order.slice(0, FIRST);
    const cell = (tag, value, name) => {
      const cell = document.createElement(tag);
      cell.textContent = value;
      cell.className = name;
      return cell;
    };
    byId("list").tBodies[0].replaceChildren(...listed.map((key) => {
      const line = document.createElement("tr"), bar = cell("td", "", "bar");
      bar.append(document.createElement("i"));
      bar.firstChild.style.width = `${(100 * row[key]) / UNITS}%`;
      line.append(cell("td", keys[key], ""), cell("td", key, "number"), cell("td", text(row[key]), "number weight"), bar);
      return line;
    }));
    byId("all").hidden = keys.length <= FIRST;
    byId("all").textContent = all ? `Show the first ${FIRST}` : `Show all ${keys.length}`;
  }

  // The map: an image with one pixel per attention weight, enlarged, with labels where there is room.
  const map = { x: 0, y: 0, cell: 0 };
  const SMALLEST_NAME = 11;
  function shorten(pen, name, room) {
    if (pen.measureText(name).width <= room) return name;
    const letters = [...name];
    while (letters.length && pen.measureText(letters.join("") + "…").width > room) letters.pop();
    return letters.join("") + "…";
  }
  function drawMap() {
    const canvas = byId("map"), pen = canvas.getContext("2d"), sharp = devicePixelRatio || 1;
    const room = byId("map-room").clientWidth;
    const font = (size) => `${size}px system-ui, sans-serif`;
    pen.font = font(12);
    const longest = (names) => Math.min(Math.max(...names.slice(0, 80).map((n) => pen.measureText(n).width)) + 8, 96);
    map.x = longest(queries);
    map.y = longest(keys);
    map.cell = Math.min((room - map.x - 2) / keys.length, 28);
    const named = map.cell >= SMALLEST_NAME;
    if (!named) {
      map.x = map.y = 0;
      map.cell = Math.min((room - 2) / keys.length, 720 / queries.length, 28);
    }
    const wide = map.x + map.cell * keys.length + 2, high = map.y + map.cell * queries.length + 2;
    const pixels = [Math.ceil(wide * sharp), Math.ceil(high * sharp)];
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    canvas.style.width = `${wide}px`;
    canvas.style.height = `${high}px`;
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, wide, high);
    if (!shown.image) {
      shown.image = document.createElement("canvas");
      [shown.image.width, shown.image.height] = [keys.length, queries.length];
      const image = picture(shown.numbers, keys.length, queries.length, shown.most);
      shown.image.getContext("2d").putImageData(image, 0, 0);
    }
    pen.imageSmoothingEnabled = map.cell * sharp < 1;
    pen.drawImage(shown.image, map.x, map.y, map.cell * keys.length, map.cell * queries.length);
    pen.strokeStyle = style("--line");
    pen.strokeRect(map.x, map.y, map.cell * keys.length, map.cell * queries.length);
    pen.strokeStyle = pen.fillStyle = style("--mark");
    pen.lineWidth = 2;
    if (map.cell >= 6) {
      pen.strokeRect(map.x, map.y + asking() * map.cell, map.cell * keys.length, map.cell);
      if (pointed !== null) pen.strokeRect(map.x + pointed * map.cell, map.y, map.cell, map.cell * queries.length);
    } else {
      // A frame would cover the cell that it marks.
      const middle = (i) => (i + 0.5) * map.cell - 1;
      for (const x of [0, wide - 10]) pen.fillRect(x, middle(asking()), 10, 2);
      if (pointed !== null) for (const y of [0, high - 10]) pen.fillRect(middle(pointed), y, 2, 10);
    }
    pen.lineWidth = 1;
    if (!named) return;
    pen.font = font(Math.min(12, map.cell));
    pen.textBaseline = "middle";
    const [ink, mark] = [style("--ink"), style("--mark")];
    pen.textAlign = "right";
    queries.forEach((name, i) => {
      pen.fillStyle = i === asking() ? mark : ink;
      pen.fillText(shorten(pen, name, map.x - 6), map.x - 5, map.y + (i + 0.5) * map.cell);
    });
    pen.textAlign = "left";
    keys.forEach((name, i) => {
      pen.fillStyle = i === pointed ? mark : ink;
      pen.save();
      pen.translate(map.x + (i + 0.5) * map.cell, map.y - 5);
      pen.rotate(-Math.PI / 2);
      pen.fillText(shorten(pen, name, map.y - 6), 0, 0);
      pen.restore();
    });
  }
  function cellAt(event) {
    const box = byId("map").getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - map.x) / map.cell);
    const query = Math.floor((event.clientY - box.top - map.y) / map.cell);
    return key >= 0 && key < keys.length && query >= 0 && query < queries.length ? { key, query } : null;
  }
  function point(query, key) {
    if (query === hovered && key === pointed) return;
    [hovered, pointed] = [query, key];
    byId("readout").textContent = key === null ? "Point at a cell."
      : `${quoted(queries[query])} (${query}) → ${quoted(keys[key])} (${key}): ${text(shown.numbers[query * keys.length + key])}`;
    schedule();
  }
  let scheduled = false;
  function schedule() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => { scheduled = false; draw(); });
  }

  // The overview: one thumbnail per head, drawn one after another; a pixel is the largest attention weight of its block.
  const SMALL = 48, smalls = new Map();
  function small({ numbers, most }) {
    const columns = Math.min(keys.length, SMALL), rows = Math.min(queries.length, SMALL);
    const blocks = new Uint16Array(columns * rows);
    for (let q = 0; q < queries.length; q++) {
      const start = Math.floor((q * rows) / queries.length) * columns;
      for (let k = 0; k < keys.length; k++) {
        const at = start + Math.floor((k * columns) / keys.length), weight = numbers[q * keys.length + k];
        if (weight > blocks[at]) blocks[at] = weight;
      }
    }
    return { blocks, columns, rows, most };
  }
  function drawSmall(canvas, { blocks, columns, rows, most }) {
    [canvas.width, canvas.height] = [columns, rows];
    canvas.getContext("2d").putImageData(picture(blocks, columns, rows, most), 0, 0);
  }
  async function overview() {
    const grid = byId("overview"), columns = Math.max(...data.layers.map((l) => l.heads.length));
    const room = byId("overview-room").clientWidth - 60;
    const size = Math.min(Math.max(Math.floor(room / columns) - 3, 24), 84);
    grid.style.gridTemplateColumns = `auto repeat(${columns}, ${size}px)`;
    const label = (value) => Object.assign(document.createElement("b"), { textContent: value });
    const canvases = [];
    data.layers.forEach(({ layer, heads }, i) => {
      grid.append(label(layer));
      heads.forEach((head, j) => {
        const button = document.createElement("button"), canvas = document.createElement("canvas");
        button.type = "button";
        button.dataset.at = `${i}-${j}`;
        button.title = `Layer ${layer}, head ${head}`;
        button.setAttribute("aria-label", button.title);
        button.style.height = `${Math.round(size * Math.min(queries.length / keys.length, 1.5))}px`;
        button.append(canvas);
        grid.append(button);
        canvases.push([i, j, canvas]);
      });
      for (let j = heads.length; j < columns; j++) grid.append(label(""));
    });
    await choose({});
    for (const [i, j, canvas] of canvases) {
      // Not cached: the cache is for the selected heads.
      const found = small(await (unpacked.get(`w${i}-${j}`) ?? unpack(byId(`w${i}-${j}`).textContent)));
      smalls.set(canvas, found);
      drawSmall(canvas, found);
      await new Promise((next) => setTimeout(next));
    }
    document.documentElement.dataset.ready = "";
  }

  function recolor() {
    mix();
    const pen = byId("ramp").getContext("2d"), width = byId("ramp").width;
    for (let x = 0; x < width; x++) {
      pen.fillStyle = `rgb(${color(x / (width - 1))})`;
      pen.fillRect(x, 0, 1, byId("ramp").height);
    }
    for (const [canvas, found] of smalls) drawSmall(canvas, found);
    if (shown) shown.image = null;
    draw();
  }

  // User input.
  const list = byId("queries");
  list.addEventListener("pointerover", (event) => {
    if (event.pointerType === "mouse" && place(event) !== null) point(place(event), null);
  });
  list.addEventListener("pointerleave", () => point(null, null));
  list.addEventListener("click", (event) => {
    if (place(event) !== null) { point(null, null); choose({ query: place(event) }); }
  });
  const stepQuery = (key) => {
    const on = list.dir === "rtl" ? -1 : 1;
    const to = { ArrowLeft: state.query - on, ArrowRight: state.query + on, Home: 0, End: queries.length - 1 }[key];
    if (to === undefined) return false;
    point(null, null);
    choose({ query: to });
    list.children[state.query].scrollIntoView({ block: "nearest" });
    return true;
  };
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
  byId("map").addEventListener("pointermove", (event) => {
    const at = shown && cellAt(event);
    if (at) point(at.query, at.key); else point(null, null);
  });
  byId("map").addEventListener("pointerleave", () => point(null, null));
  byId("map").addEventListener("click", (event) => {
    const at = cellAt(event);
    if (at) { choose({ query: at.query }); point(at.query, at.key); }
  });
  byId("layer").addEventListener("change", (event) => choose({ layer: Number(event.target.value) }));
  byId("head").addEventListener("change", (event) => choose({ head: Number(event.target.value) }));
  for (const [name, by] of [["back", -1], ["on", 1]]) {
    byId(`layer-${name}`).addEventListener("click", () => choose({ layer: state.layer + by }));
    byId(`head-${name}`).addEventListener("click", () => choose({ head: state.head + by }));
  }
  byId("all").addEventListener("click", () => { all = !all; draw(); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
    const steps = { j: { head: state.head + 1 }, k: { head: state.head - 1 }, J: { layer: state.layer + 1 }, K: { layer: state.layer - 1 } };
    if (steps[event.key]) choose(steps[event.key]);
    else if (!stepQuery(event.key)) return;
    event.preventDefault();
  });
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    recolor();
  });
  system.addEventListener("change", recolor);
  addEventListener("resize", schedule);
  addEventListener("hashchange", fromHash);

  const title = byId("title");
  title.textContent = data.title;
  title.hidden = !data.title;
  byId("readout").textContent = "Point at a cell.";
  byId("tokens-hint").textContent = "Point at a token to see where it looks; click or tap to keep it.";
  fill(list, queries, true);
  byId("keys-part").hidden = self;
  if (!self) fill(byId("keys"), keys, false);
  recolor();
  fromHash().then(overview);
})();
