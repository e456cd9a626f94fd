// Attention weights, unpacked when they are first shown. The latest are kept.

const unpacked = new Map(), KEPT = 48;

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
  for (let i = 0; i < count; i++) numbers[i] = bytes[i] | (bytes[count + i] << 8);
  return numbers;
}

/** The largest weight between some queries and some keys. */
function largest(numbers, rows, columns) {
  let most = 0;
  for (const query of rows) {
    const start = query * keys.names.length;
    for (const key of columns) if (numbers[start + key] > most) most = numbers[start + key];
  }
  return most;
}

/** The weights of the shown heads of the layer: of one head for the map, of several for the lines. */
async function load() {
  const wanted = state.view === "lines" ? state.heads : [state.head];
  const found = await Promise.all(wanted.map((head) => weights(state.layer, head)));
  return found.map((numbers, i) => ({ numbers, head: wanted[i], most: largest(numbers, queries.shown, keys.shown) }));
}
