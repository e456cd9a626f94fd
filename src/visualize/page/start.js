// What the page shows once: names, the text, what was cut of it; then the first draw.

byId("model").textContent = data.model;
byId("model").hidden = !data.model;
byId("title").textContent = data.title;
byId("title").hidden = !data.title;
if (data.truncation) {
  const { note, cut } = data.truncation, notice = byId("cut");
  notice.hidden = false;
  notice.append(element("p", "", `Read by the model: ${note}.`));
  cut.forEach(({ text, more }, i) => {
    if (!text) return;
    const which = cut.length > 1 ? ` of the ${["first", "second"][i] ?? `${i + 1}th`} text` : "";
    const part = element("details", "", ""), body = element("del", "", more ? `${text} … and ${more} more characters` : text);
    body.dir = "auto";
    part.append(element("summary", "", `Not read${which}`), body);
    part.open = true;
    notice.append(part);
  });
}
byId("special").hidden = !canHide;
byId("pieces").hidden = !any(CONTINUES);
byId("keys-part").hidden = selfAttention;
axes.forEach(fillTokens);
fillLines();
fillOverview();
fromHash().then(drawOverview);
