"""Golden values of the rotation alone, as the modules of transformers compute it.

Writes tests/fixtures/rotary.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/rotary.py

    llama     Llama 3 scaling, half-split pairs
    deepseek  DeepSeek V3: YaRN with `mscale`, interleaved pairs. Its function puts the first elements of
              all pairs before the second ones; the fixture has them interleaved again.
    neox      half-split pairs in a part of each head
    phi_short, phi_long
              LongRoPE in a part of each head, up to the original length and beyond it
`<case>.q` (b, s, h, d) and `<case>.k` (b, s, h_kv, d), their rotations `.q_rotated` and `.k_rotated`,
`.positions` i64 (b, s), and `.frequencies` (pairs) with `.factor` (1): `inv_freq` and `attention_scaling`.
"""

import torch
import transformers as tf
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi3 import modeling_phi3 as phi

from common import save

D = 12


def run(tensors, case, rotary, apply, positions, interleaved=False):
    b, s = positions.shape
    q, k = torch.randn(b, s, 3, D), torch.randn(b, s, 1, D)
    cos, sin = rotary(q, positions)
    rotated = apply(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
    rotated = [xs.transpose(1, 2) for xs in rotated]
    if interleaved:
        rotated = [torch.stack(xs.chunk(2, dim=-1), dim=-1).flatten(-2) for xs in rotated]
    names = dict(q=q, k=k, q_rotated=rotated[0], k_rotated=rotated[1], positions=positions,
                 frequencies=rotary.inv_freq, factor=torch.tensor([rotary.attention_scaling]))
    tensors.update({f"{case}.{name}": tensor.clone().contiguous() for name, tensor in names.items()})


def main():
    torch.set_num_threads(1)
    torch.manual_seed(47)
    tensors = {}
    sizes = dict(hidden_size=3 * D, num_attention_heads=3, num_hidden_layers=1)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 12, 13, 20]])
    rope = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32)
    run(tensors, "llama", llama.LlamaRotaryEmbedding(tf.LlamaConfig(**sizes, rope_parameters=rope)),
        llama.apply_rotary_pos_emb, positions)
    rope = dict(rope_type="yarn", rope_theta=1000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, mscale=0.7,
                mscale_all_dim=1.0, original_max_position_embeddings=64)
    config = tf.DeepseekV3Config(**sizes, qk_rope_head_dim=D, rope_parameters=rope, max_position_embeddings=256)
    run(tensors, "deepseek", deepseek.DeepseekV3RotaryEmbedding(config),
        deepseek.apply_rotary_pos_emb_interleave, positions, interleaved=True)
    config = tf.GPTNeoXConfig(**sizes, rope_parameters=dict(
        rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5))
    run(tensors, "neox", neox.GPTNeoXRotaryEmbedding(config), neox.apply_rotary_pos_emb, positions)
    rope = dict(rope_type="longrope", rope_theta=100.0, partial_rotary_factor=2 / 3, short_factor=[1.0, 1.5, 2.0, 3.0],
                long_factor=[2.0, 3.0, 5.0, 7.0])
    config = tf.Phi3Config(**sizes, rope_parameters=rope, max_position_embeddings=64,
                           original_max_position_embeddings=16, pad_token_id=0)
    for case, row in [("phi_short", positions[:1]), ("phi_long", positions[1:])]:
        run(tensors, case, phi.Phi3RotaryEmbedding(config), phi.apply_rotary_pos_emb, row)
    save("rotary.safetensors", tensors, ["torch", "transformers", "safetensors"],
         "rotary embeddings of transformers, applied", framework="torch")


if __name__ == "__main__":
    main()
