"""Multi-vector encoders of tiny random models with a small real tokenizer, and what sentence-transformers gives for texts.

Writes below ../fixtures/multi_vector
    <name>/             a folder
    <name>.safetensors  `query.<i>` and `document.<i>` f32 (tokens, dim): the vectors of text i as either;
                        `maxsim` f32 (texts, texts): the similarity of each query with each document
with the names
    modern      BERT as `MultiVectorEncoder.save_pretrained` writes it: prompts, queries of 9 tokens that are not
                attended to, punctuation skipped, documents of at most 14 tokens
    roberta     byte-level BPE, queries of at least 8 tokens that are attended to, two dense layers, mean of the maxima
    unmasked    as `modern`, without a `MultiVectorMask`: every token counts, and none that would expand a query
    pylate      DistilBERT as PyLate 1 to 3 saves it: [Transformer, Dense], markers "[Q] " and "[D] " as added tokens
    stanford    BERT as ColBERT's own code saves it: `linear.weight` beside the model, `artifact.metadata`, markers
                [unused0] and [unused1]

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0.
Re-run:  python tests/golden/multi_vector.py
"""

import json
import shutil
import string

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Transformer

import tiny_tokenizers
from common import FIXTURES, save
from sparse import BERT, DISTIL, TEXTS, randomise, tokenizer

OUT = FIXTURES / "multi_vector"
TEXTS = TEXTS[:5] + ["the cat's mat (in München) is a mat-like cat!"]
SIZES = dict(max_position_embeddings=48)


def start(name, model, tokens):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    tokens.save_pretrained(folder)
    return folder


def dense(inputs, outputs, **options):
    return randomise(Dense(inputs, outputs, module_input_name="token_embeddings", **options))


def write(name, **options):
    model = MultiVectorEncoder(str(OUT / name), device="cpu")
    query, document = model.encode_query(TEXTS, **options), model.encode_document(TEXTS, **options)
    out = {f"query.{i}": q.contiguous() for i, q in enumerate(query)}
    out |= {f"document.{i}": d.contiguous() for i, d in enumerate(document)}
    out["maxsim"] = model.similarity(query, document).contiguous()
    save(f"multi_vector/{name}.safetensors", out, ["torch", "transformers", "sentence-transformers"],
         "random, on the texts of multi_vector.py", framework="torch", texts=json.dumps(TEXTS, ensure_ascii=False))


def modern():
    torch.manual_seed(1)
    tokens = tokenizer()
    model = randomise(tf.BertModel(tf.BertConfig(vocab_size=len(tokens), **SIZES, **BERT), add_pooling_layer=False))
    folder = start("modern", model, tokens)
    transformer = Transformer(str(folder), document_length=14, query_expansion={
        "strategy": "fixed", "attend": False, "length": 9})
    modules = [transformer, dense(12, 7, bias=False, activation_function=torch.nn.Identity()),
               MultiVectorMask(skiplist_words=list(string.punctuation) + ["no such word"]),
               Normalize(module_input_name="token_embeddings")]
    model = MultiVectorEncoder(modules=modules, prompts={"query": "who: ", "document": "on "}, device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder), create_model_card=False)


def unmasked():
    torch.manual_seed(5)
    tokens = tokenizer()
    model = randomise(tf.BertModel(tf.BertConfig(vocab_size=len(tokens), **SIZES, **BERT), add_pooling_layer=False))
    folder = start("unmasked", model, tokens)
    transformer = Transformer(str(folder), query_expansion={"strategy": "fixed", "attend": False, "length": 9})
    modules = [transformer, dense(12, 7, bias=False, activation_function=torch.nn.Identity())]
    model = MultiVectorEncoder(modules=modules, prompts={"query": "who: "}, device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder), create_model_card=False)


def roberta():
    torch.manual_seed(2)
    tokens = tf.PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizers.byte_level(), model_max_length=40, bos_token="<s>", cls_token="<s>",
        pad_token="<pad>", sep_token="</s>", eos_token="</s>", unk_token="<unk>", mask_token="<mask>")
    config = tf.RobertaConfig(vocab_size=len(tokens), type_vocab_size=1, layer_norm_eps=1e-5, **SIZES, **BERT)
    folder = start("roberta", randomise(tf.RobertaModel(config, add_pooling_layer=False)), tokens)
    transformer = Transformer(str(folder), query_length=11, query_expansion={
        "strategy": "min", "attend": True, "length": 8, "token": "<unk>"})
    modules = [transformer, dense(12, 10), dense(10, 5, bias=False, activation_function=torch.nn.Identity()),
               MultiVectorMask(skiplist_words=[",", "."], skiplist_tasks=["query", "document"]),
               Normalize(module_input_name="token_embeddings")]
    model = MultiVectorEncoder(modules=modules, similarity_fn_name="meanmaxsim", device="cpu")
    shutil.rmtree(folder)
    model.save_pretrained(str(folder), create_model_card=False)


def pylate():
    torch.manual_seed(3)
    tokens = tokenizer()
    tokens.add_tokens(["[Q] ", "[D] "])
    model = randomise(tf.DistilBertModel(tf.DistilBertConfig(vocab_size=len(tokens), **SIZES, **DISTIL)))
    pylate_files(start("pylate", model, tokens))


def pylate_files(folder):
    """What PyLate writes beside a transformer of width 12."""
    (folder / "1_Dense").mkdir()
    layer = dense(12, 6, bias=False, activation_function=torch.nn.Identity())
    save_file(layer.state_dict(), folder / "1_Dense/model.safetensors")
    (folder / "1_Dense/config.json").write_text(json.dumps({
        "in_features": 12, "out_features": 6, "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity"}))
    (folder / "modules.json").write_text(json.dumps([
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"}]))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 13, "do_lower_case": False}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({
        "__version__": {"sentence_transformers": "3.4.1"}, "model_type": "ColBERT", "prompts": {},
        "default_prompt_name": None, "similarity_fn_name": "MaxSim", "query_prefix": "[Q] ",
        "document_prefix": "[D] ", "query_length": 10, "document_length": 13, "do_query_expansion": True,
        "attend_to_expansion_tokens": False, "skiplist_words": ["!", ",", "'", "-"]}))


def stanford():
    torch.manual_seed(4)
    backend = tiny_tokenizers.wordpiece()
    vocab = json.loads(backend.to_str())
    names = vocab["model"]["vocab"]
    names |= {"[unused0]": len(names), "[unused1]": len(names) + 1}
    tokens = tf.PreTrainedTokenizerFast(
        tokenizer_object=type(backend).from_str(json.dumps(vocab)), model_max_length=40, cls_token="[CLS]",
        pad_token="[PAD]", sep_token="[SEP]", unk_token="[UNK]", mask_token="[MASK]")
    model = randomise(tf.BertModel(tf.BertConfig(vocab_size=len(tokens), **SIZES, **BERT), add_pooling_layer=False))
    folder = start("stanford", model, tokens)
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(8, 12)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}, indent=2))
    (folder / "artifact.metadata").write_text(json.dumps({
        "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 12, "doc_maxlen": 18,
        "mask_punctuation": True, "attend_to_mask_tokens": False, "dim": 8}))


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    OUT.mkdir(exist_ok=True)
    for make in [modern, unmasked, roberta, pylate, stanford]:
        make()
        write(make.__name__)


if __name__ == "__main__":
    main()
