"""Golden values of attention under masks and scores that are functions, from PyTorch's flex_attention in its eager form.

Writes tests/fixtures/mask_functions.safetensors and score_functions.safetensors. Pins: requirements-torch.txt.
Run: python tests/golden/mask_functions.py

`query`, `key` and `value` are (b, h, s, d), more keys than a block of the CPU kernel has; `<mask>` is the
output (b, h, s, d) under
    document      causal within documents that begin at the positions 0, 150, 151 and 320
    dilated       each fourth key of the last 200, in steps that count back from the query
    tree          a tree of drafts after a prefix of 200: a token sees the prefix, its ancestors and itself,
                  and the parent of the token at 200 + i is that at 200 + (i - 1) // 2
    prefix_holes  a prefix of 260 keys without each seventh, and causal after it
    strided       the last 16 keys, and each 32nd before them, another one in each head and sequence

In score_functions.safetensors the first 48 tokens of each, and for the functions of scores
    capped        2 tanh(score / 2) - 0.05 (h + 1) |q - k|
    thinned       1.5 score in head 1; in sequence b the keys with (q + k) % 3 = b are hidden
the output `<function>` (b, h, s, d), and from autograd the gradients `<function>.<tensor>` of its sum, weighted
by cos(0.1 i) for element i.
"""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from common import save

B, H, S, D = 2, 2, 400, 8
PREFIX = 200


def document(b, h, q, k):
    begins = torch.tensor([150, 151, 320])
    return (torch.bucketize(q, begins, right=True) == torch.bucketize(k, begins, right=True)) & (k <= q)


def dilated(b, h, q, k):
    return (k <= q) & (q - k < 200) & ((q - k) % 4 == 0)


ANCESTORS = torch.zeros(S, S, dtype=torch.bool)
for token in range(S - PREFIX):
    ancestor = token
    while True:
        ANCESTORS[PREFIX + token, PREFIX + ancestor] = True
        if ancestor == 0:
            break
        ancestor = (ancestor - 1) // 2


def tree(b, h, q, k):
    return torch.where(k < PREFIX, (k <= q) | (q >= PREFIX), ANCESTORS[q, k])


def prefix_holes(b, h, q, k):
    return ((k < 260) & (k % 7 != 3)) | ((k <= q) & (k >= 260))


def strided(b, h, q, k):
    return (k <= q) & ((q - k < 16) | (k % 32 == b + h))


def capped(score, b, h, q, k):
    return 2 * torch.tanh(score / 2) - 0.05 * (h + 1) * (q - k).abs()


def thinned(score, b, h, q, k):
    return torch.where((q + k) % 3 == b, -float("inf"), torch.where(h == 1, 1.5, 1.0) * score)


def scores(q, k, v):
    names = ["query", "key", "value"]
    leaves = [x[:, :, :48].clone() for x in (q, k, v)]
    tensors = dict(zip(names, leaves))
    places = torch.meshgrid(*(torch.arange(n) for n in (B, H, 48, 48)), indexing="ij")
    for function in (capped, thinned):
        tensors[function.__name__] = output = flex_attention(*leaves, score_mod=function)
        # On the CPU flex_attention has no backward pass: the same function under autograd.
        query, key, value = tracked = [leaf.clone().requires_grad_() for leaf in leaves]
        weights = torch.softmax(function(query @ key.mT / D**0.5, *places), dim=-1)
        torch.testing.assert_close(weights @ value, output)
        factors = torch.cos(0.1 * torch.arange(output.numel())).reshape(output.shape)
        gradients = torch.autograd.grad((weights @ value * factors).sum(), tracked)
        tensors |= {f"{function.__name__}.{name}": gradient for name, gradient in zip(names, gradients)}
    save("score_functions.safetensors", tensors, ["torch"], note="see mask_functions.py")


def main():
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, H, S, D) for _ in range(3))
    tensors = {"query": q, "key": k, "value": v}
    for mask in (document, dilated, tree, prefix_holes, strided):
        block_mask = create_block_mask(mask, B, H, S, S, device="cpu")
        tensors[mask.__name__] = flex_attention(q, k, v, block_mask=block_mask)
    save("mask_functions.safetensors", tensors, ["torch"], note="see mask_functions.py")
    scores(q, k, v)


if __name__ == "__main__":
    main()
