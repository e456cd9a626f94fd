"""GGUF files of tiny random classifiers and rerankers, and what their folders answer.

Writes to ../fixtures/gguf_heads
    <model>.gguf          matrices in f16; by llama.cpp's own converter, but for bert (whose pooler the converter leaves
                          out) and score (Qwen3ForSequenceClassification, of which it takes other rows), where gguf-py
                          adds these rows
    no-pooler.gguf        bert as the converter leaves it
    heads.safetensors     <model> = logits of PAIRS and <model>.texts = logits of TEXTS, of the folders in transformers;
                          reranker = scores of PAIRS by sentence-transformers, reranker.prompt = with PROMPT
    heads.json            PAIRS, TEXTS, PROMPT

LLAMA_CPP is that of gguf_files.py.

Made with that, torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0, tokenizers 0.23.3 (stored in the metadata).
Re-run:  python tests/golden/gguf_heads.py LLAMA_CPP
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers as tf
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from common import FIXTURES, save
from gguf_files import bert_tokenizer, bytes_of, convert, fast, gguf, randomise, sentence_piece, template
from decoder_sentences import WORDS
from tiny_tokenizers import byte_level

OUT = FIXTURES / "gguf_heads"
PAIRS = [("Who sleeps?", "The cat sat on the mat."), ("Zo\u00eb M\u00fcller", "Zo\u00eb lives in Z\u00fcrich."), ("a", "It is warm, isn't it?")]
TEXTS = ["hello world", "The Cat sat on the Mat, and it's warm."]
PROMPT = "Find the animal"
SMALL = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, max_position_embeddings=64)
ROBERTA = dict(bos_token="<s>", eos_token="</s>", sep_token="</s>", cls_token="<s>", pad_token="<pad>", unk_token="<unk>",
               mask_token="<mask>")
NAMED = {0: "bad", 1: "so-so", 2: "good"}
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The chat template of Qwen3-Reranker, as llama.cpp's converter writes it.
CHAT = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("%s") }}
<Query>: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
<Document>: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}<|im_end|>
<|im_start|>assistant
<think>

</think>

{{ "" }}""" % INSTRUCTION


def labels(named):
    return dict(id2label=named, label2id={name: i for i, name in named.items()})


def rounded(model):
    """Matrices as f16 holds them."""
    for p in randomise(model).parameters():
        p.data = p.data.half().float() if p.ndim > 1 else p.data
    return model


def logits(model, tokenizer, inputs):
    out = []
    for one in inputs:
        # The general class gives types only where it is asked for them, unlike BERT's.
        batch = tokenizer(*([one] if isinstance(one, str) else one), return_tensors="pt", return_token_type_ids=True)
        if not getattr(model.config, "type_vocab_size", 0):
            batch.pop("token_type_ids", None)
        out.append(model(**batch).logits[0])
    return torch.stack(out)


def rows_added(target, labels, **tensors):
    """Adds tensors and labels to a file."""
    reader = gguf.GGUFReader(target)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(f"{target}.new", architecture)
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", f"{architecture}.classifier.output_labels"):
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if array else None)
    writer.add_classifier_output_labels(labels)
    for tensor in reader.tensors:
        if tensor.name not in tensors:
            data = np.array(tensor.data)
            writer.add_tensor(tensor.name, data)
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    Path(f"{target}.new").rename(target)


def case(out, name, model, tokenizer, pre="-", converted=None, spm=b""):
    """Converts a classifier, or the part of it that the converter knows, and adds its logits."""
    with tempfile.TemporaryDirectory() as folder:
        (converted or model).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if spm:
            (Path(folder) / "sentencepiece.bpe.model").write_bytes(spm)
        convert(folder, OUT / f"{name}.gguf", pre, "f16", "--model-name", name)
    out[name], out[f"{name}.texts"] = logits(model, tokenizer, PAIRS), logits(model, tokenizer, TEXTS)


