// The overview: one thumbnail per head, drawn one after another, that of the chosen head first. A pixel is the largest attention weight of its block.

const SMALL = 48, TARGET = 47, thumbnails = [];

function thumbnail(numbers, rows, columns) {
  const [wide, high] = [Math.min(columns.length, SMALL), Math.min(rows.length, SMALL)];
  const blocks = new Uint16Array(wide * high);
  rows.forEach((query, i) => {
    const start = Math.floor((i * high) / rows.length) * wide, row = query * keys.names.length;
    columns.forEach((key, j) => {
      const at = start + Math.floor((j * wide) / columns.length), weight = numbers[row + key];
      if (weight > blocks[at]) blocks[at] = weight;
    });
  });
  return { blocks, wide, high, most: blocks.reduce((most, weight) => Math.max(most, weight), 0) };
}
function drawThumbnail({ canvas, all, withoutSpecial }) {
  const found = state.special ? all : withoutSpecial;
  if (!found) return; // not read yet
  [canvas.width, canvas.height] = [found.wide, found.high];
  canvas.getContext("2d").putImageData(picture(found.blocks, found.wide, found.high, found.most), 0, 0);
}

/** A row per layer and a column per head; on a narrow screen the heads of a layer take several lines, each with its number. */
function layOut() {
  const grid = byId("overview"), most = Math.max(...data.layers.map((l) => l.heads.length));
  const room = byId("overview-room").clientWidth - 8, wrapped = most * TARGET > room - 40;
  const lines = wrapped ? Math.ceil(most / Math.max(Math.floor(room / TARGET), 1)) : 1, columns = Math.ceil(most / lines);
  const size = Math.min(Math.max(Math.floor((room - (wrapped ? 0 : 40)) / columns) - 3, TARGET - 3), 84);
  grid.style.gridTemplateColumns = `${wrapped ? "" : "auto "}repeat(${columns}, ${size}px)`;
  grid.classList.toggle("wrapped", wrapped);
  const high = Math.max(Math.round(size * Math.min(queries.names.length / keys.names.length, 1.5)), TARGET - 3);
  const name = wrapped || !grid.classList.contains("numbered") ? 16 : 0;
  for (const { button } of thumbnails) button.style.height = `${high + name}px`;
}
function fillOverview() {
  const grid = byId("overview"), most = Math.max(...data.layers.map((l) => l.heads.length));
  // Columns are numbered where the heads of all layers are the same ones.
  const longest = data.layers.find((l) => l.heads.length === most).heads;
  const numbered = data.layers.every((l) => l.heads.every((head, j) => head === longest[j]));
  grid.classList.toggle("numbered", numbered);
  thumbnails.length = 0;
  grid.replaceChildren(element("b", "column", ""), ...longest.map((head) => element("b", "column", numbered ? head : "")));
  data.layers.forEach(({ layer, heads }, i) => {
    const label = element("b", "row", "");
    label.append(element("span", "", "Layer "), String(layer));
    grid.append(label);
    heads.forEach((head, j) => {
      const button = element("button", "", ""), canvas = document.createElement("canvas");
      button.type = "button";
      button.dataset.at = `${i}-${j}`;
      button.title = `Layer ${layer}, head ${head}`;
      button.setAttribute("aria-label", button.title);
      button.append(canvas, element("span", "head", head));
      grid.append(button);
      thumbnails.push({ button, canvas, layer: i, head: j, all: null, withoutSpecial: null });
    });
    for (let j = heads.length; j < most; j++) grid.append(element("b", "column", ""));
  });
  layOut();
}
async function drawOverview() {
  const drawn = data, isChosen = ({ layer, head }) => layer === state.layer && head === state.head;
  for (const picture of thumbnails.toSorted((a, b) => isChosen(b) - isChosen(a))) {
    // Not cached: the cache is for the selected heads.
    const numbers = await (cached.get(`${picture.layer}-${picture.head}`) ?? stored(picture.layer, picture.head));
    if (data !== drawn) return; // another text is shown
    picture.all = thumbnail(numbers, places(queries), places(keys));
    picture.withoutSpecial = canHide ? thumbnail(numbers, ordinary(queries), ordinary(keys)) : picture.all;
    drawThumbnail(picture);
    await new Promise((next) => setTimeout(next));
  }
  document.documentElement.dataset.ready = "";
}
function markThumbnail() {
  for (const { button, layer, head } of thumbnails) {
    const chosen = layer === state.layer && head === state.head;
    button.setAttribute("aria-current", chosen);
    button.tabIndex = chosen ? 0 : -1;
  }
}
