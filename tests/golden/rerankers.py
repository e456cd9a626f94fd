"""Scores of pairs by tiny random decoders: causal language models with a `LogitScore`, and one with a classification head.

Writes for each name in MODELS a folder ../fixtures/rerankers/<name>/ as the CrossEncoder of sentence-transformers writes
it, and beside it in ../fixtures
    rerankers.safetensors   <name> = the scores of PAIRS; <name>.<prompt> = the same with a prompt
    rerankers.json          PAIRS

Each folder is loaded again. Its scores are the same for pairs alone and in one batch.

Made with torch 2.15.0, transformers 5.23.0, sentence-transformers 6.2.0, tokenizers 0.23.3 (stored in the metadata).
Re-run:  python tests/golden/rerankers.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers as tf
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore

from common import FIXTURES, save
from decoder_sentences import SIZES, TEXTS, llama, qwen
from encoders import randomise

OUT = FIXTURES / "rerankers"
PAIRS = [
    ("cats", "The cat sat on the mat."),
    ("hello", "hello world"),
    ("where do birds sing?", TEXTS[3]),
    # Longer than the model reads.
    ("what does not matter", TEXTS[5]),
]
# As Qwen3-Reranker: an instruction of the role `system`, and the beginning of the answer after the texts.
TEMPLATE = """<|im_start|>system
Is it so? "yes" or "no".<|im_end|>
<|im_start|>user
{%- set told = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("find it") %}

<Instruct>: {{ told }}
{% for message in messages %}
    {% if message.role == 'query' %}
<Query>: {{ message.content }}
    {% elif message['role'] == 'document' %}
<Document>: {{ message.content | trim }}
    {%- endif %}
{% endfor %}
<|im_end|>
<|im_start|>assistant
{% if add_generation_prompt %}
<think>
{% endif %}
"""

# name: (model class, config, tokenizer, labels or tokens that score, chat template, prompts, longest input)
MODELS = {
    "qwen3": ("Qwen3ForCausalLM", SIZES | dict(tie_word_embeddings=True, max_position_embeddings=256),
              lambda: qwen("<|im_start|>", "yes", "no"), ("yes", "no"), TEMPLATE, dict(web="read the web"), 120),
    "llama": ("LlamaForCausalLM", SIZES, lambda: llama(True), ("re", None), None, dict(web="read: "), 30),
    "qwen3_head": ("Qwen3ForSequenceClassification", SIZES, qwen, None, None, dict(web="read: "), 30),
}


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    tf.utils.logging.disable_progress_bar()
    shutil.rmtree(OUT, ignore_errors=True)
    out = {}
    for index, (name, (class_name, settings, tokenizer, tokens, template, prompts, longest)) in enumerate(MODELS.items()):
        torch.manual_seed(10 + index)
        with tempfile.TemporaryDirectory() as tmp:
            tokenizer = tf.PreTrainedTokenizerFast(**tokenizer(), model_max_length=longest)
            tokenizer.chat_template = template
            cls = getattr(tf, class_name)
            ids = {f"{which}_token_id": getattr(tokenizer, f"{which}_token_id") for which in ("pad", "bos", "eos")}
            head = {} if tokens else dict(num_labels=1)
            config = cls.config_class(**settings, **ids, **head, vocab_size=len(tokenizer))
            randomise(cls(config)).save_pretrained(tmp)
            tokenizer.save_pretrained(tmp)
            task = "text-generation" if tokens else "sequence-classification"
            modules = [Transformer(tmp, transformer_task=task)]
            if tokens:
                yes, no = (token and tokenizer.convert_tokens_to_ids(token) for token in tokens)
                assert yes != tokenizer.unk_token_id
                modules.append(LogitScore(true_token_id=yes, false_token_id=no))
            model = CrossEncoder(modules=modules, prompts=prompts, device="cpu")
            model.save_pretrained(str(OUT / name), create_model_card=False)
        model = CrossEncoder(str(OUT / name), device="cpu")
        assert model.max_seq_length == longest
        for case, options in {name: {}, f"{name}.web": dict(prompt_name="web")}.items():
            scores = model.predict(PAIRS, convert_to_tensor=True, **options)
            out[case] = scores
            alone = torch.cat([model.predict([pair], convert_to_tensor=True, **options) for pair in PAIRS])
            torch.testing.assert_close(alone, scores, rtol=0, atol=2e-6)
            print(name, scores)
        lengths = model.preprocess(PAIRS)["attention_mask"].sum(1)
        assert lengths.max() == longest and lengths[0] < longest, lengths
    save("rerankers.safetensors", out, ["torch", "transformers", "sentence-transformers", "tokenizers"],
         "tiny rerankers on rerankers.json", framework="torch")
    (FIXTURES / "rerankers.json").write_text(json.dumps(PAIRS, indent=1) + "\n")


if __name__ == "__main__":
    main()
