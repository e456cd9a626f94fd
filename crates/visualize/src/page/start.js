// What the page shows once per text: names, the text, what was cut of it.

function showText(found) {
  take(found);
  current = hovered = cell = null;
  cached.clear();
  colored = mapImage.of = byId("heads").dataset.layer = "";
  byId("model").textContent = data.model;
  byId("model").hidden = !data.model;
  byId("title").textContent = data.title;
  byId("title").hidden = !data.title;
  // One that is cut is shown in full while it has the focus.
  byId("title").tabIndex = byId("title").scrollHeight > byId("title").clientHeight + 2 ? 0 : -1;
  byId("cut").hidden = !data.truncation;
  if (data.truncation) showCut(data.truncation);
  byId("special").hidden = !canHide;
  byId("pieces").hidden = !any(CONTINUES);
  byId("keys-part").hidden = selfAttention;
  axes.forEach(fillTokens);
  fillLines();
  fillOverview();
}

function showCut({ note, cut }) {
  const notice = byId("cut");
  notice.replaceChildren(element("p", "", `Read by the model: ${note}.`));
  cut.forEach(({ text, more }, i) => {
    if (!text) return;
    const which = cut.length > 1 ? ` of the ${["first", "second"][i] ?? `${i + 1}th`} text` : "";
    const part = element("details", "", ""), body = element("del", "", more ? `${text} … and ${more} more characters` : text);
    body.dir = "auto";
    part.append(element("summary", "", `Not read${which}`), body);
    notice.append(part);
  });
}
