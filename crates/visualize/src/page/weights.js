// Attention weights, read when they are first shown. The latest are kept.

const cached = new Map(), KEPT = 48;

function weights(layer, head) {
  const id = `${layer}-${head}`;
  const found = cached.get(id) ?? stored(layer, head);
  cached.delete(id);
  cached.set(id, found);
  if (cached.size > KEPT) cached.delete(cached.keys().next().value);
  return found;
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
