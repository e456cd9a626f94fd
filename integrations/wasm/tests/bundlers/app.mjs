// An application to bundle: it posts what it finds.

import { SentenceEncoder } from "../../pkg/index.js";

const found = {};
try {
  const encoder = await SentenceEncoder.embedded();
  found.hits = encoder.search("a sleeping cat", ["Stocks fell sharply today.", "A kitten naps on the sofa."], 1);
} catch (error) {
  found.failed = String(error);
}
await fetch("/found", { method: "POST", body: JSON.stringify(found) });
