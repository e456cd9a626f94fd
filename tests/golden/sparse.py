"""Sparse encoders of tiny random models with a small real tokenizer, and what sentence-transformers gives for texts.

Writes below ../fixtures/sparse
    <name>/         a folder as `SparseEncoder.save_pretrained` writes it
    <name>.json     {"texts": [...], "query": [...], "document": [...], "similarity": [[...]], "decoded": [...]}:
                    for each text {"indices": ascending, "values"} as a query and as a document, the similarity of
                    each query with each document, and the five largest tokens of each document
with the names
    splade          BERT, max pooling, relu, prompts, at most 40 active dimensions
    splade_sum      DistilBERT, sum pooling, log1p_relu
    gte             the same with GTE for documents, in the files of GTE's own code
    inference_free  a router: DistilBERT for documents, a weight per token for queries
    plain           BERT as transformers saves it, without modules
and bge_m3/, bge_m3.safetensors: XLM-R with the three heads of BGE-M3. FlagEmbedding's own code was not at hand: they
are its published formulas in PyTorch (`BGEM3FlagModel`: relu(sparse_linear(h)) per token, the largest per token id
without special tokens; colbert_linear(h) without the first token, normalized; the first token, normalized).

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0.
Re-run:  python tests/golden/sparse.py
"""

import json
import shutil

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import Router, SparseStaticEmbedding, SpladePooling, Transformer

import tiny_tokenizers
from common import FIXTURES, save

OUT = FIXTURES / "sparse"
TEXTS = [
    "the cat sat on the mat",
    "Zoë Müller lives in Zürich.",
    "who is the cat?",
    "a",
    "東京 and 京都 for the office, the office, the office and the mat of the cat: it is a long text that is cut",
    "",
]
SIZES = dict(max_position_embeddings=48)
BERT = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20)
DISTIL = dict(dim=12, n_layers=1, n_heads=3, hidden_dim=20)


def tokenizer(max_length=40):
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizers.wordpiece(), model_max_length=max_length, cls_token="[CLS]",
        pad_token="[PAD]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]")


def randomise(model, bias=None):
    for _, p in sorted(model.named_parameters()):
        p.data.normal_(1.0 if bool((p == 1).all()) else 0.0, 0.3)
    if bias is not None:
        # Most logits are negative, so that the vectors are sparse.
        dict(model.named_parameters())[bias].data.sub_(1.5)
    return model.eval()


def transformer_folder(name, model, max_length=40):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokenizer(max_length).save_pretrained(folder)
    return folder


def rows(embeddings):
    out = []
    for row in embeddings.to_dense():
        indices = row.nonzero().flatten()
        out.append({"indices": indices.tolist(), "values": [round(float(v), 7) for v in row[indices]]})
    return out


def write(name, model):
    said = {"texts": TEXTS}
    query, document = model.encode_query(TEXTS), model.encode_document(TEXTS)
    said |= {"query": rows(query), "document": rows(document), "plain": rows(model.encode(TEXTS))}
    similarity = model.similarity(query, document)
    said["similarity"] = [[round(float(v), 6) for v in row] for row in similarity]
    said["decoded"] = [[token for token, _ in pairs] for pairs in model.decode(document, top_k=5)]
    (OUT / f"{name}.json").write_text(json.dumps(said, ensure_ascii=False) + "\n")
    print(name, [len(row["indices"]) for row in said["document"]], [len(row["indices"]) for row in said["query"]])


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    OUT.mkdir(exist_ok=True)
    vocab = len(tokenizer())

    torch.manual_seed(1)
    bert = randomise(tf.BertForMaskedLM(tf.BertConfig(vocab_size=vocab, **SIZES, **BERT)), "cls.predictions.bias")
    folder = transformer_folder("splade", bert)
    model = SparseEncoder(modules=[Transformer(str(folder), transformer_task="fill-mask", max_seq_length=30),
                                   SpladePooling("max")],
                          prompts={"query": "who: ", "document": ""}, max_active_dims=40, device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder), create_model_card=False)
    write("splade", SparseEncoder(str(folder), device="cpu"))

    torch.manual_seed(2)
    plain = randomise(tf.BertForMaskedLM(tf.BertConfig(vocab_size=vocab, **SIZES, **BERT)), "cls.predictions.bias")
    write("plain", SparseEncoder(str(transformer_folder("plain", plain)), device="cpu"))

    def distil(seed):
        torch.manual_seed(seed)
        return randomise(tf.DistilBertForMaskedLM(tf.DistilBertConfig(vocab_size=vocab, **SIZES, **DISTIL)),
                         "vocab_projector.bias")

    folder = transformer_folder("splade_sum", distil(3))
    model = SparseEncoder(modules=[Transformer(str(folder), transformer_task="fill-mask"),
                                   SpladePooling("sum", activation_function="log1p_relu")], device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder), create_model_card=False)
    write("splade_sum", SparseEncoder(str(folder), device="cpu"))

    folder = transformer_folder("inference_free", distil(4))
    transformer = Transformer(str(folder), transformer_task="fill-mask")
    torch.manual_seed(5)
    weight = torch.rand(vocab) * 3
    weight[::7] = 0
    router = Router.for_query_document(
        query_modules=[SparseStaticEmbedding(tokenizer(10), weight=weight, frozen=True)],
        document_modules=[transformer, SpladePooling("max", activation_function="log1p_relu")])
    model = SparseEncoder(modules=[router], similarity_fn_name="dot", device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder), create_model_card=False)
    write("inference_free", SparseEncoder(str(folder), device="cpu"))
    gte(weight)
    bge_m3()


