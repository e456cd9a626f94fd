"""Tiny random text encoders, whole, and what they answer: a folder for each family and head.

Writes for each name in MODELS a folder ../fixtures/encoders/<name>/ with
    config.json, model.safetensors   as `save_pretrained` writes them
    golden.safetensors               `ids` i64 (3, 11): random texts, padded on the right with the
                                     pad token of the family, which is in no text
                                     `lengths` i64 (3): 11, 4, 7
                                     `types` i64 (3, 11): token types, 0 at padding; only where the
                                     family has them
                                     and one of
                                     `hidden` f32 (3, 11, h): the last hidden state, without a head
                                     `logits` f32 (3, labels): sequence classification
                                     `logits` f32 (3, 11, vocab): masked language model
                                     `logits` f32 (3, 11, labels): token classification
                                     with zeros at padding
The base models are saved as their class makes them, so some have a pooler that `hidden` does not
use. All parameters are normal with std 0.2, around 1 where they start as ones (norm weights), and
so are the rows of the pad token and the biases. In the base models epsilons and rotary bases are not
the defaults, so that reading them from the config is tested too.

Each folder is loaded again and gives the same answers, and each text gives them alone, without
padding and mask. Each `vary` is a change of the config that is checked to change the answers.

Made with torch 2.15.0, transformers 5.23.0 (stored in the metadata).
Re-run:  python tests/golden/encoders.py [name ...]
"""

import copy
import shutil
import sys
import zlib

import torch
import transformers as tf

from common import FIXTURES, save

LENGTHS = [11, 4, 7]
OUT = FIXTURES / "encoders"

# sizes of the base models, and of those with a head
BASE = dict(vocab_size=40, max_position_embeddings=40)
HEAD = dict(vocab_size=29, max_position_embeddings=16)
BERT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=22)
# Smaller yet, for those that only differ in names from another.
TINY = dict(vocab_size=17, max_position_embeddings=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=6)
DISTIL = dict(dim=16, n_layers=2, n_heads=4, hidden_dim=20)
SPECIAL = dict(bos_token_id=2, eos_token_id=3)
# Decoders: fewer key-value heads than heads, heads of a size of their own.
DECODER = BASE | dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6,
                      intermediate_size=22, rms_norm_eps=1e-3, pad_token_id=0) | SPECIAL
T5 = dict(vocab_size=40, d_model=16, d_kv=6, d_ff=22, num_layers=2, num_heads=4, relative_attention_num_buckets=6,
          relative_attention_max_distance=7, layer_norm_epsilon=1e-3)
BOTH_KINDS = ["full_attention", "sliding_attention"]

