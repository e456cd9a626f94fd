// Model folders and text files that a reader drops or opens.

const MOST_BYTES = 2 * 2 ** 30;
const MOST_TEXT_BYTES = 16 * 2 ** 20;
const MOST_FILES = 2000, DEEPEST = 8; // files of a model, and folders below the chosen one
// Copies of the weights in other formats.
const IGNORED_FOLDER = /^(onnx|openvino|coreml|\..*|checkpoint-\d+)$/;
const MODEL_FILE = /\.(json|safetensors)$/;
const MODULE_FOLDER = /(^|\/)\d{1,2}_[A-Z]\w*\/[^/]*$/; // 1_Pooling/config.json

// Paths begin with the chosen folder, whose own name says nothing of what is in it.
const inside = (path) => path.slice(path.indexOf("/") + 1);
const isRead = (folders) => folders.length <= DEEPEST && !folders.some((folder) => IGNORED_FOLDER.test(folder));
function isOfModel(path) {
  const folders = inside(path).split("/"), name = folders.pop();
  return MODEL_FILE.test(name) && isRead(folders);
}
const gigabytes = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

/** Adds the files `{ path, file }` of a dropped entry that can be of a model. `folders` are those that it lies in. */
async function walk(entry, path, folders, found) {
  if (found.length > MOST_FILES) return;
  if (entry.isFile) {
    if (isOfModel(path)) found.push({ path, file: await new Promise((done, failed) => entry.file(done, failed)) });
  } else if (isRead(folders)) {
    const reader = entry.createReader();
    // A reader gives a part of the entries at a time.
    for (;;) {
      const entries = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!entries.length) break;
      for (const inner of entries) {
        await walk(inner, `${path}/${inner.name}`, inner.isFile ? folders : [...folders, inner.name], found);
      }
    }
  }
}

/** What was dropped: `{ text: File }`, or `{ folder, files }` with a promise of the files, or null. */
export function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean), [first] = entries;
  if (!first) return null;
  const isModel = entries.some((entry) => entry.isDirectory || MODEL_FILE.test(entry.name));
  if (!isModel) return { text: transfer.files[0] };
  const folder = first.isDirectory ? first.name : "the dropped files", found = [];
  const all = entries.map((entry) => walk(entry, first.isDirectory ? entry.name : `files/${entry.name}`, [], found));
  const files = Promise.all(all).then(() => found);
  files.catch(() => {}); // `readModel` throws it, perhaps later
  return { folder, files };
}

/** The folder that was chosen in an input. */
export function picked(input) {
  const all = [...input.files].map((file) => ({ path: file.webkitRelativePath || `files/${file.name}`, file }));
  return { folder: all[0]?.path.split("/")[0] ?? "", files: all.filter(({ path }) => isOfModel(path)) };
}

/** The model's files below the folder that holds its configuration, nearest to the top: `[[path, ArrayBuffer]]`. */
export async function readModel(opened) {
  const files = await opened.files;
  if (files.length > MOST_FILES) throw new Error(`it has more than ${MOST_FILES} files`);
  const depth = ({ path }) => path.split("/").length;
  const isTop = ({ path }) => /\/(modules|config)\.json$/.test(path) && !MODULE_FOLDER.test(inside(path));
  const tops = files.filter(isTop).sort((a, b) => depth(a) - depth(b));
  if (!tops.length) throw new Error("it has no config.json in a folder that this page reads");
  const top = tops[0].path.slice(0, tops[0].path.lastIndexOf("/") + 1);
  const ofModel = files.filter(({ path }) => path.startsWith(top));
  const bytes = ofModel.reduce((sum, { file }) => sum + file.size, 0);
  if (bytes > MOST_BYTES) {
    throw new Error(`its files have ${gigabytes(bytes)}, and this page takes at most ${gigabytes(MOST_BYTES)}`);
  }
  return Promise.all(ofModel.map(async ({ path, file }) => [path.slice(top.length), await file.arrayBuffer()]));
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
