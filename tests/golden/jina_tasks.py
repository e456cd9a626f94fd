"""A tiny Jina embeddings v3 with task adapters in its checkpoint, as the published model stores them.

The published model's own code cannot be run here, so its checkpoint and formula are rebuilt. Every linear
layer and table of embeddings is a parametrization (modeling_lora.py of jinaai/xlm-roberta-flash-implementation):
    <module>.parametrizations.weight.original   W
    <module>.parametrizations.weight.0.lora_A   linear (tasks, rank, in), table (tasks, rows, rank)
    <module>.parametrizations.weight.0.lora_B   linear (tasks, out, rank), table (tasks, rank, width)
With a task t the weight is W + B[t] @ A[t] · alpha / rank, of a table W + A[t] @ B[t] · alpha / rank; without one
it is W. `encode(task=…)` puts the task's instruction before each text.
These weights are given to transformers' JinaEmbeddingsV3Model, which computes the answers.

Writes ../fixtures/lora/jina_tasks/
    config.json, model.safetensors, tokenizer.json and the files of sentence-transformers
    golden.safetensors   `ids` i64 (3, 9), `lengths` i64 (3), and for the base and each task
                         `hidden.<task>` f32 (3, 9, 16): the last hidden state, zeros at padding
                         `vectors.<task>` f32 (8, 16): the unit mean vectors of ../fixtures/tiny_sentences.json

Made with torch 2.15.0, transformers 5.23.0 (stored in the metadata).
Re-run:  python tests/golden/jina_tasks.py
"""

import json
import shutil

import torch
import transformers as tf
from safetensors.torch import save_file

from common import FIXTURES, save

OUT = FIXTURES / "lora" / "jina_tasks"
TASKS = ["retrieval.query", "separation", "text-matching"]
INSTRUCTIONS = {"retrieval.query": "find the cats: ", "separation": "", "text-matching": ""}
RANK, ALPHA, WIDTH, INNER, VOCABULARY = 3, 2, 16, 20, 109
CONFIG = dict(
    architectures=["XLMRobertaModel"], model_type="xlm-roberta", position_embedding_type="rotary",
    rotary_emb_base=50.0, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=INNER,
    hidden_act="gelu", layer_norm_eps=1e-3, max_position_embeddings=24, vocab_size=VOCABULARY, type_vocab_size=1,
    pad_token_id=0, lora_adaptations=TASKS, lora_rank=RANK, lora_alpha=ALPHA, lora_dropout_p=0.0,
    lora_main_params_trainable=False, load_trained_adapters=True, task_instructions=INSTRUCTIONS,
    use_flash_attn=True, matryoshka_dimensions=[4, 8, 16], truncate_dim=None, emb_pooler=None,
    hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def checkpoint():
    """The tensors under their published names, and for each module what changes it: its kind."""
    tensors, kinds = {}, {}

    def linear(name, out, inner, kind="linear"):
        tensors[f"{name}.parametrizations.weight.original"] = 0.3 * torch.randn(out, inner)
        shapes = {"linear": ((RANK, inner), (out, RANK)), "table": ((out, RANK), (RANK, inner))}[kind]
        for part, shape in zip("AB", shapes):
            tensors[f"{name}.parametrizations.weight.0.lora_{part}"] = 0.3 * torch.randn(len(TASKS), *shape)
        if kind == "linear":
            tensors[f"{name}.bias"] = 0.2 * torch.randn(out)
        kinds[name] = kind

    def norm(name):
        tensors[f"{name}.weight"] = 1 + 0.2 * torch.randn(WIDTH)
        tensors[f"{name}.bias"] = 0.2 * torch.randn(WIDTH)

    linear("roberta.embeddings.word_embeddings", VOCABULARY, WIDTH, "table")
    linear("roberta.embeddings.token_type_embeddings", 1, WIDTH, "table")
    norm("roberta.emb_ln")
    for i in range(CONFIG["num_hidden_layers"]):
        layer = f"roberta.encoder.layers.{i}"
        linear(f"{layer}.mixer.Wqkv", 3 * WIDTH, WIDTH)
        linear(f"{layer}.mixer.out_proj", WIDTH, WIDTH)
        linear(f"{layer}.mlp.fc1", INNER, WIDTH)
        linear(f"{layer}.mlp.fc2", WIDTH, INNER)
        norm(f"{layer}.norm1")
        norm(f"{layer}.norm2")
    linear("roberta.pooler.dense", WIDTH, WIDTH)
    return tensors, kinds


def weights(tensors, kinds, task):
    """The plain weights with a task, or without one, below `roberta.`."""
    plain = {name: tensor for name, tensor in tensors.items() if "parametrizations" not in name}
    for name, kind in kinds.items():
        weight = tensors[f"{name}.parametrizations.weight.original"]
        if task is not None:
            a, b = (tensors[f"{name}.parametrizations.weight.0.lora_{part}"][TASKS.index(task)] for part in "AB")
            weight = weight + (b @ a if kind == "linear" else a @ b).view(weight.shape) * (ALPHA / RANK)
        plain[f"{name}.weight"] = weight
    return {name.removeprefix("roberta."): tensor for name, tensor in plain.items()}


def model(plain):
    """transformers' model with these weights: its loader renames and splits what the published names hold."""
    folder = OUT / "plain"
    folder.mkdir()
    config = tf.JinaEmbeddingsV3Config(
        **{key: CONFIG[key] for key in ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                                        "intermediate_size", "hidden_act", "layer_norm_eps", "type_vocab_size",
                                        "max_position_embeddings", "pad_token_id"]},
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG["rotary_emb_base"]})
    config.save_pretrained(folder)
    save_file({name: tensor.contiguous() for name, tensor in plain.items()}, folder / "model.safetensors")
    loaded, info = tf.JinaEmbeddingsV3Model.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    shutil.rmtree(folder)
    return loaded.eval()


