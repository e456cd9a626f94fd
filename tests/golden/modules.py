"""The modules of sentence-transformers after the transformer, routers, and static embeddings, also those of model2vec.

Reads ../fixtures/tiny-bert and ../fixtures/tiny_sentences.json (`tiny_models.py` writes them). Writes below
../fixtures/sentence-modules, without the weights and the tokenizer of tiny-bert,
    chain/            Transformer, Pooling by three modes, Dense, LayerNorm, Normalize, Dropout, two Dense with residuals
    router/           Router(query: Static, Dense; document: Transformer, Pooling, Dense), Normalize
    router_late/      Transformer, Pooling, Router(query: Dense; document: Dense, LayerNorm), no default route
    static/           StaticEmbedding whose tokenizer cuts texts at 9 tokens, Normalize
    model2vec/        StaticModel, normalized, max_length 6
    model2vec_shared/ StaticModel whose tokens share vectors and have weights, not normalized, no max_length
    model2vec_int8/, model2vec_int8_shared/   both with int8 vectors; the latter with a mapping in u64, weights in f64
and ../fixtures/sentence_modules.safetensors with
    chain, static     f32 (8, size): `encode`
    router, router.query, router.document, router_late.query, router_late.document    `encode`, `encode_query`, `encode_document`
    model2vec, model2vec_…   `encode` of model2vec; `<name>.st` of sentence-transformers
    activation.weight, activation.bias   a Dense 24 -> 12 after mean pooling of tiny-bert
    activation.<class>                   and its embeddings with each activation of torch.nn that needs no argument

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0, model2vec 0.10.0 (stored in the metadata).
Re-run:  python tests/golden/modules.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from model2vec import StaticModel
from model2vec.model import quantize_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Dropout, LayerNorm, Pooling, StaticEmbedding
from tokenizers import Tokenizer

from common import FIXTURES, save

OUT = FIXTURES / "sentence-modules"
BERT = FIXTURES / "tiny-bert"
WIDTH = 24
ACTIVATIONS = ["Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid", "ELU", "CELU", "SELU", "LeakyReLU", "ReLU6",
               "Hardtanh", "Hardsigmoid", "Hardswish", "Softplus", "Mish", "LogSigmoid", "Softsign", "Tanhshrink",
               "Softshrink", "Hardshrink"]


def random(module):
    for _, p in sorted(module.named_parameters()):
        p.data.normal_(1.0 if bool((p == 1).all()) else 0.0, 0.3)
    return module


def dense(n_in, n_out, activation, **more):
    return random(Dense(n_in, n_out, activation_function=activation, **more))


def write(model, name):
    """Saves a model and loads it again; what tiny-bert has is not stored twice."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(str(folder), create_model_card=False)
    model = SentenceTransformer(str(folder), device="cpu")
    for path in list(folder.rglob("*")):
        same = BERT / path.name
        if path.is_file() and same.is_file() and same.read_bytes() == path.read_bytes():
            path.unlink()
    return model


def static_model(tokenizer, rng, rows=None, max_length=None, **more):
    size = tokenizer.get_vocab_size()
    vectors = rng.standard_normal((rows or size, 10)).astype(np.float32)
    return StaticModel(vectors, tokenizer, max_length=max_length, **more)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    rng = np.random.default_rng(11)
    texts = json.loads((FIXTURES / "tiny_sentences.json").read_text())
    out = {}

    def encode(call, **more):
        return call(texts, batch_size=8, convert_to_tensor=True, show_progress_bar=False, **more)

    def bert():
        return Transformer(str(BERT), max_seq_length=16)

    nn = torch.nn
    modules = [bert(), Pooling(WIDTH, ("cls", "max", "mean")), dense(3 * WIDTH, 20, nn.GELU(), bias=False),
               random(LayerNorm(20)), Normalize(), Dropout(0.4), dense(20, 20, nn.SiLU(), use_residual=True),
               dense(20, 6, nn.Identity(), use_residual=True)]
    out["chain"] = encode(write(SentenceTransformer(modules=modules, device="cpu"), "chain").encode)

    tokenizer = Tokenizer.from_file(str(BERT / "tokenizer.json"))
    tokenizer.no_truncation()
    table = StaticEmbedding(tokenizer, embedding_dim=10)
    random(table)
    router = Router.for_query_document([table, dense(10, 7, nn.Tanh())],
                                       [bert(), Pooling(WIDTH, "mean"), dense(WIDTH, 7, nn.Identity())])
    model = write(SentenceTransformer(modules=[router, Normalize()], device="cpu"), "router")
    out["router"] = encode(model.encode)
    out["router.query"], out["router.document"] = encode(model.encode_query), encode(model.encode_document)
    assert torch.equal(out["router"], out["router.document"])

    router = Router({"query": [dense(WIDTH, 5, nn.Tanh())],
                     "document": [dense(WIDTH, 5, nn.Identity()), random(LayerNorm(5))]}, allow_empty_key=False)
    model = write(SentenceTransformer(modules=[bert(), Pooling(WIDTH, "mean"), router], device="cpu"), "router_late")
    out["router_late.query"] = encode(model.encode_query)
    out["router_late.document"] = encode(model.encode_document)

    tokenizer = Tokenizer.from_file(str(BERT / "tokenizer.json"))
    tokenizer.enable_truncation(9)
    table = StaticEmbedding(tokenizer, embedding_dim=10)
    random(table)
    out["static"] = encode(write(SentenceTransformer(modules=[table, Normalize()], device="cpu"), "static").encode)

    tokenizer = Tokenizer.from_file(str(BERT / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    models = {
        "model2vec": static_model(tokenizer, rng, normalize=True, max_length=6, config={"model_type": "model2vec"}),
        "model2vec_shared": static_model(
            tokenizer, rng, rows=30, token_mapping=rng.integers(0, 30, size),
            weights=rng.random(size).astype(np.float32)),
    }
    models["model2vec_int8"] = quantize_model(models["model2vec"], quantize_to="int8")
    shared = quantize_model(models["model2vec_shared"], quantize_to="int8")
    shared.token_mapping, shared.weights = shared.token_mapping.astype(np.uint64), shared.weights.astype(np.float64)
    models["model2vec_int8_shared"] = shared
    for name, model in models.items():
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "README.md").unlink()
        model = StaticModel.from_pretrained(folder)
        out[name] = torch.from_numpy(model.encode(texts))
        if name != "model2vec_int8":  # torch has no means of int8
            out[f"{name}.st"] = encode(SentenceTransformer(str(folder), device="cpu").encode)

    layer = random(nn.Linear(WIDTH, 12))
    layer.weight.data *= 6
    out |= {"activation.weight": layer.weight.data, "activation.bias": layer.bias.data}
    means = encode(SentenceTransformer(modules=[bert(), Pooling(WIDTH, "mean")], device="cpu").encode)
    with torch.no_grad():
        hidden = layer(means)
    print("activations of", hidden.min().item(), "to", hidden.max().item())
    out |= {f"activation.{name}": getattr(nn, name)()(hidden) for name in ACTIVATIONS}
    for name in ACTIVATIONS:
        module = dense(1, 1, getattr(nn, name)())
        with tempfile.TemporaryDirectory() as tmp:
            module.save(tmp)
            saved = json.loads((Path(tmp) / "config.json").read_text())["activation_function"]
            assert saved.startswith("torch.nn.") and saved.endswith(f".{name}"), saved
    save("sentence_modules.safetensors", out,
         ["torch", "transformers", "sentence-transformers", "tokenizers", "model2vec"],
         "the models of sentence-modules on tiny_sentences.json", framework="torch")


if __name__ == "__main__":
    main()
