// Two columns of tokens with lines between them: one color per head, the opacity is the weight.

const lists = { from: byId("line-queries"), to: byId("line-keys") };
const FAINTEST = 0.01; // lines of less opacity are not seen

function fillLines() {
  lists.from.replaceChildren(...options(queries, "lq"));
  lists.to.replaceChildren(...options(keys, "lk"));
  for (const [direction, tokens] of [["from", queries], ["to", keys]]) {
    [...lists[direction].children].forEach((item, place) => {
      item.textContent = tokens.labels[place];
      item.dir = writing(tokens.labels[place]);
    });
  }
}

/** One button per head of the layer. */
function drawHeads() {
  const buttons = byId("heads"), numbers = heads();
  if (buttons.childElementCount !== numbers.length || buttons.dataset.layer !== String(state.layer)) {
    buttons.dataset.layer = state.layer;
    buttons.replaceChildren(...numbers.map((number, head) => {
      const button = element("button", "", number);
      button.type = "button";
      button.dataset.head = head;
      button.setAttribute("aria-label", `Head ${number}`);
      return button;
    }));
  }
  for (const button of buttons.children) {
    const head = Number(button.dataset.head);
    button.style.setProperty("--head", headColor(head));
    button.setAttribute("aria-pressed", state.heads.includes(head));
  }
}
/** Shows or hides a head. The head shown last is the one of the list; one head is always shown. */
function toggleHead(head) {
  const rest = state.heads.filter((shown) => shown !== head);
  if (rest.length === state.heads.length) choose({ heads: [...rest, head], head });
  else if (rest.length) choose({ heads: rest, head: state.head === head ? rest[0] : state.head });
}

/** What belongs to the lines but the lines themselves: the tokens, the buttons and the legend. */
function drawSides() {
  const asker = asking();
  for (const [direction, tokens] of [["from", queries], ["to", keys]]) {
    [...lists[direction].children].forEach((item, place) => {
      item.hidden = !state.special && tokens.has(place, SPECIAL);
      item.classList.toggle("asks", direction === asker.direction && place === asker.token);
      item.setAttribute("aria-selected", direction === state.direction && place === state.token);
    });
  }
  lists[state.direction].setAttribute("aria-activedescendant", lists[state.direction].children[state.token].id);
  drawHeads();
  byId("lines-only").setAttribute("aria-pressed", state.lines === "token");
  byId("lines-heads").replaceChildren(...shownHeads().map((head) => {
    const name = element("span", "", `head ${heads()[head]}`);
    name.style.setProperty("--head", headColor(head));
    return name;
  }));
}

function drawLines() {
  const canvas = byId("lines"), box = byId("lines-room"), pen = canvas.getContext("2d"), sharp = devicePixelRatio || 1;
  const { direction, token: asked } = asking(), focused = hovered !== null || state.lines === "token";
  const height = lists.from.querySelector(".token:not([hidden])").offsetHeight;
  const rows = Math.max(queries.shown.length, keys.shown.length);
  const [wide, high] = [canvas.parentElement.clientWidth, Math.min(box.clientHeight, rows * height)];
  [canvas.width, canvas.height] = [Math.ceil(wide * sharp), Math.ceil(high * sharp)];
  [canvas.style.width, canvas.style.height] = [`${wide}px`, `${high}px`];
  pen.setTransform(sharp, 0, 0, sharp, 0, 0);
  pen.lineWidth = 1.5;
  const most = mostShown(), scroll = box.scrollTop, end = (i) => (i + 0.5) * height - scroll;
  const isOut = (y) => y < -height || y > high + height;
  const [left, right] = direction === "from" ? [0, wide] : [wide, 0];
  const tokens = asks(direction), others = answers(direction).shown;
  for (const { numbers, head } of loaded) {
    pen.strokeStyle = headColor(head);
    for (const token of focused ? [asked] : tokens.shown) {
      const start = end(tokens.shown.indexOf(token));
      others.forEach((place, i) => {
        const opacity = most > 0 ? weightOf(numbers, { direction, token }, place) / most : 0;
        if (opacity < FAINTEST || (isOut(start) && isOut(end(i)))) return;
        pen.globalAlpha = Math.min(opacity, 1);
        pen.beginPath();
        pen.moveTo(left, start);
        pen.lineTo(right, end(i));
        pen.stroke();
      });
    }
  }
}
