//! How the tests run the page of attention maps in Chromium.

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention_text::visualize::AttentionMaps;
use serde_json::Value;

/// Helpers for the scripts of the tests: wait, click, read.
const HELP: &str = r##"
const byId = (id) => document.getElementById(id);
window.requestAnimationFrame = (draw) => setTimeout(draw); // headless, time runs without frames
const rest = () => new Promise((done) => setTimeout(done, 50));
const key = async (target, key) => { target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })); await rest(); };
const click = async (target) => { target.click(); await rest(); };
const pick = async (id, value) => { byId(id).value = value; byId(id).dispatchEvent(new Event("change", { bubbles: true })); await rest(); };
const hover = async (target, type, x, y) => { target.dispatchEvent(new PointerEvent(type, { pointerType: "mouse", clientX: x, clientY: y, bubbles: true })); await rest(); };
const list = () => [...byId("list").tBodies[0].rows].map((row) => [row.cells[0].textContent, Number(row.cells[1].textContent), row.cells[2].textContent]);
const look = () => ({
  layer: byId("layer").selectedOptions[0].text, head: byId("head").selectedOptions[0].text, name: byId("list-name").textContent,
  most: byId("ticks").lastChild.textContent, list: list(), readout: byId("readout").textContent, hash: location.hash,
  current: document.querySelector("#overview [aria-current=true]").title,
});
const visible = (element) => element.checkVisibility() && element.getBoundingClientRect().width > 0;
const pixel = (canvas, x, y) => {
  const box = canvas.getBoundingClientRect(), sharp = [canvas.width / box.width, canvas.height / box.height];
  return [...canvas.getContext("2d").getImageData(Math.floor((x - box.left) * sharp[0]), Math.floor((y - box.top) * sharp[1]), 1, 1).data];
};
/** What the readout says at points of the map, with the middle of the points. */
const cells = () => {
  const found = {}, map = byId("map"), box = map.getBoundingClientRect();
  for (let y = box.top + 1; y < box.bottom; y += 3) for (let x = box.left + 1; x < box.right; x += 3) {
    map.dispatchEvent(new PointerEvent("pointermove", { pointerType: "mouse", clientX: x, clientY: y }));
    if (!byId("readout").classList.contains("pointing")) continue;
    const at = (found[byId("readout").textContent] ??= { x: 0, y: 0, n: 0 });
    at.x += x; at.y += y; at.n++;
  }
  map.dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
  return Object.entries(found).map(([said, { x, y, n }]) => ({ said, weight: said.split(": ").pop(), x: x / n, y: y / n }));
};
const lineNames = (id) => [...byId(id).children].filter(visible).map((item) => item.textContent);
const seen = {};
"##;

/// The page in a frame as large as a phone, which headless Chromium cannot be.
const PHONE: &str = r##"<body style="margin:0"><iframe src="page.html" style="width:390px;height:844px;border:0"></iframe>
<script>addEventListener("message", ({ data }) => { const pre = document.createElement("pre"); pre.id = "seen"; pre.textContent = data; document.body.append(pre); });</script></body>"##;

/// Opens the page in Chromium, runs `script` when it is ready, and returns what the script put into `seen`.
pub fn run(maps: &AttentionMaps, hash: &str, script: &str) -> Value {
    open(maps, hash, script, "page.html")
}

/// `run` on a phone.
pub fn run_on_phone(maps: &AttentionMaps, script: &str) -> Value {
    open(maps, "", script, "phone.html")
}

fn open(maps: &AttentionMaps, hash: &str, script: &str, opened: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let program = format!(
        "<script>addEventListener('error', (e) => {{ document.documentElement.dataset.error = e.message; }});(async () => {{\n\
         {HELP}\nwhile (!('ready' in document.documentElement.dataset)) await rest();\n{script}\n\
         const bytes = new TextEncoder().encode(JSON.stringify(seen));\n\
         const text = btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(''));\n\
         if (parent !== window) return parent.postMessage(text, '*');\nconst pre = document.createElement('pre');\n\
         pre.id = 'seen';\npre.textContent = text;\ndocument.body.append(pre);\n}})();</script></body>"
    );
    std::fs::write(&file, maps.html().unwrap().replace("</body>", &program)).unwrap();
    std::fs::write(folder.path().join("phone.html"), PHONE).unwrap();
    let browser = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_string());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,900"])
        .args(["--virtual-time-budget=60000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}{hash}", folder.path().join(opened).display()))
        .output()
        .expect("chromium starts: set CHROMIUM to its path");
    let page = String::from_utf8(output.stdout).unwrap();
    let Some((_, rest)) = page.split_once("<pre id=\"seen\">") else {
        panic!("the script did not end: {}{}", &page[..page.len().min(600)], String::from_utf8_lossy(&output.stderr));
    };
    serde_json::from_slice(&STANDARD.decode(rest.split_once('<').unwrap().0).unwrap()).unwrap()
}
