"""Golden values of attention at positions that the caller gives.

Writes tests/fixtures/explicit_positions.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/explicit_positions.py

Each case is the text attention of a tiny random model of transformers with its own rotary
embedding, under a causal mask:
    llama      positions that restart (packed texts, kept apart by the mask), and an offset with gaps
    qwen2_vl   M-RoPE: sections of pairs for time, height and width
    qwen3_vl   M-RoPE with alternating pairs, norms of queries and keys
`<case>.layer.*` are the weights as the module names them, `<case>.input` (b, s, hidden),
`<case>.positions` i64 (b, s) or (3, b, s), `<case>.segments` i64 (b, s) only for llama,
`<case>.output` the attention's output.
"""

import torch
import transformers as tf
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3

from common import save

SIZES = dict(hidden_size=36, num_attention_heads=3, num_key_value_heads=1, intermediate_size=8,
             num_hidden_layers=1, vocab_size=13, attn_implementation="eager")
B, S = 2, 9


def run(tensors, case, config, attention, rotary, positions, segments=None):
    attention, rotary = attention(config, layer_idx=0).eval(), rotary(config)
    for name, p in sorted(attention.named_parameters()):
        p.data.normal_(0.0, 0.3).add_(1.0 if "norm" in name else 0.0)
        tensors[f"{case}.layer.{name}"] = p.detach().clone()
    xs = torch.randn(B, S, config.hidden_size)
    keep = torch.ones(S, S, dtype=torch.bool).tril().expand(B, S, S)
    if segments is not None:
        keep = keep & (segments[:, :, None] == segments[:, None, :])
        tensors[f"{case}.segments"] = segments
    mask = torch.zeros(B, 1, S, S).masked_fill(~keep[:, None], torch.finfo(torch.float32).min)

    def output(positions):
        with torch.inference_mode():
            return attention(hidden_states=xs, position_embeddings=rotary(xs, positions),
                             attention_mask=mask)[0]

    got = output(positions)
    text = torch.arange(S).expand(positions.shape)
    assert (got - output(text)).abs().max() > 1e-2, f"{case}: the positions change nothing"
    tensors.update({f"{case}.input": xs, f"{case}.positions": positions.clone(),
                    f"{case}.output": got.clone()})


def main():
    torch.set_num_threads(1)
    torch.manual_seed(29)
    tensors = {}
    default = dict(rope_type="default", rope_theta=100.0)
    packed = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [3, 4, 5, 9, 10, 11, 20, 21, 22]])
    segments = torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    run(tensors, "llama", tf.LlamaConfig(**SIZES, rope_parameters=default), llama.LlamaAttention,
        llama.LlamaRotaryEmbedding, packed, segments)
    # An image of 2 x 2 patches between words, and two of one row.
    image = torch.tensor([
        [[0, 1, 2, 2, 2, 2, 4, 5, 6], [0, 1, 1, 3, 4, 4, 6, 7, 8]],
        [[0, 1, 2, 2, 3, 3, 4, 5, 6], [0, 1, 1, 3, 4, 4, 6, 7, 8]],
        [[0, 1, 2, 3, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6, 7, 8]]])
    rope = {**default, "mrope_section": [1, 2, 3]}
    run(tensors, "qwen2_vl", tf.Qwen2VLTextConfig(**SIZES, rope_parameters=rope),
        qwen2.Qwen2VLAttention, qwen2.Qwen2VLRotaryEmbedding, image)
    rope = {**default, "mrope_section": [3, 2, 1], "mrope_interleaved": True}
    run(tensors, "qwen3_vl", tf.Qwen3VLTextConfig(**SIZES, head_dim=12, rope_parameters=rope),
        qwen3.Qwen3VLTextAttention, qwen3.Qwen3VLTextRotaryEmbedding, image)
    save("explicit_positions.safetensors", tensors, ["torch", "transformers", "safetensors"],
         "attention modules of transformers at given positions, causal", framework="torch")


if __name__ == "__main__":
    main()
