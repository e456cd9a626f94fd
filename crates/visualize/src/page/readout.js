// The readout of a cell, away from the finger on a touch screen.

/** Points at a cell, or at none. `event` is the touch or the movement, if there was one. */
function point(at, event = null) {
  if (at?.query === cell?.query && at?.key === cell?.key && hovered === null) return;
  cell = at;
  hovered = null;
  if (at) hovered = { direction: state.direction, token: state.direction === "from" ? at.query : at.key };
  const readout = byId("readout");
  readout.textContent = !at ? ""
    : `${quoted(queries, at.query)} → ${quoted(keys, at.key)}: ${text(current.numbers[at.query * keys.names.length + at.key])}`;
  readout.classList.toggle("pointing", at !== null);
  if (event) readout.classList.toggle("above", event.clientY > innerHeight / 2);
  schedule();
}
/** Points at a token, or at none. */
function hover(asker) {
  if (asker?.token === hovered?.token && asker?.direction === hovered?.direction && cell === null) return;
  point(null);
  hovered = asker;
  schedule();
}
