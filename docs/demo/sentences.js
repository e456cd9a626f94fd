// A text cut into sentences.

const segmenter = new Intl.Segmenter("en", { granularity: "sentence" });
const LINE_END = /\r\n|[\n\r\u2028\u2029]/;
const SLICE = 30; // milliseconds of work before the page gets its turn
const LONGEST = 2000; // characters of a sentence; the browser lays out much longer ones for seconds
const LONGEST_PART = 100_000; // characters of a line that are cut into sentences at a time

/** The rest of the browser's work comes first. */
export const rest = () => new Promise((done) => setTimeout(done));

/** A text in parts of at most `most` characters, cut after a space if there is one, never inside a character. */
function* partsOf(text, most) {
  let start = 0;
  while (text.length - start > most) {
    const space = text.slice(start, start + most).lastIndexOf(" ");
    let end = start + (space < 0 ? most : space + 1);
    if (/^[\ud800-\udbff][\udc00-\udfff]/.test(text.slice(end - 1, end + 1))) end--;
    yield text.slice(start, end);
    start = end;
  }
  yield text.slice(start);
}

/** The first `most` characters of a text, with a sign that there are more. */
export function shortened(text, most) {
  return text.length > most ? `${text.slice(0, most).replace(/[\ud800-\udbff]$/, "")}…` : text;
}

/** The sentences of a line in turn. */
function* cut(line) {
  for (let start = 0; start < line.length;) {
    const part = line.slice(start, start + LONGEST_PART), isLast = start + part.length === line.length;
    for (const { segment, index } of segmenter.segment(part)) {
      const sentences = [...partsOf(segment, LONGEST)];
      // What ends where the part ends may go on in the next one.
      if (!isLast && index + segment.length === part.length) {
        if (index > 0) break;
        sentences.pop();
      }
      yield* sentences;
      for (const sentence of sentences) start += sentence.length;
    }
  }
}

let known = new Map(); // the sentences of each line of the last text

/**
 * The sentences of a text in turn, each with the number of its line: `[{ text, line }]`, or null if `isWanted` says no
 * meanwhile. A sentence of more than 2,000 characters becomes several. Lines of the text before this one are not cut again.
 */
export async function sentencesOf(text, isWanted) {
  const found = [], lines = new Map();
  let start = performance.now();
  const turn = async () => {
    if (performance.now() - start < SLICE) return true;
    await rest();
    start = performance.now();
    return isWanted();
  };
  for (const [number, line] of text.split(LINE_END).entries()) {
    let sentences = lines.get(line) ?? known.get(line);
    if (!sentences) {
      sentences = [];
      for (const part of cut(line)) {
        const sentence = part.trim();
        if (sentence) sentences.push(sentence);
        if (!(await turn())) return null;
      }
    }
    lines.set(line, sentences);
    for (const sentence of sentences) found.push({ text: sentence, line: number });
    if (!(await turn())) return null;
  }
  known = lines;
  return found;
}