def gte(weight):
    """As opensearch-neural-sparse-encoding-doc-v3-gte; its files are those of GTE's own code."""
    torch.manual_seed(7)
    config = tf.GteConfig(vocab_size=len(tokenizer()), pad_token_id=0, type_vocab_size=1, **SIZES, **BERT)
    folder = transformer_folder("gte", randomise(tf.GteForMaskedLM(config), "lm_head.decoder.bias"))
    router = Router.for_query_document(
        query_modules=[SparseStaticEmbedding(tokenizer(10), weight=weight, frozen=True)],
        document_modules=[Transformer(str(folder), transformer_task="fill-mask"),
                          SpladePooling("max", activation_function="log1p_relu")])
    model = SparseEncoder(modules=[router], similarity_fn_name="dot", device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder), create_model_card=False)
    write("gte", SparseEncoder(str(folder), device="cpu"))

    inside = next(folder.glob("document_0_*"))
    path = inside / "model.safetensors"
    own = {("new." + k.removeprefix("gte.") if k.startswith("gte.") else k): v for k, v in load_file(path).items()}
    save_file(own, path, {"format": "pt"})
    keys = json.loads((inside / "config.json").read_text())
    theta = keys.pop("rope_parameters")["rope_theta"]
    keys |= {"model_type": "new", "architectures": ["NewForMaskedLM"], "position_embedding_type": "rope",
             "rope_theta": theta, "rope_scaling": None, "layer_norm_type": "layer_norm", "pack_qkv": True}
    (inside / "config.json").write_text(json.dumps(keys, indent=2) + "\n")


def bge_m3():
    torch.manual_seed(6)
    tokens = tf.PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizers.byte_level(), model_max_length=40, bos_token="<s>", cls_token="<s>",
        pad_token="<pad>", sep_token="</s>", eos_token="</s>", unk_token="<unk>", mask_token="<mask>")
    config = tf.XLMRobertaConfig(vocab_size=len(tokens), type_vocab_size=1, layer_norm_eps=1e-5, **SIZES, **BERT)
    model = randomise(tf.XLMRobertaModel(config, add_pooling_layer=False))
    folder = OUT / "bge_m3"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    sparse = randomise(torch.nn.Linear(12, 1))
    colbert = randomise(torch.nn.Linear(12, 12))
    save_file(sparse.state_dict(), folder / "sparse_linear.safetensors")
    save_file(colbert.state_dict(), folder / "colbert_linear.safetensors")

    out = {}
    inputs = tokens(TEXTS, padding=True, truncation=True, return_tensors="pt")
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"]
    out["dense"] = torch.nn.functional.normalize(hidden[:, 0], dim=-1)
    weights = torch.relu(sparse(hidden)).squeeze(-1)
    vectors = torch.nn.functional.normalize(colbert(hidden[:, 1:]) * mask[:, 1:, None], dim=-1)
    special = {tokens.cls_token_id, tokens.eos_token_id, tokens.pad_token_id, tokens.unk_token_id}
    lexical = torch.zeros(len(TEXTS), len(tokens))
    for i, n in enumerate(mask.sum(1).tolist()):
        out[f"tokens.{i}"] = vectors[i, : n - 1].contiguous()
        for token, weight in zip(inputs["input_ids"][i, :n].tolist(), weights[i, :n].tolist()):
            if token not in special and weight > 0:
                lexical[i, token] = max(lexical[i, token], weight)
    out["sparse"] = lexical
    save("sparse/bge_m3.safetensors", out, ["torch", "transformers"],
         "XLM-R with the heads of BGE-M3, random, on the texts of sparse.py", framework="torch")


if __name__ == "__main__":
    main()
