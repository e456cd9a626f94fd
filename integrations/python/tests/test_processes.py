"""Threads, processes, pickles, signals: what engines do with a model."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from models import TEXTS

import candle_attention
from candle_attention import CrossEncoder, SentenceTransformer


def python(code: str, **environment: str) -> str:
    """What a program of Python prints."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.fixture(scope="module")
def model() -> SentenceTransformer:
    return SentenceTransformer.embedded(prompts={"query": "q: "})


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(prompted: str, protocol: int) -> None:
    model = SentenceTransformer(prompted, prompts={"query": "q: "}, truncate_dim=9, similarity_fn_name="dot")
    model.max_seq_length = 11
    pickled = pickle.dumps(model, protocol)
    assert len(pickled) < 2000
    loaded = pickle.loads(pickled)
    np.testing.assert_array_equal(loaded.encode_query(TEXTS), model.encode_query(TEXTS))
    for name in ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "max_seq_length"):
        assert getattr(loaded, name) == getattr(model, name)


def test_pickle_of_the_other_models(model: SentenceTransformer, cross: str) -> None:
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).encode(TEXTS), model.encode(TEXTS))
    scores = CrossEncoder(cross, max_length=12)
    pairs = [("a", "b"), ("the cat", "sleeps on the sofa in the house")]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(scores)).predict(pairs), scores.predict(pairs))


def test_pickle_in_another_folder(dense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(dense).parent)
    pickled = pickle.dumps(SentenceTransformer(Path(dense).name))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(pickled).encode("a").shape == (32,)


def test_pickle_whose_folder_is_gone(dense: str, tmp_path: Path) -> None:
    os.symlink(dense, tmp_path / "model")
    pickled = pickle.dumps(SentenceTransformer(tmp_path / "model"))
    os.unlink(tmp_path / "model")
    with pytest.raises(FileNotFoundError, match="no such folder on this machine; a pickled model is loaded by its path"):
        pickle.loads(pickled)


def test_pickle_holds_no_token(monkeypatch: pytest.MonkeyPatch, dense: str) -> None:
    assert b"hf_secret" not in pickle.dumps(SentenceTransformer(dense, token="hf_secret"))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_share_the_weights_and_nothing_else(model: SentenceTransformer, duplicate) -> None:  # type: ignore[no-untyped-def]
    other = duplicate(model)
    assert other._native is model._native
    other.truncate_dim = 5
    assert other.encode("a").shape == (5,) and model.encode("a").shape == (128,)
    if duplicate is copy.deepcopy:
        other.prompts["query"] = "changed"
        assert model.prompts["query"] == "q: "


def test_threads_share_a_model(model: SentenceTransformer) -> None:
    expected = [model.encode(TEXTS[i % len(TEXTS) :]) for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: model.encode(TEXTS[i % len(TEXTS) :]), range(16)))
    for ours, alone in zip(got, expected):
        np.testing.assert_array_equal(ours, alone)


def test_python_runs_on_while_a_model_computes(model: SentenceTransformer) -> None:
    with ThreadPoolExecutor(1) as pool:
        running, counted = pool.submit(model.encode, ["a long text about cats " * 20] * 400), 0
        while not running.done():
            counted += 1
            time.sleep(0.001)
    # With the GIL held, this thread would not have run before the end.
    assert counted > 5 and running.result().shape == (400, 128)


def test_number_of_threads_never_changes_a_result(model: SentenceTransformer) -> None:
    before, expected = candle_attention.get_num_threads(), model.encode(TEXTS)
    for threads in (1, 2, 3):
        candle_attention.set_num_threads(threads)
        assert candle_attention.get_num_threads() == threads
        np.testing.assert_array_equal(model.encode(TEXTS), expected)
    candle_attention.set_num_threads(before)


def test_number_of_threads_of_the_environment() -> None:
    code = "import candle_attention; print(candle_attention.get_num_threads())"
    # Ray and Spark set the second for their workers.
    assert python(code, RAYON_NUM_THREADS="3", OMP_NUM_THREADS="5") == "3"
    assert python(code, RAYON_NUM_THREADS="", OMP_NUM_THREADS="5,2") == "5"
    assert python(code, RAYON_NUM_THREADS="no", OMP_NUM_THREADS="0") == str(len(os.sched_getaffinity(0)))


def test_a_fork_computes() -> None:
    code = """
        import multiprocessing
        from candle_attention import SentenceTransformer
        model = SentenceTransformer.embedded()
        expected = model.encode(["a cat", "a house"])
        with multiprocessing.get_context("fork").Pool(2) as pool:
            for got in pool.imap(model.encode, [["a cat", "a house"]] * 4):
                assert (got == expected).all()
        print("done")
    """
    assert python(code) == "done"


def test_an_interrupt_ends_a_call() -> None:
    code = """
        import time
        from candle_attention import SentenceTransformer
        model = SentenceTransformer.embedded()
        print("started", flush=True)
        try:
            model.encode(["a long text about cats and houses " * 30] * 200_000)
        except KeyboardInterrupt:
            print("interrupted")
        print(model.encode("a").shape)
    """
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None and program.stdout.readline() == "started\n"
    time.sleep(3)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert (out, program.returncode) == ("interrupted\n(128,)\n", 0), err


def test_an_exception_of_the_progress_bar_ends_a_call(model: SentenceTransformer) -> None:
    class Ended(Exception):
        pass

    def progress(done: int) -> None:
        raise Ended

    options = {**model._options("", None, None), "batch_size": 1}
    with pytest.raises(Ended):
        model._native.encode(["a long text about cats " * 20] * 20_000, options, progress)


def test_without_pytorch() -> None:
    code = """
        import sys
        sys.modules["torch"] = None
        from candle_attention import SentenceTransformer
        model = SentenceTransformer.embedded()
        embeddings = model.encode(["a", "b"])
        print(embeddings.shape, model.similarity(embeddings, embeddings).shape)
        print(model.encode("a", output_value="token_embeddings").shape)
        for arguments in ({"convert_to_tensor": True}, {"convert_to_numpy": False}):
            try:
                model.encode("a", **arguments)
            except ImportError as error:
                print(error)
    """
    assert python(code).splitlines() == [
        "(2, 128) (2, 2)",
        "(3, 128)",
        "convert_to_tensor=True needs PyTorch, which is not installed: pip install torch",
        "convert_to_numpy=False needs PyTorch, which is not installed: pip install torch",
    ]


def test_nothing_large_is_imported() -> None:
    code = """
        import sys
        import candle_attention
        candle_attention.SentenceTransformer.embedded().encode("a")
        print([name for name in ("torch", "transformers", "tqdm", "huggingface_hub") if name in sys.modules])
    """
    assert python(code) == "[]"