# name: (model class, config, types or None, configs that must change the answers)
MODELS = {
    "roberta": ("RobertaModel", BASE | BERT | dict(layer_norm_eps=1e-5), "random",
                [dict(layer_norm_eps=1e-12), dict(hidden_act="gelu_new"), dict(pad_token_id=0)]),
    "xlm_roberta": ("XLMRobertaModel", BASE | BERT | dict(layer_norm_eps=1e-3, type_vocab_size=1), "zeros",
                    [dict(layer_norm_eps=1e-12), dict(pad_token_id=0)]),
    "electra": ("ElectraModel", BASE | BERT | dict(embedding_size=12, layer_norm_eps=1e-3), "random",
                [dict(layer_norm_eps=1e-12), dict(hidden_act="gelu_new")]),
    "distilbert": ("DistilBertModel", BASE | DISTIL, None, [dict(activation="relu")]),
    "mpnet": ("MPNetModel", BASE | BERT | dict(layer_norm_eps=1e-3), None, [dict(layer_norm_eps=1e-12)]),
    "albert": ("AlbertModel", BASE | BERT | SPECIAL | dict(
        hidden_size=24, embedding_size=10, num_hidden_groups=1, layer_norm_eps=1e-3), "random",
        [dict(layer_norm_eps=1e-12), dict(num_hidden_layers=1), dict(hidden_act="gelu")]),
    "modernbert": ("ModernBertModel", BASE | BERT | SPECIAL | dict(
        num_hidden_layers=3, intermediate_size=18, local_attention=8, norm_eps=1e-3,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 400.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 40.0}},
        pad_token_id=1, cls_token_id=2, sep_token_id=3), None,
        [dict(norm_eps=1e-12), dict(local_attention=10), dict(local_attention=6),
         dict(layer_types=["full_attention"] * 3), dict(rope_parameters=None)]),
    "nomic_bert": ("NomicBertModel", BASE | BERT | dict(
        rope_parameters={"rope_type": "default", "rope_theta": 50.0}, layer_norm_eps=1e-3), "random",
        [dict(layer_norm_eps=1e-12), dict(rope_parameters=None)]),
    "qwen3": ("Qwen3Model", DECODER | dict(
        attention_bias=True, use_sliding_window=True, sliding_window=5, layer_types=BOTH_KINDS,
        rope_parameters={"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0,
                         "original_max_position_embeddings": 10}), None,
        [dict(rms_norm_eps=1e-6), dict(hidden_act="gelu"), dict(layer_types=["full_attention"] * 2),
         dict(sliding_window=6), dict(rope_parameters={"rope_type": "default", "rope_theta": 50.0}),
         dict(is_causal=False)]),
    "qwen2": ("Qwen2Model", DECODER | dict(
        head_dim=4, is_causal=False, rope_parameters={"rope_type": "default", "rope_theta": 50.0}), None,
        [dict(rms_norm_eps=1e-6), dict(rope_parameters=None), dict(is_causal=True)]),
    "mistral": ("MistralModel", DECODER | dict(
        sliding_window=4, rope_parameters={"rope_type": "default", "rope_theta": 50.0}), None,
        [dict(rms_norm_eps=1e-6), dict(rope_parameters=None), dict(sliding_window=None), dict(sliding_window=5)]),
    "llama": ("LlamaModel", DECODER | dict(
        attention_bias=True, mlp_bias=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 20}), None,
        [dict(rms_norm_eps=1e-6), dict(rope_parameters={"rope_type": "default", "rope_theta": 50.0})]),
    "gemma3_text": ("Gemma3TextModel", DECODER | dict(
        use_bidirectional_attention=True, sliding_window=4, layer_types=BOTH_KINDS, query_pre_attn_scalar=9,
        attention_bias=True, rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 400.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40.0}}), None,
        [dict(rms_norm_eps=1e-6), dict(hidden_activation="silu"), dict(use_bidirectional_attention=False),
         dict(sliding_window=6), dict(query_pre_attn_scalar=6), dict(layer_types=["full_attention"] * 2),
         dict(rope_parameters=None)]),
    # Layers with attention to all are wider; the radius of the window is included on both sides.
    "embedding_gemma2_text": ("EmbeddingGemma2TextModel", DECODER | dict(
        num_hidden_layers=3, sliding_window=2, layer_types=BOTH_KINDS[::-1] + BOTH_KINDS[:1], global_head_dim=8,
        num_global_key_value_heads=1, hidden_size_per_layer_input=5, embedding_dim=12, rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 400.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 40.0}}), None,
        [dict(rms_norm_eps=1e-6), dict(hidden_activation="silu"), dict(sliding_window=3), dict(rope_parameters=None)]),
    "eurobert": ("EuroBertModel", DECODER | dict(
        attention_bias=True, mlp_bias=True, rope_parameters={"rope_type": "default", "rope_theta": 50.0},
        mask_token_id=4), None,
        [dict(rms_norm_eps=1e-6), dict(rope_parameters=None)]),
    "lfm2": ("Lfm2Model", {k: v for k, v in DECODER.items() if k != "rms_norm_eps"} | dict(
        num_hidden_layers=3, norm_eps=1e-3, intermediate_size=30, block_multiple_of=4, block_ffn_dim_multiplier=1.3,
        conv_bias=True, conv_L_cache=4, layer_types=["conv", "full_attention", "conv"], rope_parameters={
            "rope_type": "default", "rope_theta": 50.0}), None,
        [dict(norm_eps=1e-6), dict(rope_parameters=None)]),
    "t5": ("T5EncoderModel", T5 | dict(feed_forward_proj="relu"), None,
           [dict(layer_norm_epsilon=1e-6), dict(relative_attention_max_distance=40), dict(feed_forward_proj="gelu")]),
    "t5_gated": ("T5EncoderModel", T5 | dict(feed_forward_proj="gated-gelu"), None,
                 [dict(layer_norm_epsilon=1e-6)]),
    "mt5": ("MT5EncoderModel", T5, None, [dict(layer_norm_epsilon=1e-6)]),
    "umt5": ("UMT5EncoderModel", T5, None, [dict(layer_norm_epsilon=1e-6)]),
    "bert_cross_encoder": ("BertForSequenceClassification", HEAD | BERT | dict(num_labels=1), "pair", []),
    "roberta_classifier": ("RobertaForSequenceClassification", HEAD | BERT | dict(
        type_vocab_size=1, layer_norm_eps=1e-5,
        id2label={0: "contradiction", 1: "entailment", 2: "neutral"}), None, []),
    "distilbert_classifier": ("DistilBertForSequenceClassification", HEAD | DISTIL | dict(
        id2label={0: "NEGATIVE", 1: "POSITIVE"}), None, []),
    "electra_classifier": ("ElectraForSequenceClassification", HEAD | BERT | dict(embedding_size=12), "random", []),
    "bert_mlm": ("BertForMaskedLM", HEAD | BERT, "random", []),
    "roberta_mlm": ("RobertaForMaskedLM", HEAD | BERT | dict(type_vocab_size=1, layer_norm_eps=1e-5), None, []),
    "distilbert_mlm": ("DistilBertForMaskedLM", HEAD | DISTIL, None, []),
    "jina_embeddings_v3": ("JinaEmbeddingsV3Model", TINY | dict(
        rope_parameters={"rope_type": "default", "rope_theta": 50.0}, layer_norm_eps=1e-3), "zeros",
        [dict(layer_norm_eps=1e-12), dict(rope_parameters=None)]),
    "gte": ("GteModel", TINY | dict(
        rope_parameters={"rope_type": "default", "rope_theta": 50.0}, layer_norm_eps=1e-3), "zeros",
        [dict(layer_norm_eps=1e-12), dict(rope_parameters=None)]),
    "modernbert_classifier": ("ModernBertForSequenceClassification", TINY | SPECIAL | dict(
        pad_token_id=1, cls_token_id=2, sep_token_id=3, local_attention=8, classifier_pooling="mean",
        classifier_bias=True, norm_bias=True, mlp_bias=True, attention_bias=True, num_labels=3), None, []),
    "modernbert_mlm": ("ModernBertForMaskedLM", TINY | SPECIAL | dict(
        pad_token_id=1, cls_token_id=2, sep_token_id=3, local_attention=8), None, []),
    "albert_classifier": ("AlbertForSequenceClassification", TINY | SPECIAL | dict(embedding_size=6), None, []),
    "albert_mlm": ("AlbertForMaskedLM", TINY | SPECIAL | dict(embedding_size=6), None, []),
    "electra_mlm": ("ElectraForMaskedLM", TINY | dict(embedding_size=6), None, []),
    "deberta": ("DebertaModel", TINY | dict(
        layer_norm_eps=1e-3, type_vocab_size=2, relative_attention=True, max_relative_positions=6,
        pos_att_type=["c2p", "p2c"]), "random",
        [dict(layer_norm_eps=1e-12), dict(pos_att_type=["c2p"])]),
    "deberta_v2": ("DebertaV2Model", TINY | dict(
        num_hidden_layers=2, layer_norm_eps=1e-3, relative_attention=True, position_buckets=6,
        norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False, pos_att_type=["p2c", "c2p"]), None,
        [dict(layer_norm_eps=1e-12), dict(norm_rel_ebd="none"), dict(pos_att_type=["p2c"])]),
    "deberta_v2_cross_encoder": ("DebertaV2ForSequenceClassification", TINY | dict(
        num_labels=1, relative_attention=True, position_buckets=6, norm_rel_ebd="layer_norm", share_att_key=True,
        position_biased_input=False, pos_att_type=["p2c", "c2p"]), None, []),
    "deberta_mlm": ("DebertaForMaskedLM", TINY | dict(
        relative_attention=True, pos_att_type=["c2p", "p2c"]), None, []),
    "roberta_token_classifier": ("RobertaForTokenClassification", TINY | dict(num_labels=3, type_vocab_size=1), None, []),
    "distilbert_token_classifier": ("DistilBertForTokenClassification", HEAD | dict(
        dim=8, n_layers=1, n_heads=2, hidden_dim=6, id2label={0: "O", 1: "B-PER", 2: "I-PER"}), None, []),
    "electra_token_classifier": ("ElectraForTokenClassification", TINY | dict(embedding_size=6), "random", []),
    "albert_token_classifier": ("AlbertForTokenClassification", TINY | SPECIAL | dict(embedding_size=6), None, []),
    "mpnet_token_classifier": ("MPNetForTokenClassification", TINY, None, []),
    "modernbert_token_classifier": ("ModernBertForTokenClassification", TINY | SPECIAL | dict(
        pad_token_id=1, cls_token_id=2, sep_token_id=3, local_attention=8, classifier_bias=True, norm_bias=True,
        num_labels=3), None, []),
    "nomic_bert_token_classifier": ("NomicBertForTokenClassification", TINY | dict(
        rope_parameters={"rope_type": "default", "rope_theta": 50.0}), "random", []),
    "qwen3_classifier": ("Qwen3ForSequenceClassification", TINY | SPECIAL | dict(
        num_key_value_heads=1, head_dim=4, pad_token_id=5, num_labels=3), None, []),
    "gemma3_text_classifier": ("Gemma3TextForSequenceClassification", TINY | SPECIAL | dict(
        num_key_value_heads=1, head_dim=4, pad_token_id=0, num_labels=1, sliding_window=4), None, []),
    "gte_mlm": ("GteForMaskedLM", TINY | SPECIAL, "zeros", []),
    "gte_classifier": ("GteForSequenceClassification", TINY | dict(num_labels=3), "zeros", []),
}