def vectors(model, tokenizer, texts):
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer(text, truncation=True, max_length=16)["input_ids"]])
        mean = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0].mean(0)
        rows.append(torch.nn.functional.normalize(mean, dim=0))
    return torch.stack(rows)


def main():
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(17)
    tf.utils.logging.disable_progress_bar()
    shutil.rmtree(OUT, ignore_errors=True)
    tiny = FIXTURES / "tiny-bert"
    shutil.copytree(tiny, OUT, ignore=shutil.ignore_patterns("model.safetensors", "config.json"))
    shutil.copytree(tiny / "1_Pooling", OUT / "1_Pooling", dirs_exist_ok=True)
    pooling = json.loads((OUT / "1_Pooling" / "config.json").read_text()) | {"embedding_dimension": WIDTH}
    (OUT / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=2))
    modules = json.loads((tiny / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (OUT / "modules.json").write_text(json.dumps(modules, indent=2))
    (OUT / "config_sentence_transformers.json").write_text(json.dumps({"prompts": INSTRUCTIONS}, indent=2))
    (OUT / "config.json").write_text(json.dumps(CONFIG, indent=2, sort_keys=True))
    tensors, kinds = checkpoint()

    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([9, 4, 6])
    mask = (torch.arange(9)[None] < lengths[:, None]).long()
    ids = torch.randint(5, VOCABULARY, (3, 9), generator=generator) * mask
    texts = json.loads((FIXTURES / "tiny_sentences.json").read_text())
    tokenizer = tf.PreTrainedTokenizerFast.from_pretrained(tiny)
    values = {"ids": ids, "lengths": lengths}
    for task in [None, *TASKS]:
        run = model(weights(tensors, kinds, task))
        hidden = run(input_ids=ids, attention_mask=mask).last_hidden_state
        values[f"hidden.{task or 'base'}"] = torch.where(mask[:, :, None] == 1, hidden, 0.0)
        instruction = INSTRUCTIONS[task] if task else ""
        values[f"vectors.{task or 'base'}"] = vectors(run, tokenizer, [instruction + text for text in texts])
    for task in TASKS:
        assert (values[f"hidden.{task}"] - values["hidden.base"]).abs().max() > 0.1, task
    save_file(tensors, OUT / "model.safetensors")
    (OUT / "model.safetensors").chmod(0o644)
    save("lora/jina_tasks/golden.safetensors", values, ["torch", "transformers"],
         "JinaEmbeddingsV3Model with the weights of each task", framework="torch")


if __name__ == "__main__":
    main()
