//! The page in a browser: what a reader does changes what it shows, and the numbers shown are the tensor's.

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use candle_attention::visualize::AttentionMaps;
use candle_core::Tensor;
use serde_json::Value;

use crate::visualize::{HOSTILE, softmax};

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
  most: byId("most").textContent, list: list(), readout: byId("readout").textContent, hash: location.hash,
  current: document.querySelector("#overview [aria-current=true]").title,
});
const seen = {};
"##;

/// Opens the page in Chromium, runs `script` when it is ready, and returns what the script put into `seen`.
fn run(maps: &AttentionMaps, hash: &str, script: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    let program = format!(
        "<script>addEventListener('error', (e) => {{ document.documentElement.dataset.error = e.message; }});(async () => {{\n\
         {HELP}\nwhile (!('ready' in document.documentElement.dataset)) await rest();\n{script}\n\
         const bytes = new TextEncoder().encode(JSON.stringify(seen));\nconst pre = document.createElement('pre');\n\
         pre.id = 'seen';\npre.textContent = btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join(''));\n\
         document.body.append(pre);\n}})();</script></body>"
    );
    std::fs::write(&file, maps.html().unwrap().replace("</body>", &program)).unwrap();
    let browser = std::env::var("CHROMIUM").unwrap_or_else(|_| "chromium".to_string());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"])
        .args(["--virtual-time-budget=60000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}{hash}", file.display()))
        .output()
        .expect("chromium starts: set CHROMIUM to its path");
    let page = String::from_utf8(output.stdout).unwrap();
    let Some((_, rest)) = page.split_once("<pre id=\"seen\">") else {
        panic!("the script did not end: {}{}", &page[..page.len().min(600)], String::from_utf8_lossy(&output.stderr));
    };
    serde_json::from_slice(&STANDARD.decode(rest.split_once('<').unwrap().0).unwrap()).unwrap()
}

