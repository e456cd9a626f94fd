// The tokens of the text as a list to choose from, colored by the weights of the chosen one.

const ofTheRight = (token) => /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/.test(token);

const writing = (label) => (ofTheRight(label) ? "rtl" : "ltr");

/** One option of a list box per token. */
function options(tokens, prefix) {
  return tokens.names.map((name, place) => {
    const item = element("span", "token", name);
    item.id = `${prefix}${place}`;
    item.dataset.place = place;
    item.setAttribute("role", "option");
    item.classList.toggle("special", tokens.has(place, SPECIAL));
    item.classList.toggle("continues", tokens.has(place, CONTINUES));
    item.classList.toggle("second", tokens.has(place, SECOND));
    return item;
  });
}
function heading(content) {
  const made = element("span", "text-name", content);
  made.setAttribute("role", "presentation");
  return made;
}
function fillTokens(tokens) {
  const list = byId(tokens.id), second = tokens.names.findIndex((_, place) => tokens.has(place, SECOND));
  list.dir = tokens.names.filter(ofTheRight).length * 2 > tokens.names.length ? "rtl" : "ltr";
  tokens.items = options(tokens, tokens.id === "queries" ? "q" : "k");
  const parts = [...tokens.items];
  if (second > 0) {
    parts.splice(second, 0, heading("Second text"));
    parts.unshift(heading("First text"));
  }
  if (tokens === queries && data.truncation) parts.push(heading(`${data.truncation.rest} more tokens were not read`));
  list.replaceChildren(...parts);
}

function drawTokens() {
  const { direction, token } = asking(), asker = asks(direction), others = answers(direction);
  const other = cell === null ? null : direction === "from" ? cell.key : cell.query;
  for (const tokens of axes) {
    tokens.items.forEach((item, place) => {
      const colored = tokens === others;
      const weight = colored ? weightOf(current.numbers, asking(), place) : 0;
      [item.style.background, item.style.color] = colored ? inks[shade(weight, mostShown())] : ["", ""];
      item.title = colored ? text(weight) : "";
      item.hidden = !state.special && tokens.has(place, SPECIAL);
      item.classList.toggle("asks", tokens === asker && place === token);
      item.classList.toggle("pointed", colored && place === other);
      item.setAttribute("aria-selected", tokens === asks(state.direction) && place === state.token);
    });
  }
  byId(asks(state.direction).id).setAttribute("aria-activedescendant", asks(state.direction).items[state.token].id);
}

/** The list of the other tokens, the largest weight first. */
function drawList() {
  const asker = asking(), { direction, token } = asker, others = answers(direction), { numbers } = current;
  byId("list-name").textContent = `${quoted(asks(direction), token)} ${direction === "from" ? "looks at" : "is looked at by"}`;
  byId("list-token").textContent = direction === "from" ? "Key" : "Query";
  const weight = (place) => weightOf(numbers, asker, place);
  const order = [...others.shown].sort((a, b) => weight(b) - weight(a) || a - b);
  const first = order.length <= 16 ? 16 : 12, most = weight(order[0]);
  const listed = state.list === "all" ? order : order.slice(0, first);
  byId("list").tBodies[0].replaceChildren(...listed.map((place) => {
    const line = document.createElement("tr"), bar = element("td", "bar", ""), name = element("td", "", others.labels[place]);
    bar.append(document.createElement("i"));
    bar.firstChild.style.width = `${most > 0 ? (100 * weight(place)) / most : 0}%`;
    name.dir = writing(others.labels[place]);
    line.append(name, element("td", "number", place), element("td", "number weight", text(weight(place))), bar);
    return line;
  }));
  byId("all").hidden = order.length <= first;
  byId("all").textContent = state.list === "all" ? `Show the first ${first}` : `Show all ${order.length}`;
  const left = places(others).filter((place) => !others.shown.includes(place));
  const sum = left.reduce((sum, place) => sum + weight(place), 0);
  byId("hidden-weight").textContent = !left.length ? "" : direction === "from"
    ? `${text(sum)} of its attention goes to special tokens, which are hidden. The other weights are as they were, not scaled up.`
    : "Special tokens are hidden. The other weights are as they were, not scaled up.";
}