def encoders(out):
    words = fast(byte_level(), **ROBERTA)
    small = SMALL | dict(max_position_embeddings=66, type_vocab_size=1)
    case(out, "roberta", rounded(tf.RobertaForSequenceClassification(tf.RobertaConfig(
        vocab_size=len(words), num_labels=1, **small))), words, "roberta-bpe")

    with tempfile.TemporaryDirectory() as folder:
        spm = Path(folder) / "sentencepiece.bpe.model"
        rules = Path(folder) / "rules.tsv"
        rules.write_text("FB01\t66 69\n")
        _, pieces = sentence_piece("unigram", spm.parent, spm.name, vocab_size=100, normalization_rule_tsv=str(rules))
        spm = spm.read_bytes()
        proto = sentencepiece_model_pb2.ModelProto()
        proto.ParseFromString(spm)
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces[3:], ("<mask>", 0.0)]
    words = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
    words.normalizer = normalizers.Precompiled(bytes(proto.normalizer_spec.precompiled_charsmap))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    words.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>",
                                                         special_tokens=[("<s>", 0), ("</s>", 2)])
    words = fast(words, **ROBERTA)
    case(out, "xlm-roberta", rounded(tf.XLMRobertaForSequenceClassification(tf.XLMRobertaConfig(
        vocab_size=len(vocab), **labels(NAMED), **small))), words, spm=spm)

    lower = bert_tokenizer(lower_case=True)
    case(out, "distilbert", rounded(tf.DistilBertForSequenceClassification(tf.DistilBertConfig(
        vocab_size=len(lower), dim=16, n_layers=1, n_heads=4, hidden_dim=20, max_position_embeddings=64,
        **labels({0: "NEGATIVE", 1: "POSITIVE"})))), lower, "bert-bge")

    bert = rounded(tf.BertForSequenceClassification(tf.BertConfig(vocab_size=len(lower), **labels(NAMED), **SMALL)))
    case(out, "bert", bert, lower, "bert-bge")
    shutil.copy(OUT / "bert.gguf", OUT / "no-pooler.gguf")
    dense = bert.bert.pooler.dense
    rows_added(OUT / "bert.gguf", list(NAMED.values()), **{"cls.weight": dense.weight, "cls.bias": dense.bias})

    modern_words = bytes_of(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], normalizers.NFC(), size=280)
    modern_words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    modern_words = fast(modern_words, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
                        mask_token="[MASK]")
    for name, pooling, named in (("modern-bert", "mean", {0: "LABEL_0"}), ("modern-bert-cls", "cls", NAMED)):
        case(out, name, rounded(tf.ModernBertForSequenceClassification(tf.ModernBertConfig(
            vocab_size=len(modern_words), hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=18, max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=2,
            classifier_pooling=pooling, norm_eps=1e-4, layer_norm_eps=1e-4, pad_token_id=0, bos_token_id=2, cls_token_id=2, sep_token_id=3, eos_token_id=3,
            **labels(named)))), modern_words, "modern-bert")


def decoders(out):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "yes", "no", "|"]
    tokenizer = bytes_of(specials[:3], normalizers.NFC(), WORDS, size=262)
    # Words of the vocabulary, as in Qwen's.
    tokenizer.add_tokens(["yes", "no", "|"])
    words = fast(template(tokenizer, "$A <|endoftext|>", "<|endoftext|>"), pad_token="<|endoftext|>",
                 eos_token="<|endoftext|>")
    sizes = SMALL | dict(num_key_value_heads=2, head_dim=8, max_position_embeddings=512)
    config = dict(vocab_size=len(words), bos_token_id=None, eos_token_id=0, pad_token_id=0, **sizes)
    name = "reranker"
    model = rounded(tf.Qwen3ForCausalLM(tf.Qwen3Config(tie_word_embeddings=False, **config)))
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder) / "Qwen3-Reranker"
        words.chat_template = CHAT
        words.model_max_length = 512
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        convert(folder, OUT / f"{name}.gguf", "qwen2", "f16", "--model-name", name)
        ids = {f"{which}_token_id": words.convert_tokens_to_ids(word)
               for which, word in (("true", "yes"), ("false", "no"))}
        encoder = CrossEncoder(modules=[Transformer(str(folder), transformer_task="text-generation"),
                                        LogitScore(**ids)], device="cpu")
        out[name] = encoder.predict(PAIRS, convert_to_tensor=True)
        out[f"{name}.prompt"] = encoder.predict(PAIRS, convert_to_tensor=True, prompt=PROMPT)
        text = words.decode(encoder.preprocess(PAIRS[:1])["input_ids"][0])
        theirs = gguf.GGUFReader(OUT / f"{name}.gguf").get_field("tokenizer.chat_template.rerank").contents()
        assert text == theirs.format(query=PAIRS[0][0], document=PAIRS[0][1]), text

    words.chat_template = None
    model = rounded(tf.Qwen3ForSequenceClassification(tf.Qwen3Config(**labels(NAMED), **config)))
    case(out, "score", model, words, "qwen2", converted=model.model)
    rows_added(OUT / "score.gguf", list(NAMED.values()), **{"cls.output.weight": model.score.weight.half()})


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(23)
    tf.utils.logging.disable_progress_bar()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    out = {}
    encoders(out)
    decoders(out)
    save("gguf_heads/heads.safetensors", out, ["torch", "transformers", "sentence-transformers", "tokenizers"],
         "answers of heads.json", framework="torch")
    (OUT / "heads.json").write_text(json.dumps({"pairs": PAIRS, "texts": TEXTS, "prompt": PROMPT}, indent=1) + "\n")


if __name__ == "__main__":
    main()