def randomise(model):
    """Fills the parameters in the order of their names, whatever the order they are built in."""
    for _, p in sorted(model.named_parameters()):
        centre = 1.0 if bool((p == 1).all()) else 0.0
        p.data.normal_(centre, 0.2)
    for name, buffer in sorted(model.named_buffers()):
        if name.endswith("layer_scalar"):  # EmbeddingGemma 2: saved, but no parameter.
            buffer.normal_(1.0, 0.2)
    return model.eval()


def batch(config, kind):
    """Random texts and their token types."""
    pad = config.pad_token_id
    ids = torch.randint(0, config.vocab_size - 1, (len(LENGTHS), max(LENGTHS)))
    ids += ids >= pad  # all ids but the pad token, evenly
    lengths = torch.tensor(LENGTHS)
    mask = torch.arange(max(LENGTHS)) < lengths[:, None]
    out = {"ids": torch.where(mask, ids, pad), "lengths": lengths}
    if kind == "random":
        out["types"] = torch.randint(0, 2, ids.shape) * mask
    elif kind == "pair":
        out["types"] = (torch.arange(max(LENGTHS)) >= (lengths[:, None] + 1) // 2) * mask
    elif kind == "zeros":
        out["types"] = torch.zeros_like(ids)
    return out, mask.long()


def answer(model, ids, mask, types=None):
    """The last hidden state or the logits, zero at padding."""
    extra = {} if types is None else {"token_type_ids": types.long()}
    output = model(input_ids=ids, attention_mask=mask, **extra)
    key, y = ("logits", output.logits) if "logits" in output else ("hidden", output.last_hidden_state)
    if mask is not None and y.ndim == 3:
        y = torch.where(mask[:, :, None] == 1, y, 0.0)
    return key, y


def check(name, model, config, values, mask, key, vary):
    """Loads the folder again, runs each text alone, and sees that the config matters."""
    def run(m):
        return answer(m, values["ids"], mask, values.get("types"))[1]

    loaded = type(model).from_pretrained(OUT / name, attn_implementation="eager")
    torch.testing.assert_close(run(loaded), values[key], rtol=0, atol=1e-6)

    for i, n in enumerate(LENGTHS):
        types = values["types"][i : i + 1, :n] if "types" in values else None
        alone = answer(model, values["ids"][i : i + 1, :n], None, types)[1][0]
        together = values[key][i, :n] if values[key].ndim == 3 else values[key][i]
        torch.testing.assert_close(alone, together, rtol=0, atol=5e-6)

    if "types" in values and values["types"].any():
        assert (answer(model, values["ids"], mask)[1] - values[key]).abs().max() > 1e-2, name
    for change in vary:
        other = type(model)(type(config)(**(copy.deepcopy(MODELS[name][1]) | change), attn_implementation="eager"))
        other.load_state_dict(model.state_dict(), strict=False)
        diff = (run(other.eval()) - values[key]).abs().max().item()
        assert diff > 5e-5, f"{name}: {change} changes nothing ({diff})"
        print(f"  {change} changes {diff:.1e}")


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.disable_progress_bar()
    tf.utils.logging.set_verbosity_error()

    for name in sys.argv[1:] or MODELS:
        class_name, settings, kind, vary = MODELS[name]
        torch.manual_seed(zlib.crc32(name.encode()))
        cls = getattr(tf, class_name)
        config = cls.config_class(**copy.deepcopy(settings), attn_implementation="eager")
        model = randomise(cls(config))
        shutil.rmtree(OUT / name, ignore_errors=True)
        model.save_pretrained(OUT / name)

        values, mask = batch(config, kind)
        key, values[key] = answer(model, values["ids"], mask, values.get("types"))
        values = {k: v.long() if k != key else v.contiguous() for k, v in values.items()}
        save(f"encoders/{name}/golden.safetensors", values, ["torch", "transformers"],
             f"{class_name}, random, on random token ids", framework="torch")
        check(name, model, config, values, mask, key, vary)


if __name__ == "__main__":
    main()
