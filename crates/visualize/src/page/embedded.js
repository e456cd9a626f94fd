// The text and the weights that are embedded in the page, and the first draw.

/** The weights of a head, in units. */
const stored = (layer, head) => unpack(byId(`w${layer}-${head}`).textContent);

async function unpack(base64) {
  const packed = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = bytes.length / 2, numbers = new Uint16Array(count);
  for (let i = 0; i < count; i++) numbers[i] = bytes[i] | (bytes[count + i] << 8);
  return numbers;
}

showText(JSON.parse(byId("data").textContent));
fromHash().then(drawOverview);
