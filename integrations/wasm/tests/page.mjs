// A page in headless Chromium, from a server on this machine.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join } from "node:path";
import assert from "node:assert/strict";

const types = { ".js": "text/javascript", ".wasm": "application/wasm" };

/** Serves a page and the files of a folder, and resolves with what the page posts. */
async function serve(page, folder) {
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
      const file = type && (await readFile(new URL(`.${request.url}`, folder)).catch(() => undefined));
      if (!file) return response.writeHead(404).end();
      response.setHeader("content-type", type).end(file);
    }
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { server, posted };
}

/** What the page, which is HTML and may load files of a folder, posts to `/found`, as JSON. */
export async function visit(page, folder) {
  const { server, posted } = await serve(page, folder);
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
    return await Promise.race([posted, ended.then(() => assert.fail("the browser ended"))]);
  } finally {
    browser.kill();
    await ended;
    server.closeAllConnections();
    server.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 5 });
  }
}
