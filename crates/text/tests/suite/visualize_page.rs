//! The page in a browser: what a reader does changes what it shows, and the numbers shown are the tensor's.

use candle_attention_text::visualize::AttentionMaps;
use candle_core::{Device, Tensor};
use serde_json::Value;

use crate::browser::{run, run_on_phone};
use crate::visualize::{HOSTILE, softmax};
use crate::visualize_tokens::marks;

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
      // As Safari and Firefox refuse to write the address too often.
      const replace = history.replaceState;
      history.replaceState = () => { throw new DOMException("too often", "SecurityError"); };
      await key(document.body, "j"); seen.refused = look();
      history.replaceState = replace;
      await new Promise((done) => setTimeout(done, 1200)); seen.later = look().hash;
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
    check("refused", "5", 2, 13);
    assert_ne!(seen["refused"]["hash"], seen["later"]);
    assert_eq!(seen["later"], "#layer=5&head=2&token=12");
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
    let seen = run(&maps, "#layer=3&head=0&token=0", script);
    assert_eq!(seen["look"]["list"], want(&keys, &weights, 0, 2));
    assert_eq!(seen["queries"], serde_json::json!(maps.queries()));
    assert_eq!((&seen["elements"], &seen["keys"], &seen["all"]), (&0.into(), &20.into(), &20.into()));
    let row: Vec<f32> = weights.get(0).unwrap().get(2).unwrap().to_vec1().unwrap();
    let row: Vec<String> = row.iter().map(|weight| format!("{weight:.4}")).collect();
    assert_eq!(seen["numbers"], serde_json::json!(row));
    assert_eq!(seen["title"], serde_json::json!([HOSTILE[0], HOSTILE[0]]));
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn ticks_of_the_legend_are_the_weights_of_the_colors() {
    let row = [0.0, 0.05, 0.2, 0.45, 0.8f32];
    let weights: Vec<f32> = (0..5).flat_map(|query| (0..5).map(move |key| row[(query + key) % 5])).collect();
    let weights = Tensor::from_vec(weights, (1, 5, 5), &Device::Cpu).unwrap();
    let tokens: Vec<String> = (0..5).map(|i| format!("t{i}")).collect();
    let maps = AttentionMaps::new(&tokens, &tokens).with_layer(0, &weights).unwrap();
    let script = r##"
      const measure = () => {
        const found = cells(), ramp = byId("ramp"), box = ramp.getBoundingClientRect();
        return [...byId("ticks").children].map((tick) => {
          const line = tick.getBoundingClientRect(), x = Math.min((line.left + line.right) / 2, box.right - 0.5);
          const weight = tick.textContent === "0" ? "0.0000" : tick.textContent, same = found.filter((at) => at.weight === weight);
          return { weight, ramp: pixel(ramp, x, box.top + 5), cells: same.map((at) => pixel(byId("map"), at.x, at.y)) };
        });
      };
      await hover(byId("map"), "pointerleave");
      seen.light = measure(); await click(byId("theme")); seen.dark = measure();
    "##;
    let seen = run(&maps, "#theme=light", script);
    for theme in ["light", "dark"] {
        for (tick, weight) in
            seen[theme].as_array().unwrap().iter().zip(["0.0000", "0.0500", "0.2000", "0.4500", "0.8000"])
        {
            assert_eq!(tick["weight"], weight, "{theme}");
            let cells = tick["cells"].as_array().unwrap();
            assert_eq!(cells.len(), 5, "{theme} {weight}");
            for cell in cells {
                // A tick may be half a pixel of the ramp, of 256, from its color.
                let near = |i: usize| (cell[i].as_i64().unwrap() - tick["ramp"][i].as_i64().unwrap()).abs() <= 2;
                assert!((0..4).all(near), "{theme} {weight}: {cell} is not {}", tick["ramp"]);
            }
        }
    }
    assert_ne!(seen["light"][3]["ramp"], seen["dark"][3]["ramp"]);
}