/// The list that the page should show for a query: key, index, weight, largest first.
fn want(keys: &[String], weights: &Tensor, head: usize, query: usize) -> Value {
    let row: Vec<f32> = weights.get(head).unwrap().get(query).unwrap().to_vec1().unwrap();
    let mut order: Vec<usize> = (0..row.len()).collect();
    let units = |key: usize| (f64::from(row[key]) * 10_000.0).round_ties_even() as i64;
    order.sort_by_key(|&key| (-units(key), key));
    let first = if keys.len() <= 16 { 16 } else { 12 };
    order.iter().take(first).map(|&key| serde_json::json!([keys[key], key, format!("{:.4}", row[key])])).collect()
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn clicks_and_keys_change_what_is_shown() {
    let tokens: Vec<String> = (0..14).map(|i| format!("t{i}")).collect();
    let (first, second) = (softmax(20, &[3, 14, 14]), softmax(21, &[4, 14, 14]));
    let maps = AttentionMaps::new(&tokens, &tokens).with_layer(0, &first).unwrap().with_layer(5, &second).unwrap();
    let script = r##"
      seen.start = look();
      await click(byId("layer-on")); seen.layer = look();
      await pick("head", "2"); seen.head = look();
      await click(byId("queries").children[7]); seen.token = look();
      await hover(byId("queries").children[3], "pointerover"); seen.hovered = look();
      await hover(byId("queries"), "pointerleave"); seen.left = look();
      await key(document.body, "j"); seen.j = look();
      await key(document.body, "K"); seen.K = look();
      await key(byId("queries"), "ArrowRight"); await key(byId("queries"), "End"); await key(byId("queries"), "ArrowLeft"); seen.keys = look();
      await click(document.querySelector("#overview [data-at='0-1']")); seen.overview = look();
      await key(document.querySelector("#overview [aria-current=true]"), "ArrowDown"); seen.down = look();
      const box = byId("map").getBoundingClientRect();
      await hover(byId("map"), "pointermove", box.right - 5, box.bottom - 5); seen.map = look();
      seen.selected = document.querySelector("#queries [aria-selected=true]").textContent;
      seen.backgrounds = new Set([...byId("queries").children].map((item) => item.style.background)).size;
      seen.thumbnails = document.querySelectorAll("#overview canvas").length;
      await click(byId("theme")); seen.dark = document.documentElement.dataset.theme;
    "##;
    let seen = run(&maps, "#layer=0&head=1&token=2", script);
    let check = |step: &str, layer: &str, head: usize, query: usize| {
        let (weights, shown) = (if layer == "0" { &first } else { &second }, &seen[step]);
        assert_eq!((&shown["layer"], &shown["head"]), (&layer.into(), &head.to_string().into()), "{step}");
        assert_eq!(shown["list"], want(&tokens, weights, head, query), "{step}");
        assert_eq!(shown["name"], format!("“\u{2068}t{query}\u{2069}” ({query}) looks at"), "{step}");
        assert_eq!(shown["current"], format!("Layer {layer}, head {head}"), "{step}");
        let largest = weights.get(head).unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert_eq!(shown["most"], format!("{largest:.4}"), "{step}");
    };
    check("start", "0", 1, 2);
    check("layer", "5", 1, 2);
    check("head", "5", 2, 2);
    check("token", "5", 2, 7);
    assert_eq!(seen["token"]["hash"], "#layer=5&head=2&token=7");
    check("hovered", "5", 2, 3);
    check("left", "5", 2, 7);
    check("j", "5", 3, 7);
    check("K", "0", 2, 7);
    check("keys", "0", 2, 12);
    check("overview", "0", 1, 12);
    check("down", "5", 1, 12);
    check("map", "5", 1, 13);
    let corner = second.get(1).unwrap().get(13).unwrap().get(13).unwrap().to_scalar::<f32>().unwrap();
    assert_eq!(seen["map"]["readout"], format!("“\u{2068}t13\u{2069}” (13) → “\u{2068}t13\u{2069}” (13): {corner:.4}"));
    assert_eq!((&seen["selected"], &seen["thumbnails"]), (&"t12".into(), &7.into()));
    assert!(seen["backgrounds"].as_u64().unwrap() > 3);
    assert!(seen["dark"] == "dark" || seen["dark"] == "light");
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn hostile_tokens_are_shown_as_text() {
    let n = HOSTILE.len();
    let keys: Vec<String> = (0..20).map(|i| format!("k{i}")).collect();
    let queries: Vec<String> = HOSTILE.iter().map(|token| token.to_string()).collect();
    let weights = softmax(22, &[2, n, 20]);
    let maps = AttentionMaps::new(&queries, &keys).with_title(HOSTILE[0]).with_layer(3, &weights).unwrap();
    let script = r##"
      await click(byId("queries").children[2]); seen.look = look();
      seen.queries = [...byId("queries").children].map((item) => item.textContent);
      seen.elements = byId("queries").querySelectorAll("span *").length;
      seen.keys = byId("keys").children.length;
      seen.numbers = [...byId("keys").children].map((item) => item.title);
      seen.title = [document.title, byId("title").textContent];
      await click(byId("all")); seen.all = list().length;
    "##;
    let seen = run(&maps, "", script);
    assert_eq!(seen["look"]["list"], want(&keys, &weights, 0, 2));
    assert_eq!(seen["queries"], serde_json::json!(maps.queries()));
    assert_eq!((&seen["elements"], &seen["keys"], &seen["all"]), (&0.into(), &20.into(), &20.into()));
    let row: Vec<f32> = weights.get(0).unwrap().get(2).unwrap().to_vec1().unwrap();
    let row: Vec<String> = row.iter().map(|weight| format!("{weight:.4}")).collect();
    assert_eq!(seen["numbers"], serde_json::json!(row));
    assert_eq!(seen["title"], serde_json::json!([HOSTILE[0], HOSTILE[0]]));
}
