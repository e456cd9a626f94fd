"""The interface of the phones through UniFFI's Python bindings, compared with the crate's own program.

Environment: CANDLE_ATTENTION_ENCODE, the example `encode` of the crate; CANDLE_ATTENTION_MINILM, the folder of
all-MiniLM-L6-v2 (without it, its test is skipped). `../generate` makes the bindings.
"""

import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BINDINGS = HERE.parent / "target" / "bindings" / "python"
ROOT = HERE.parents[2]
# Python loads the library beside the bindings.
SUFFIX = "dylib" if sys.platform == "darwin" else "so"
shutil.copy(HERE.parent / "target" / "release" / f"libcandle_attention_mobile.{SUFFIX}", BINDINGS)
sys.path.insert(0, str(BINDINGS))

from candle_attention_mobile import (  # noqa: E402
    Cancellation,
    ComputeDevice,
    EncodeOptions,
    EncoderError,
    NumberFormat,
    SearchIndex,
    SentenceEncoder,
)

TEXTS = ["A cat sleeps on the sofa.", "The stock market fell.", "", "Ein Kätzchen 🐈 schläft.", "word " * 300]
CPU, F32 = ComputeDevice.CPU, NumberFormat.F32


def files(folder):
    """The files of a folder by their paths in it."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def encoded_by_the_program(*arguments):
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        # The program skips blank lines.
        file.write("\n".join(text for text in TEXTS if text))
        file.flush()
        command = [os.environ["CANDLE_ATTENTION_ENCODE"], "--json", "--file", file.name, *arguments]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line)["embedding"] for line in lines]


class Embeddings(unittest.TestCase):
    def assert_close(self, found, expected, most=1e-6):
        self.assertEqual([len(row) for row in found], [len(row) for row in expected])
        worst = max(abs(a - b) for f, e in zip(found, expected) for a, b in zip(f, e))
        self.assertLessEqual(worst, most)

    def test_embedded_model_equals_the_program(self):
        encoder = SentenceEncoder.embedded(CPU, F32)
        self.assertEqual((encoder.dimension(), encoder.max_seq_length()), (128, 128))
        self.assertEqual((encoder.device(), encoder.similarity_function()), (CPU, "cosine"))
        found = encoder.encode([text for text in TEXTS if text])
        self.assert_close(found, encoded_by_the_program())

    def test_folder_and_files_equal_the_embedded_model(self):
        expected = SentenceEncoder.embedded(CPU, F32).encode(TEXTS)
        folder = ROOT / "weights"
        self.assertEqual(SentenceEncoder.from_folder(str(folder), CPU, F32).encode(TEXTS), expected)
        self.assertEqual(SentenceEncoder.from_files(files(folder), CPU, F32).encode(TEXTS), expected)

    @unittest.skipUnless("CANDLE_ATTENTION_MINILM" in os.environ, "CANDLE_ATTENTION_MINILM is not set")
    def test_minilm_from_bytes_equals_the_program(self):
        folder = pathlib.Path(os.environ["CANDLE_ATTENTION_MINILM"])
        encoder = SentenceEncoder.from_files(files(folder), ComputeDevice.AUTO, F32)
        self.assertEqual((encoder.dimension(), encoder.max_seq_length()), (384, 256))
        found = encoder.encode([text for text in TEXTS if text])
        self.assert_close(found, encoded_by_the_program("--model", str(folder)))

    def test_sixteen_bits_are_close(self):
        expected = SentenceEncoder.embedded(CPU, F32).encode(TEXTS)
        for number_format in (NumberFormat.F16, NumberFormat.BF16):
            self.assert_close(SentenceEncoder.embedded(CPU, number_format).encode(TEXTS), expected, most=0.02)

    def test_options(self):
        encoder = SentenceEncoder.embedded(CPU, F32)
        full = encoder.encode(TEXTS)
        self.assertEqual(encoder.encode(TEXTS, EncodeOptions(batch_size=1)), full)
        self.assertEqual(encoder.encode_query(TEXTS), full)
        self.assertEqual(encoder.encode_document(TEXTS), full)
        self.assertEqual(encoder.encode(TEXTS, EncodeOptions(truncate_dim=7)), [row[:7] for row in full])
        short = encoder.encode(TEXTS, EncodeOptions(truncate_dim=7, normalize_embeddings=True))
        for row in short:
            self.assertAlmostEqual(math.hypot(*row), 1, places=5)
        prompted = encoder.encode(["cat"], EncodeOptions(prompt="A sleepy "))
        self.assertEqual(prompted, encoder.encode(["A sleepy cat"]))
        self.assertEqual(encoder.encode(TEXTS[-1:], EncodeOptions(max_length=5)), encoder.encode(["word word word"]))
        self.assertEqual(encoder.encode([]), [])

    def test_similarity(self):
        encoder = SentenceEncoder.embedded(CPU, F32)
        a = encoder.encode(TEXTS[:2])
        similarity = encoder.similarity(a, a[:1])
        self.assertEqual([len(row) for row in similarity], [1, 1])
        self.assertAlmostEqual(similarity[0][0], 1, places=5)
        self.assertAlmostEqual(similarity[1][0], sum(x * y for x, y in zip(*a)), places=5)
        self.assertEqual(encoder.similarity([], a), [])
        for number in (3e38, 1e-38):
            self.assertEqual(encoder.similarity([[number] * 128], [[number] * 128]), [[0]])


class Search(unittest.TestCase):
    def setUp(self):
        self.encoder = SentenceEncoder.embedded(CPU, F32)
        self.index = SearchIndex(self.encoder)

    def test_nearest_texts(self):
        self.assertEqual(self.index.search("a kitten", 3), [])
        self.assertEqual(self.index.add(TEXTS[1:2]), 0)
        self.assertEqual(self.index.add(TEXTS[:1]), 1)
        self.assertEqual(self.index.count(), 2)
        hits = self.index.search("a kitten naps", 5)
        self.assertEqual([hit.index for hit in hits], [1, 0])
        cosines = self.encoder.similarity(self.encoder.encode(["a kitten naps"]), self.encoder.encode(TEXTS[:2]))[0]
        for hit, cosine in zip(hits, cosines):
            self.assertAlmostEqual(hit.score, cosine, places=3)
        self.assertEqual([hit.index for hit in self.index.search("a kitten naps", 1)], [1])
        self.assertEqual(self.index.search("a kitten naps", 0), [])

    def test_saved_embeddings(self):
        self.index.add(TEXTS)
        again = SearchIndex(self.encoder)
        again.add_embeddings(self.encoder.encode_document(TEXTS))
        self.assertEqual(again.search("cat", 5), self.index.search("cat", 5))

    def test_nothing_of_a_wrong_list_is_added(self):
        with self.assertRaisesRegex(EncoderError.Argument, r"^vector 1 has shape \[2\], expected \(128\)$"):
            self.index.add_embeddings([[1.0] * 128, [1.0, 2.0]])
        with self.assertRaisesRegex(EncoderError.Argument, "^vector 0 is not finite, expected finite numbers$"):
            self.index.add_embeddings([[math.nan] * 128])
        self.assertEqual(self.index.count(), 0)
        with self.assertRaisesRegex(EncoderError.Argument, r"^the embedding of the query has shape \[1\]"):
            self.index.search_embedding([1.0], 1)

    def test_many_threads_share_an_index(self):
        threads = [threading.Thread(target=self.index.add, args=(TEXTS,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(self.index.count(), 8 * len(TEXTS))
        hits = self.index.search(TEXTS[0], 8)
        self.assertEqual([TEXTS[hit.index % len(TEXTS)] for hit in hits], TEXTS[:1] * 8)


class Errors(unittest.TestCase):
    def refused(self, kind, message, call, *arguments):
        with self.assertRaises(kind) as raised:
            call(*arguments)
        self.assertEqual(str(raised.exception), message)

    def test_models(self):
        model = EncoderError.Model
        self.refused(
            model,
            "no/such/folder/config.json: No such file or directory (os error 2)",
            *(SentenceEncoder.from_folder, "no/such/folder", CPU, F32),
        )
        self.refused(
            model,
            "../config.json: is not the name of a file inside a folder",
            *(SentenceEncoder.from_files, {"../config.json": b"{}"}, CPU, F32),
        )
        model_files = files(ROOT / "weights")
        for name, message in {
            "config.json": "config.json: the file is not among those in memory",
            "tokenizer.json": "tokenizer.json: the file is not among those in memory",
            "model.safetensors": "model.safetensors: the file is not among those in memory",
        }.items():
            rest = {key: value for key, value in model_files.items() if key != name}
            self.refused(model, message, SentenceEncoder.from_files, rest, CPU, F32)
        cut = model_files | {"model.safetensors": model_files["model.safetensors"][:-1]}
        with self.assertRaisesRegex(model, "^model.safetensors: "):
            SentenceEncoder.from_files(cut, CPU, F32)
        message = "the path of the folder is empty, expected that of a folder with a model"
        self.refused(EncoderError.Argument, message, SentenceEncoder.from_folder, "", CPU, F32)

    def test_a_tokenizer_of_another_model(self):
        model_files = files(ROOT / "weights")
        tokenizer = json.loads(model_files["tokenizer.json"])
        processor = tokenizer["post_processor"]
        special = next(iter(processor["special_tokens"].values()))
        for part, key, value, message in [
            (special, "ids", [9999], "the id of token `` is 9999, expected less than 9000, the vocab_size of the model"),
            (processor["single"][0]["SpecialToken"], "type_id", 2, "the segment type of a token is 2, expected less than 2, the type_vocab_size of the model"),
        ]:
            right = part[key]
            part[key] = value
            wrong = model_files | {"tokenizer.json": json.dumps(tokenizer).encode()}
            encoder = SentenceEncoder.from_files(wrong, CPU, F32)
            self.refused(EncoderError.Model, message, encoder.encode, ["A cat"])
            part[key] = right

    def test_arguments(self):
        encoder, argument = SentenceEncoder.embedded(CPU, F32), EncoderError.Argument
        for options, message in [
            (EncodeOptions(batch_size=0), "config: batch_size = 0 is not allowed: expected at least 1"),
            (EncodeOptions(truncate_dim=0), "config: truncate_dim = 0 is not allowed: expected at least 1"),
            (EncodeOptions(prompt_name="none"), "prompt_name is none, expected document or query"),
            (
                EncodeOptions(max_length=129),
                "config: max_length = 129 is not allowed: expected at most 128, the positions of the model",
            ),
        ]:
            self.refused(argument, message, encoder.encode, TEXTS, options)
        self.refused(
            argument,
            "the size of row 1 of the first embeddings is 2, expected 1, that of row 0",
            *(encoder.similarity, [[1.0], [1.0, 2.0]], []),
        )
        self.refused(
            argument,
            "the second embeddings has shape [1, 2], expected (m, 1)",
            *(encoder.similarity, [[1.0]], [[1.0, 2.0]]),
        )
        self.refused(
            argument,
            "row 0 of the first embeddings is not finite, expected finite numbers",
            *(encoder.similarity, [[math.inf]], []),
        )

    def test_device(self):
        message = "this library was built without the feature `metal`, expected `Auto` or `Cpu`"
        self.refused(EncoderError.Device, message, SentenceEncoder.embedded, ComputeDevice.METAL, F32)

    def test_cancellation(self):
        encoder, cancellation = SentenceEncoder.embedded(CPU, F32), Cancellation()
        self.assertFalse(cancellation.is_cancelled())
        self.assertEqual(len(encoder.encode(TEXTS, cancellation=cancellation)), len(TEXTS))
        cancellation.cancel()
        self.assertTrue(cancellation.is_cancelled())
        index = SearchIndex(encoder)
        self.refused(EncoderError.Cancelled, "the call was cancelled", encoder.encode, TEXTS, EncodeOptions(), cancellation)
        self.refused(EncoderError.Cancelled, "the call was cancelled", index.add, TEXTS, cancellation)
        self.assertEqual(index.count(), 0)

    def test_a_running_call_is_cancelled(self):
        encoder, cancellation = SentenceEncoder.embedded(CPU, F32), Cancellation()
        timer = threading.Timer(0.05, cancellation.cancel)
        timer.start()
        with self.assertRaises(EncoderError.Cancelled):
            # Far more than can be embedded in that time.
            encoder.encode(["A cat sleeps on the sofa. " * 20] * 100_000, EncodeOptions(batch_size=8), cancellation)
        timer.join()


if __name__ == "__main__":
    unittest.main()
