// A text cut into sentences.

const segmenter = new Intl.Segmenter("en", { granularity: "sentence" });
const LINE_END = /\r\n|[\n\r\u2028\u2029]/;
const SLICE = 30; // milliseconds of work before the page gets its turn

/** The rest of the browser's work comes first. */
export const rest = () => new Promise((done) => setTimeout(done));

let known = new Map(); // the sentences of each line of the last text

/**
 * The sentences of a text in turn, each with the number of its line: `[{ text, line }]`, or null if `isWanted` says no
 * meanwhile. Lines of the text before this one are not cut again.
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
      for (const { segment } of segmenter.segment(line)) {
        const sentence = segment.trim();
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
