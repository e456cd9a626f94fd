// Colors of weights and of heads, and the legend of the weights.

const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => (state.theme ?? (system.matches ? "dark" : "light")) === "dark";
const style = (name) => getComputedStyle(document.body).getPropertyValue(name);

/** The color at a level from 0 to 1. */
function color(level) {
  const ramp = dark() ? data.dark : data.light;
  const at = Math.min(Math.max(level, 0), 1) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  return ramp[low].map((a, i) => Math.round(a + (ramp[low + 1][i] - a) * (at - low)));
}
/** How bright a color is, by WCAG's definition of contrast. */
const luminance = (color) => color.map((byte) => byte / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, i) => sum + [0.2126, 0.7152, 0.0722][i] * part, 0);
// The colors of 256 levels: as canvas pixels, and as a background with black or white text on it: a contrast of at least 4.5.
const palette = new Uint32Array(256), inks = [];
function mix() {
  const bytes = new Uint8ClampedArray(palette.buffer);
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = color(i / 255);
    bytes.set([r, g, b, 255], 4 * i);
    inks[i] = [`rgb(${r} ${g} ${b})`, luminance([r, g, b]) > 0.18 ? "#000" : "#fff"];
  }
}
/** The palette's index for a weight: the square root of its ratio to the largest, because most weights are small. */
const shade = (weight, most) => (most > 0 ? Math.round(255 * Math.sqrt(Math.min(weight / most, 1))) : 0);

/** An image with one pixel per weight. */
function picture(numbers, columns, rows, most) {
  const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < pixels.length; i++) pixels[i] = palette[shade(numbers[i], most)];
  return image;
}

// Neighboring heads get distant hues.
const headColor = (head) => `hsl(${Math.round(215 + head * 137.5) % 360} 75% ${dark() ? 66 : 38}%)`;

const TICKS = [0, 0.25, 0.5, 0.75, 1];
/** The weight of the darkest color, and of an opaque line. */
const mostShown = () => (state.view === "lines" ? Math.max(...loaded.map((head) => head.most)) : current.most);
/**
 * The legend: color `i` of the palette is pixel `i` of the ramp, and each tick is the weight that has the color above it.
 * The lower half is, beside lines, the opacity of a line of that weight.
 */
function drawLegend() {
  const ramp = byId("ramp"), pen = ramp.getContext("2d"), image = new ImageData(256, 1), lined = state.view === "lines";
  new Uint32Array(image.data.buffer).set(palette);
  pen.clearRect(0, 0, ramp.width, ramp.height);
  for (let y = 0; y < ramp.height / (lined ? 2 : 1); y++) pen.putImageData(image, 0, y);
  pen.fillStyle = style("--ink");
  for (let i = 0; lined && i < 256; i++) {
    pen.globalAlpha = (i / 255) ** 2;
    pen.fillRect(i, ramp.height / 2, 1, ramp.height / 2);
  }
  pen.globalAlpha = 1;
  byId("ticks").replaceChildren(...TICKS.map((at) => element("span", "", at === 0 ? "0" : text(mostShown() * at * at))));
}
