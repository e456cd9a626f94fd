"""A BERT sentence encoder as a GGUF file, as llama.cpp's converter writes it: matrices in a format of few bits, the rest f32."""

import json

import gguf
from safetensors.numpy import load_file

# transformers → llama.cpp, with the number of the layer in place of `{}`.
NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    "encoder.layer.{}.attention.self.query": "blk.{}.attn_q",
    "encoder.layer.{}.attention.self.key": "blk.{}.attn_k",
    "encoder.layer.{}.attention.self.value": "blk.{}.attn_v",
    "encoder.layer.{}.attention.output.dense": "blk.{}.attn_output",
    "encoder.layer.{}.attention.output.LayerNorm": "blk.{}.attn_output_norm",
    "encoder.layer.{}.intermediate.dense": "blk.{}.ffn_up",
    "encoder.layer.{}.output.dense": "blk.{}.ffn_down",
    "encoder.layer.{}.output.LayerNorm": "blk.{}.layer_output_norm",
}
# llama.cpp adds these without multiplying, and reads them in f32.
KEPT = ("token_types", "position_embd")


def write(folder, path, format):
    """Writes the model of `folder` to `path`; `format` is a name of `GGMLQuantizationType`, such as `Q8_0`."""
    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    add_tokenizer(writer, folder)
    names = {
        name.format(layer): short.format(layer)
        for name, short in NAMES.items()
        for layer in range(config["num_hidden_layers"])
    }
    for name, tensor in load_file(folder / "model.safetensors").items():
        module, _, kind = name.rpartition(".")
        if module not in names:
            continue
        is_matrix = tensor.ndim == 2 and names[module] not in KEPT
        dtype = gguf.GGMLQuantizationType[format if is_matrix else "F32"]
        data = gguf.quants.quantize(tensor, dtype) if is_matrix else tensor
        writer.add_tensor(f"{names[module]}.{kind}", data, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer, folder):
    """WordPiece: a token that begins a word begins with `▁`, one that goes on loses its `##`."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"] if token["special"]}
    words = [word if word in special else word[2:] if word.startswith("##") else "▁" + word for word, _ in vocabulary]
    kinds = [gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word, _ in vocabulary]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(2)
    writer.add_token_list(words)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(special["[CLS]"])
    writer.add_eos_token_id(special["[SEP]"])
    writer.add_unk_token_id(special["[UNK]"])
    writer.add_sep_token_id(special["[SEP]"])
    writer.add_pad_token_id(special["[PAD]"])
    writer.add_mask_token_id(special["[MASK]"])
