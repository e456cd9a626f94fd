"""Sentence embeddings of tiny random decoders and a T5 encoder, in whole sentence-transformers folders.

Writes for each name in MODELS a folder ../fixtures/sentence_models/<name>/ as `save_pretrained` writes it, and
beside it in ../fixtures
    sentence_models.safetensors   <name> = the vectors of TEXTS; <name>.<prompt> = the same after a prompt
    sentence_models.json          TEXTS

Each folder is loaded again. Its vectors are the same for texts alone, in one batch, and with padding on either side.

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0, tokenizers 0.23.3 (stored in the metadata).
Re-run:  python tests/golden/decoder_sentences.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers as tf
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from common import FIXTURES, save
from encoders import randomise

OUT = FIXTURES / "sentence_models"
WIDTH = 16
TEXTS = [
    "cats",
    "hello world",
    "The cat sat on the mat, and it's warm.",
    "An unseen zebra jumps twice!\n\nThen 12 birds sing.",
    "Caf\u00e9 naive",
    "this text has so many more words than the tokens that the tiny model is able to read that its end does not matter "
    "at all to anybody who reads it here",
]
SIZES = dict(hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
             intermediate_size=22, max_position_embeddings=64, rms_norm_eps=1e-5)
# Qwen's words.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")


def template(tokenizer, single, pair, *tokens):
    return processors.TemplateProcessing(single=single, pair=pair,
                                         special_tokens=[(t, tokenizer.token_to_id(t)) for t in tokens])


def qwen(*special):
    """Byte-level BPE; a text ends with the token that also pads."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=90 + len(special), special_tokens=["<|endoftext|>", "<|im_end|>", *special], show_progress=False))
    end = "<|endoftext|>"
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False), template(tokenizer, f"$A {end}", f"$A {end} $B:1 {end}:1", end)])
    return dict(tokenizer_object=tokenizer, pad_token=end, eos_token="<|im_end|>")


def llama(end):
    """Sentencepiece's BPE with its beginning and, if `end`, its end."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(
        vocab_size=80, special_tokens=["<pad>", "<unk>", "<s>", "</s>"], show_progress=False))
    last = " </s>" if end else ""
    tokenizer.post_processor = template(tokenizer, f"<s> $A{last}", f"<s> $A{last} <s> $B{last}", "<s>", "</s>")
    return dict(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def t5():
    """A Unigram vocabulary; a text ends with `</s>`."""
    letters = sorted({letter for text in TEXTS for letter in text if letter.strip()} - {"b"})
    words = "\u2581 \u2581the \u2581cat \u2581sat \u2581that \u2581this at re it to ing".split()
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(word, -2.0 - 0.1 * i) for i, word in enumerate(words)]
    pieces += [(letter, -5.0 - 0.1 * i) for i, letter in enumerate(letters)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = template(tokenizer, "$A </s>", "$A </s> $B </s>", "</s>")
    return dict(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", eos_token="</s>")


def dense(size_in, size_out, **options):
    module = Dense(size_in, size_out, **options)
    for parameter in module.parameters():
        parameter.data.normal_(0.0, 0.3)
    return module


def identity():
    return dict(bias=False, activation_function=torch.nn.Identity())


# name: (config, tokenizer, modules after the transformer, prompts, default prompt)
MODELS = {
    # As Qwen3-Embedding.
    "qwen3": (tf.Qwen3Config, SIZES, qwen,
              lambda: [Pooling(WIDTH, "lasttoken"), Normalize()],
              dict(query="Instruct: find the cat\nQuery:", document=""), None),
    # As e5-mistral.
    "mistral": (tf.MistralConfig, SIZES | dict(sliding_window=5), lambda: llama(True),
                lambda: [Pooling(WIDTH, "lasttoken"), Normalize()], dict(query="that is: "), None),
    # Without an end, so that all tokens of a prompt are the prompt's.
    "llama": (tf.LlamaConfig, SIZES, lambda: llama(False),
              lambda: [Pooling(WIDTH, ("cls", "weightedmean", "lasttoken"), include_prompt=False)], dict(query="read it to "), None),
    # As EmbeddingGemma.
    "gemma3": (tf.Gemma3TextConfig, SIZES | dict(
        use_bidirectional_attention=True, sliding_window=6, query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention"]), lambda: llama(True),
               lambda: [Pooling(WIDTH, "mean"), dense(WIDTH, 20, **identity()), dense(20, 12, **identity()), Normalize()],
               dict(query="task: find | query: ", document="title: none | text: "), "document"),
    # As sentence-t5. The second layer keeps what it reads.
    "t5": (tf.T5Config, dict(d_model=WIDTH, d_kv=6, d_ff=22, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"), t5,
           lambda: [Pooling(WIDTH, "mean"), dense(WIDTH, 12, **identity()), dense(12, 10, use_residual=True), Normalize()],
           {}, None),
}
CLASSES = {"t5": tf.T5EncoderModel}


def build(name, folder):
    config_class, settings, tokenizer, modules, prompts, default = MODELS[name]
    tokenizer = tf.PreTrainedTokenizerFast(**tokenizer(), model_max_length=24)
    ids = {f"{which}_token_id": getattr(tokenizer, f"{which}_token_id") for which in ("pad", "bos", "eos")}
    config = config_class(**settings, vocab_size=len(tokenizer), **ids)
    randomise(CLASSES.get(name, tf.AutoModel.from_config)(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = [Transformer(str(folder)), *modules()]
    return SentenceTransformer(modules=modules, prompts=prompts, default_prompt_name=default, device="cpu")


def encode(model, **options):
    options = dict(batch_size=8) | options
    return model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False, **options)


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.disable_progress_bar()
    shutil.rmtree(OUT, ignore_errors=True)
    out = {}
    for index, name in enumerate(MODELS):
        torch.manual_seed(index)
        with tempfile.TemporaryDirectory() as tmp:
            build(name, Path(tmp)).save_pretrained(str(OUT / name), create_model_card=False)
        model = SentenceTransformer(str(OUT / name), device="cpu")
        assert model.max_seq_length == 24
        cases = {name: {}} | {f"{name}.{prompt}": dict(prompt_name=prompt) for prompt in MODELS[name][4]}
        for case, options in cases.items():
            out[case] = encode(model, **options)
            for side in ("left", "right"):
                model[0].tokenizer.padding_side = side
                for size in (1, 3, 8):
                    torch.testing.assert_close(encode(model, batch_size=size, **options), out[case], rtol=0, atol=2e-6)
        lengths = model.preprocess(TEXTS)["attention_mask"].sum(1)
        assert lengths.max() == 24 and lengths.min() < 6, lengths
    save("sentence_models.safetensors", out, ["torch", "transformers", "sentence-transformers", "tokenizers"],
         "tiny decoders and T5 on sentence_models.json", framework="torch")
    (FIXTURES / "sentence_models.json").write_text(json.dumps(TEXTS, indent=1) + "\n")


if __name__ == "__main__":
    main()