/// Maps of `[CLS] t1 … [SEP]` with a word of two pieces and a second text.
fn marked(n: usize, weights: &Tensor) -> AttentionMaps {
    let name = |i: usize| match i {
        0 => "[CLS]".to_string(),
        i if i == n - 1 => "[SEP]".to_string(),
        i => format!("t{i}"),
    };
    let (tokens, marks) = ((0..n).map(name).collect::<Vec<_>>(), marks(n, &[3], n / 2));
    let maps = AttentionMaps::new(&tokens, &tokens).with_title("a text").with_model("a/model");
    maps.with_marks(&marks, &marks).unwrap().with_layer(0, weights).unwrap().with_layer(5, weights).unwrap()
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn special_tokens_hide_and_both_directions_list() {
    let weights = softmax(23, &[3, 8, 8]);
    let script = r##"
      seen.from = look(); seen.names = [byId("model").textContent, document.title, byId("view-name").textContent];
      await click(byId("to")); seen.to = look();
      await click(byId("special")); seen.hidden = look(); seen.cells = cells().length;
      seen.tokens = lineNames("queries"); seen.note = byId("hidden-weight").textContent;
      await click(byId("from")); seen.left = byId("hidden-weight").textContent;
      await click(byId("view-lines")); seen.lines = [lineNames("line-queries"), lineNames("line-keys")];
      await key(document.body, "Home"); seen.first = location.hash;
      await click(byId("special")); seen.shown = lineNames("line-queries");
      await key(document.body, "v"); seen.all = cells().length;
      seen.parts = [...document.querySelectorAll("#queries .text-name")].map((item) => item.textContent);
    "##;
    let seen = run(&marked(8, &weights), "#layer=5&head=1&token=2", script);
    let label = |i: usize| ["[CLS]", "t1", "t2", "##t3", "t4", "t5", "t6", "[SEP]"][i];
    let head: Vec<Vec<f32>> = weights.get(1).unwrap().to_vec2().unwrap();
    let units = |query: usize, key: usize| (f64::from(head[query][key]) * 10_000.0).round_ties_even() as i64;
    let list = |shown: &[usize], unit: &dyn Fn(usize) -> i64| -> Value {
        let mut order = shown.to_vec();
        order.sort_by_key(|&i| (-unit(i), i));
        order.iter().map(|&i| serde_json::json!([label(i), i, format!("{:.4}", unit(i) as f64 / 1e4)])).collect()
    };
    let (all, ordinary) = ([0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6]);
    assert_eq!(seen["names"], serde_json::json!(["a/model", "a text · a/model", "Layer 5, head 1"]));
    assert_eq!(seen["from"]["list"], list(&all, &|key| units(2, key)));
    assert_eq!(seen["to"]["list"], list(&all, &|query| units(query, 2)));
    assert_eq!(seen["to"]["name"], "“\u{2068}t2\u{2069}” (2) is looked at by");
    assert_eq!(seen["to"]["hash"], "#layer=5&head=1&token=2&direction=to");
    assert_eq!(seen["hidden"]["list"], list(&ordinary, &|query| units(query, 2)));
    let most = ordinary.iter().flat_map(|&q| ordinary.iter().map(move |&k| units(q, k))).max().unwrap();
    assert_eq!(seen["hidden"]["most"], format!("{:.4}", most as f64 / 1e4));
    assert_eq!(
        seen["to"]["most"],
        format!("{:.4}", weights.get(1).unwrap().max_all().unwrap().to_scalar::<f32>().unwrap())
    );
    assert_eq!((&seen["cells"], &seen["all"]), (&36.into(), &64.into()));
    assert_eq!(seen["tokens"], serde_json::json!(["First text", "t1", "t2", "t3", "Second text", "t4", "t5", "t6"]));
    let left = format!("{:.4} of its attention goes to special tokens", (units(2, 0) + units(2, 7)) as f64 / 1e4);
    assert!(seen["left"].as_str().unwrap().starts_with(&left) && seen["note"] != "", "{}", seen["left"]);
    let names: Vec<&str> = ordinary.map(label).into();
    assert_eq!(seen["lines"], serde_json::json!([names, names]));
    assert_eq!(seen["first"], "#layer=5&head=1&token=1&view=lines&special=hidden");
    assert_eq!(seen["shown"].as_array().unwrap().len(), 8);
    assert_eq!(seen["parts"], serde_json::json!(["First text", "Second text"]));
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn lines_of_two_heads_have_their_colors() {
    // Head 0: each token looks at itself; head 1: at the token as far from the end as it is from the start.
    let weight = |head: usize, query: usize, key: usize| match key == if head == 0 { query } else { 3 - query } {
        true => [1.0, 0.5f32][head],
        false => 0.0,
    };
    let weights = (0..32).map(|i| weight(i / 16, i / 4 % 4, i % 4)).collect();
    let weights = Tensor::from_vec(weights, (2, 4, 4), &Device::Cpu).unwrap();
    let tokens: Vec<String> = (0..4).map(|i| format!("t{i}")).collect();
    let maps = AttentionMaps::new(&tokens, &tokens).with_layer(0, &weights).unwrap();
    let script = r##"
      const color = (head) => {
        const probe = document.createElement("canvas").getContext("2d");
        probe.fillStyle = byId("heads").children[head].style.getPropertyValue("--head");
        probe.fillRect(0, 0, 1, 1);
        return [...probe.getImageData(0, 0, 1, 1).data];
      };
      const look2 = () => {
        const canvas = byId("lines"), box = canvas.getBoundingClientRect(), x = (box.left + box.right) / 2, row = box.height / 4;
        return { straight: pixel(canvas, x, box.top + row / 2), crossed: pixel(canvas, box.left + box.width / 4, box.top + 1.25 * row),
          pressed: [...byId("heads").children].map((button) => button.getAttribute("aria-pressed")),
          ticks: [...byId("ticks").children].map((tick) => tick.textContent), hash: location.hash,
          legend: [...byId("lines-heads").children].map((name) => name.textContent) };
      };
      await click(byId("view-lines")); seen.one = look2(); seen.colors = [color(0), color(1)];
      await click(byId("heads").children[1]); seen.two = look2();
      await click(byId("heads").children[0]); seen.other = look2();
      await click(byId("heads").children[0]); await click(byId("lines-only")); seen.token = look2();
      await key(byId("line-queries"), "ArrowDown"); seen.down = location.hash;
      await click(byId("line-keys").children[3]); seen.key = [location.hash, list()];
      await click(byId("heads-one")); seen.last = location.hash;
      await click(byId("heads-all")); seen.every = location.hash;
    "##;
    let seen = run(&maps, "#layer=0&head=0&token=0", script);
    let near = |pixel: &Value, color: usize, alpha: i64| {
        let off = |i: usize| (pixel[i].as_i64().unwrap() - seen["colors"][color][i].as_i64().unwrap()).abs();
        (0..3).all(|i| off(i) <= 4) && (pixel[3].as_i64().unwrap() - alpha).abs() <= 70
    };
    let shown = |step: &str| (&seen[step]["straight"], &seen[step]["crossed"]);
    assert!(near(shown("one").0, 0, 255) && shown("one").1[3] == 0, "{}", seen["one"]);
    assert!(near(shown("two").0, 0, 255) && near(shown("two").1, 1, 128), "{}", seen["two"]);
    // Alone, the fainter head is the scale.
    assert!(shown("other").0[3] == 0 && near(shown("other").1, 1, 255), "{}", seen["other"]);
    assert!(near(shown("token").0, 0, 255), "{}", seen["token"]);
    assert_eq!(seen["two"]["pressed"], serde_json::json!(["true", "true"]));
    assert_eq!(seen["two"]["ticks"], serde_json::json!(["0", "0.0625", "0.2500", "0.5625", "1.0000"]));
    assert_eq!(seen["two"]["legend"], serde_json::json!(["head 0", "head 1"]));
    assert_eq!(seen["other"]["legend"], serde_json::json!(["head 1"]));
    assert_eq!(seen["two"]["hash"], "#layer=0&head=1&token=0&view=lines&heads=0.1");
    assert_eq!(seen["other"]["hash"], "#layer=0&head=1&token=0&view=lines");
    assert_eq!(seen["down"], "#layer=0&head=0&token=1&view=lines&heads=1.0&lines=token");
    assert_eq!(seen["key"][0], "#layer=0&head=0&token=3&direction=to&view=lines&heads=1.0&lines=token");
    assert_eq!(seen["key"][1][0], serde_json::json!(["t3", 3, "1.0000"]));
    assert_eq!(seen["last"], "#layer=0&head=0&token=3&direction=to&view=lines&lines=token");
    assert_eq!(seen["every"], "#layer=0&head=0&token=3&direction=to&view=lines&heads=0.1&lines=token");
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn address_restores_everything_and_keys_reach_everything() {
    let maps = marked(20, &softmax(24, &[4, 20, 20])).with_truncation(1014, &["", "the rest"]).unwrap();
    let hash = "#layer=5&head=2&token=7&direction=to&view=lines&heads=0.2.3&lines=token&special=hidden&zoom=30&list=all&theme=dark";
    let script = r##"
      const pressed = (id) => byId(id).getAttribute("aria-pressed");
      seen.restored = { ...look(), rows: list().length, theme: document.documentElement.dataset.theme,
        pressed: ["to", "from", "view-lines", "special", "lines-only"].map(pressed), heads: [...byId("heads").children].map((b) => b.getAttribute("aria-pressed")) };
      byId("cut").querySelector("details").open = true;
      seen.cut = byId("cut").innerText.split("\n").filter((line) => line.trim());
      for (const press of ["v", "d", "s"]) await key(document.body, press);
      seen.turned = location.hash;
      const size = () => byId("map-space").getBoundingClientRect().width;
      seen.sizes = [size()];
      for (const press of ["+", "-", "-", "0"]) { await key(document.body, press); seen.sizes.push(size()); }
      const map = byId("map"); map.focus();
      for (const press of ["ArrowDown", "ArrowDown", "ArrowRight", "Enter"]) await key(map, press);
      seen.cell = [byId("readout").textContent, location.hash];
      await key(map, "Escape"); seen.escaped = byId("readout").textContent;
      const controls = () => [...document.querySelectorAll("button, select, summary, canvas[tabindex], [role=listbox]")].filter(visible)
        .filter((control) => !control.disabled && !control.closest("#overview"));
      const name = (control) => control.getAttribute("aria-label") ?? control.labels?.[0]?.textContent ?? byId(control.getAttribute("aria-labelledby"))?.textContent ?? control.textContent;
      const unreachable = () => controls().filter((control) => { control.focus(); return document.activeElement !== control || !name(control).trim(); }).map((c) => c.outerHTML);
      seen.unreachable = unreachable(); seen.count = controls().length;
      await key(document.body, "v"); seen.unreachable.push(...unreachable());
      location.hash = "#layer=0&head=1&token=3"; await rest(); await rest(); seen.old = look();
    "##;
    let seen = run(&maps, hash, script);
    let restored = &seen["restored"];
    assert_eq!((&restored["hash"], &restored["rows"], &restored["theme"]), (&hash.into(), &18.into(), &"dark".into()));
    assert_eq!(restored["pressed"], serde_json::json!(["true", "false", "true", "false", "true"]));
    assert_eq!(restored["heads"], serde_json::json!(["true", "false", "true", "true"]));
    assert_eq!((&restored["layer"], &restored["head"]), (&"5".into(), &"2".into()));
    let cut = ["Read by the model: 20 of 1,014 tokens.", "Not read of the second text", "the rest"];
    assert_eq!(seen["cut"], serde_json::json!(cut));
    assert_eq!(seen["turned"], "#layer=5&head=2&token=7&heads=0.2.3&lines=token&zoom=30&list=all&theme=dark");
    let size = |i: usize| seen["sizes"][i].as_f64().unwrap();
    assert!(size(1) > size(0) && size(2) < size(1) && size(3) < size(2) && size(4) <= size(3), "{}", seen["sizes"]);
    let cell = seen["cell"][0].as_str().unwrap();
    assert!(cell.starts_with("“\u{2068}t8\u{2069}” (8) → “\u{2068}t1\u{2069}” (1): 0."), "{cell}");
    assert!(seen["cell"][1].as_str().unwrap().starts_with("#layer=5&head=2&token=8&"), "{}", seen["cell"]);
    assert_eq!(seen["escaped"], "");
    assert!(
        seen["unreachable"].as_array().unwrap().is_empty() && seen["count"].as_u64().unwrap() > 12,
        "{}",
        seen["unreachable"]
    );
    assert_eq!((&seen["old"]["layer"], &seen["old"]["head"]), (&"0".into(), &"1".into()));
    assert_eq!(seen["old"]["hash"], "#layer=0&head=1&token=3");
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn phone_has_targets_for_fingers_and_no_overflow() {
    let maps = marked(44, &softmax(25, &[12, 44, 44])).with_truncation(1014, &["the rest", ""]).unwrap();
    let script = r##"
      const small = () => [...document.querySelectorAll("button, select, summary, [role=option]")].filter(visible)
        .filter((target) => { const box = target.getBoundingClientRect(); return box.width < 43.99 || box.height < 43.99; }).map((t) => t.outerHTML);
      const overflow = () => document.documentElement.scrollWidth - document.documentElement.clientWidth;
      seen.wide = innerWidth; seen.small = small(); seen.overflow = [overflow()];
      await click(byId("zoom-fit")); seen.bare = cells().length;
      for (let i = 0; i < 5; i++) await click(byId("zoom-in"));
      const map = byId("map"), box = map.getBoundingClientRect(), inked = (x0, x1) => {
        let found = 0;
        for (let x = x0; x < x1; x += 2) for (let y = box.top + 120; y < box.bottom - 5; y++) if (pixel(map, x, y)[3] > 128) found++;
        return found;
      };
      seen.zoomed = cells(); seen.names = inked(box.left, box.left + 40);
      map.scrollIntoView({ block: "start" }); window.scrollBy(0, -200); await rest();
      const tap = async (part) => {
        const box = map.getBoundingClientRect(), y = part * innerHeight, x = box.left + 200;
        map.dispatchEvent(new MouseEvent("click", { clientX: x, clientY: y, bubbles: true }));
        await rest(); await rest();
        const said = byId("readout").getBoundingClientRect();
        return { text: byId("readout").textContent, y, top: said.top, bottom: said.bottom, screen: innerHeight };
      };
      seen.low = await tap(0.8); seen.high = await tap(0.45);
      const room = byId("overview-room"), frame = room.getBoundingClientRect();
      seen.overview = { scroll: room.scrollWidth - room.clientWidth, heads: room.querySelectorAll("button").length,
        outside: [...room.querySelectorAll("button")].filter((b) => b.getBoundingClientRect().right > frame.right + 0.01).length };
      await click(byId("view-lines")); seen.small.push(...small()); seen.overflow.push(overflow());
    "##;
    let seen = run_on_phone(&maps, script);
    assert_eq!(seen["wide"], 390);
    assert!(seen["small"].as_array().unwrap().is_empty(), "{}", seen["small"]);
    assert_eq!(seen["overflow"], serde_json::json!([0, 0]));
    assert!(seen["bare"].as_u64().unwrap() > 1500, "{}", seen["bare"]);
    let zoomed = seen["zoomed"].as_array().unwrap().len();
    assert!((20..600).contains(&zoomed) && seen["names"].as_u64().unwrap() > 50, "{zoomed} {}", seen["names"]);
    for tap in [&seen["low"], &seen["high"]] {
        let number = |name: &str| tap[name].as_f64().unwrap();
        assert!(tap["text"].as_str().unwrap().contains('→'), "{tap}");
        assert!(number("top") >= 0.0 && number("bottom") <= number("screen"), "{tap}");
        assert!(number("y") < number("top") - 44.0 || number("y") > number("bottom") + 44.0, "{tap}");
    }
    assert_eq!(seen["overview"], serde_json::json!({"scroll": 0, "heads": 24, "outside": 0}));
}

/// Three heads of `[CLS] t1 t2 ##t3 t4 … [SEP]`: all look at the next token, all at one token, and `t6` at `t1`.
fn maps_of_three_kinds(n: usize) -> AttentionMaps {
    let weight = |head: usize, query: usize, key: usize| match head {
        0 if key == (query + 1).min(n - 1) => 0.9,
        1 if key == 4 => 0.9,
        2 if (query, key) == (6, 1) => 0.6,
        _ => 0.1 / n as f32,
    };
    let weights = (0..3 * n * n).map(|i| weight(i / n / n, i / n % n, i % n)).collect();
    marked(n, &Tensor::from_vec(weights, (3, n, n), &Device::Cpu).unwrap())
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn page_opens_on_the_sharpest_head_unless_the_address_says_otherwise() {
    let script = "seen.look = look(); seen.special = byId('special').getAttribute('aria-pressed');\
        seen.made = document.querySelector('footer > p').textContent; const box = byId('map').getBoundingClientRect();\
        seen.share = box.width / byId('map-part').getBoundingClientRect().width; seen.bottom = box.bottom;";
    let seen = run(&maps_of_three_kinds(11), "#theme=light", script);
    assert_eq!(seen["look"]["hash"], "#layer=0&head=2&token=6&special=hidden&theme=light");
    assert_eq!(seen["look"]["list"][0], serde_json::json!(["t1", 1, "0.6000"]));
    assert_eq!(seen["special"], "false");
    assert!(seen["made"].as_str().unwrap().starts_with("Made by candle-attention "), "{}", seen["made"]);
    assert!(seen["share"].as_f64().unwrap() > 0.7, "the map fills its card: {}", seen["share"]);
    let seen = run(&maps_of_three_kinds(11), "#layer=5&head=1&token=2", script);
    assert_eq!((&seen["look"]["hash"], &seen["special"]), (&"#layer=5&head=1&token=2".into(), &"true".into()));
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn long_text_leaves_the_map_on_the_screen() {
    let maps = marked(200, &softmax(26, &[2, 200, 200])).with_title(&"a long text ".repeat(90));
    let maps = maps.with_truncation(1014, &["", &"the rest ".repeat(500)]).unwrap();
    let seen = run(&maps, "", "seen.top = byId('map').getBoundingClientRect().top; seen.screen = innerHeight;");
    let number = |name: &str| seen[name].as_f64().unwrap();
    assert!(number("top") < number("screen") - 150.0, "{seen}");
}

/// The chosen token is in view in the tokens, the map and the lines, and the page itself stays where it is.
#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn long_text_opens_on_the_chosen_token() {
    let n = 200;
    let weight = |query: usize, key: usize| if (query, key) == (150, 120) { 0.9 } else { 0.1 / n as f32 };
    let weights = (0..n * n).map(|i| weight(i / n, i % n)).collect();
    let maps = marked(n, &Tensor::from_vec(weights, (1, n, n), &Device::Cpu).unwrap());
    let script = r##"
      const inside = (list, item) => {
        const [box, at] = [list.getBoundingClientRect(), item.getBoundingClientRect()];
        return at.top >= box.top - 1 && at.bottom <= box.bottom + 1;
      };
      seen.hash = location.hash;
      seen.tokens = inside(byId("queries"), document.querySelector("#queries [aria-selected=true]"));
      seen.cells = cells().map((cell) => cell.said);
      await click(byId("view-lines"));
      await key(document.body, "End"); await key(document.body, "ArrowLeft");
      seen.lines = inside(byId("lines-room"), document.querySelector("#line-queries [aria-selected=true]"));
      await key(document.body, "v"); await key(document.body, "Home");
      seen.home = [inside(byId("queries"), document.querySelector("#queries [aria-selected=true]")), byId("map-room").scrollTop];
      seen.page = scrollY;
    "##;
    let seen = run(&maps, "", script);
    assert_eq!(seen["hash"], "#layer=0&head=0&token=150&special=hidden");
    let said = seen["cells"].as_array().unwrap();
    assert!(
        said.iter().any(|said| said == "“\u{2068}t150\u{2069}” (150) → “\u{2068}t120\u{2069}” (120): 0.9000"),
        "{seen}"
    );
    assert_eq!(
        (&seen["tokens"], &seen["lines"], &seen["home"], &seen["page"]),
        (&true.into(), &true.into(), &serde_json::json!([true, 0]), &0.into())
    );
}

#[test]
#[ignore = "needs Chromium: set CHROMIUM to its path if it is not on the search path as chromium"]
fn view_is_saved_as_svg_and_png() {
    let script = r##"
      // Files and pictures are read in real time, of which waiting takes none.
      const channel = new MessageChannel();
      const tick = () => new Promise((done) => { channel.port1.onmessage = done; channel.port2.postMessage(0); });
      const until = async (isDone) => { for (let i = 1; !isDone(); i++) await (i % 500 ? tick() : rest()); };
      const finished = async (promise) => {
        let found = null;
        promise.then((value) => { found = value; });
        await until(() => found !== null);
        return found;
      };
      const files = [];
      URL.createObjectURL = (file) => { files.push(file); return "#"; };
      HTMLAnchorElement.prototype.click = function () { files.push(this.download); };
      const saved = async (kind) => {
        files.length = 0;
        byId(`save-${kind}`).click();
        await until(() => files.length === 2);
        return files;
      };
      const svg = async () => { const [file, name] = await saved("svg"); return [name, file.type, await finished(file.text())]; };
      seen.map = await svg();
      const [file, name] = await saved("png"), image = await finished(createImageBitmap(file)), canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [image.width, image.height];
      const pen = canvas.getContext("2d");
      pen.drawImage(image, 0, 0);
      seen.png = [name, file.type, image.width, image.height];
      seen.inks = new Set(Array.from({ length: image.width }, (_, x) => pen.getImageData(x, image.height / 2, 1, 1).data.join(" "))).size;
      await click(byId("view-lines")); await click(byId("heads-all")); await click(byId("theme")); seen.lines = await svg();
    "##;
    let maps = maps_of_three_kinds(11).with_title(HOSTILE[0]);
    let seen = run(&maps, "", script);
    let picture = |name: &str, file: &str| {
        let saved = &seen[name];
        assert_eq!((&saved[0], &saved[1]), (&file.into(), &"image/svg+xml".into()));
        let svg = saved[2].as_str().unwrap().to_string();
        assert!(svg.starts_with("<svg ") && !svg.contains("<script"), "{svg}");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts = document.descendants().filter(|node| node.is_text()).filter_map(|node| node.text());
        let texts: Vec<String> = texts.map(str::to_string).collect();
        assert!(texts.contains(&"Attention weight".to_string()) && texts.contains(&"##t3".to_string()), "{texts:?}");
        let size = |name: &str| document.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
        (texts, size("width"), size("height"), svg.matches("<path").count())
    };
    let (texts, width, height, paths) = picture("map", "attention-layer-0-head-2.svg");
    assert!(texts.contains(&"Layer 0, head 2 · a/model · special tokens hidden".to_string()), "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("</script>")), "{texts:?}");
    assert!(texts.contains(&"0.6000".to_string()));
    assert_eq!(paths, 2 + 2, "a path per color, and two borders of the second text");
    let twice = [width, height].map(|pixels| 2 * pixels as u64);
    let png = serde_json::json!(["attention-layer-0-head-2.png", "image/png", twice[0], twice[1]]);
    assert_eq!(seen["png"], png);
    assert!(seen["inks"].as_u64().unwrap() > 2);
    let (texts, ..) = picture("lines", "attention-layer-0-head-0-1-2.svg");
    for head in ["head 0", "head 1", "head 2"] {
        assert!(texts.contains(&head.to_string()), "{texts:?}");
    }
}
