// Model folders and text files that a reader drops or opens.

const MOST_BYTES = 2 * 2 ** 30;
const MOST_TEXT_BYTES = 16 * 2 ** 20;
const MOST_FILES = 2000, DEEPEST = 4;
// Copies of the weights in other formats.
const IGNORED_FOLDER = /^(onnx|openvino|coreml|\..*|checkpoint-\d+)$/;
const MODEL_FILE = /\.(json|safetensors)$/;
const MODULE_FOLDER = /(^|\/)\d+_[^/]*\/[^/]*$/; // 1_Pooling/config.json

const ofModel = (path) => {
  const folders = path.split("/"), name = folders.pop();
  return MODEL_FILE.test(name) && !folders.some((folder) => IGNORED_FOLDER.test(folder));
};
const gigabytes = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

/** The files `{ path, file }` below a dropped entry that can be of a model. */
async function walk(entry, path, found, depth) {
  if (found.length > MOST_FILES) throw new Error(`it has more than ${MOST_FILES} files`);
  if (entry.isFile) {
    if (ofModel(path)) found.push({ path, file: await new Promise((done, failed) => entry.file(done, failed)) });
  } else if (depth < DEEPEST && !IGNORED_FOLDER.test(entry.name)) {
    const reader = entry.createReader();
    // A reader gives a part of the entries at a time.
    for (;;) {
      const entries = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!entries.length) break;
      for (const inner of entries) await walk(inner, `${path}/${inner.name}`, found, depth + 1);
    }
  }
}

/** What was dropped: `{ text: File }`, `{ folder, files }`, or null. To be called in the event, which forgets its items later. */
export function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean), [first] = entries;
  if (!first) return null;
  const isModel = entries.some((entry) => entry.isDirectory || MODEL_FILE.test(entry.name));
  if (!isModel) return Promise.resolve({ text: transfer.files[0] });
  const folder = first.isDirectory ? first.name : "the dropped files", files = [];
  const all = entries.map((entry) => walk(entry, first.isDirectory ? entry.name : `files/${entry.name}`, files, 0));
  return Promise.all(all).then(() => ({ folder, files }), (error) => ({ folder, files, error }));
}

/** The folder that was chosen in an input. */
export function picked(input) {
  const all = [...input.files].map((file) => ({ path: file.webkitRelativePath || file.name, file }));
  return { folder: all[0]?.path.split("/")[0] ?? "", files: all.filter(({ path }) => ofModel(path)) };
}

/** The model's files below the folder that holds its configuration, nearest to the top: `[[path, ArrayBuffer]]`. */
export async function readModel({ files, error }) {
  if (error) throw error;
  const depth = ({ path }) => path.split("/").length;
  const isTop = ({ path }) => /(^|\/)(modules|config)\.json$/.test(path) && !MODULE_FOLDER.test(path);
  const tops = files.filter(isTop).sort((a, b) => depth(a) - depth(b));
  if (!tops.length) throw new Error("it has no config.json");
  const top = tops[0].path.slice(0, tops[0].path.lastIndexOf("/") + 1);
  const inside = files.filter(({ path }) => path.startsWith(top));
  const bytes = inside.reduce((sum, { file }) => sum + file.size, 0);
  if (bytes > MOST_BYTES) {
    throw new Error(`its files have ${gigabytes(bytes)}, and this page takes at most ${gigabytes(MOST_BYTES)}`);
  }
  return Promise.all(inside.map(async ({ path, file }) => [path.slice(top.length), await file.arrayBuffer()]));
}

/** The content of a text file. */
export async function readText(file) {
  if (file.size > MOST_TEXT_BYTES) {
    throw new Error(`it has ${(file.size / 2 ** 20).toFixed(0)} MiB, and this page takes at most ${MOST_TEXT_BYTES / 2 ** 20} MiB`);
  }
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    if (error instanceof TypeError) throw new Error("it is not text in UTF-8");
    throw error;
  }
}
