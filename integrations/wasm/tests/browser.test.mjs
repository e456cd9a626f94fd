// The same vectors in a browser, from a page that a server on this machine gives out.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import { test } from "node:test";
import assert from "node:assert/strict";
import { assertClose, expected } from "./expected.mjs";

const { texts, embeddings } = expected("embedded.jsonl");

const page = `<!doctype html><script type="module">
  const found = {};
  try {
    const { init, SentenceEncoder } = await import("/index.js");
    await init("/bindings_bg.wasm");
    const encoder = await SentenceEncoder.embedded();
    found.embeddings = encoder.encode(${JSON.stringify(texts)}).map((embedding) => [...embedding]);
    found.hits = encoder.search("a sleeping cat", ${JSON.stringify(texts)}, 1);
    try { encoder.encode(5); } catch (error) { found.error = error.message; }
  } catch (error) {
    found.failed = String(error);
  }
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
</script>`;

const types = { ".js": "text/javascript", ".wasm": "application/wasm" };

/** Serves the page and the package, and resolves with what the page posts. */
async function serve() {
  let post;
  const posted = new Promise((resolve) => (post = resolve));
  const server = createServer(async (request, response) => {
    if (request.method === "POST") {
      let body = "";
      for await (const part of request) body += part;
      response.end();
      post(JSON.parse(body));
    } else if (request.url === "/") {
      response.setHeader("content-type", "text/html; charset=utf-8").end(page);
    } else {
      const type = types[extname(request.url)];
      const file = type && (await readFile(new URL(`../pkg${request.url}`, import.meta.url)).catch(() => undefined));
      if (!file) return response.writeHead(404).end();
      response.setHeader("content-type", type).end(file);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { server, posted };
}

test("the embedded model in a browser", { timeout: 120_000 }, async () => {
  const { server, posted } = await serve();
  const profile = await mkdtemp(join(tmpdir(), "candle-attention-"));
  const flags = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    `--user-data-dir=${profile}`,
  ];
  const browser = spawn(process.env.CHROMIUM ?? "chromium", [...flags, `http://127.0.0.1:${server.address().port}/`], {
    stdio: "ignore",
  });
  const ended = once(browser, "exit");
  try {
    const found = await Promise.race([posted, ended.then(() => assert.fail("the browser ended"))]);
    assert.equal(found.failed, undefined);
    assertClose(
      found.embeddings.map((embedding) => new Float32Array(embedding)),
      embeddings,
    );
    assert.equal(found.hits[0].index, 0);
    assert.equal(found.error, "the text is of type number, expected a string or an array of strings");
  } finally {
    browser.kill();
    await ended;
    server.closeAllConnections();
    server.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
});
