"""Additive masks in each dtype with very low numbers, alone and in sums, by torch in f64.

Writes ../fixtures/masks_in_dtypes.safetensors: `q`, `k`, `v` (1, s, 2, d); for each case masks `CASE.0`, `CASE.1`, …
(1, 1, s, s), and `CASE.output` (1, s, 2, d) of them together. The lowest number of the dtype of a mask, and -inf, hide
a key, and a query that sees none gets zeros, as AttentionMask::additive documents; any other number is added in f64.

Re-run:  python tests/golden/masks_in_dtypes.py
"""

import torch
from safetensors.torch import save_file

from common import FIXTURES

S, D = 5, 3
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
LOW = {dtype: torch.finfo(dtype).min for dtype in (F16, BF16, F32, F64)}


def mask(dtype, *places):
    """Zeros but for `(rows, columns, value)`."""
    out = torch.zeros(S, S, dtype=F64)
    for rows, columns, value in places:
        out[rows, columns] = value
    return out.to(dtype)[None, None]


ROW, ALL = (2, slice(None)), (slice(None), slice(None))
MIN = LOW[F32]


def causal(value):
    return torch.triu(torch.full((S, S), value, dtype=F64), 1)[None, None]


def left(value):
    out = torch.zeros(1, 1, S, S, dtype=F64)
    out[..., :2] = value
    return out


cases = {}
for dtype, name in ((F16, "f16"), (BF16, "bf16"), (F32, "f32"), (F64, "f64")):
    cases[f"{name}_row"] = [mask(dtype, (*ROW, LOW[dtype]))]
    cases[f"{name}_key"] = [mask(dtype, (slice(None), 1, LOW[dtype]))]
    cases[f"{name}_causal_and_left"] = [causal(LOW[dtype]).to(dtype), left(LOW[dtype]).to(dtype)]
for value, name in ((MIN, "f32_lowest"), (LOW[BF16], "bf16_lowest"), (-1e30, "minus_1e30"),
                    (2 * MIN, "below_f32"), (-1e300, "minus_1e300"), (1e300, "plus_1e300")):
    cases[f"f64_row_of_{name}"] = [mask(F64, (*ROW, value))]
    cases[f"f64_all_of_{name}"] = [mask(F64, (*ALL, value))]
    cases[f"f64_key_of_{name}"] = [mask(F64, (slice(None), 1, value))]
    cases[f"f64_two_of_{name}"] = [mask(F64, (*ROW, value)), mask(F64, (*ALL, value))]
cases["f64_causal_plus_left"] = [causal(MIN) + left(MIN)]
cases["f64_causal_and_left"] = [causal(MIN), left(MIN)]
cases["f64_three"] = [causal(MIN), left(MIN), mask(F64, (*ROW, MIN), (3, 4, -torch.inf))]
cases["f64_each_key_twice"] = [mask(F64, (0, [0, 1, 2, 3], MIN)), mask(F64, (0, [0, 4, 1], MIN)), mask(F64, (0, [2, 3, 4], MIN))]
cases["f64_beside_inf"] = [mask(F64, (*ROW, MIN), (2, 1, -torch.inf))]
cases["f64_beside_lowest"] = [mask(F64, (*ROW, MIN), (2, 1, LOW[F64]))]
cases["f64_differing"] = [mask(F64, (*ROW, 3 * MIN), (2, 1, 2 * MIN))]
cases["f64_and_f32"] = [mask(F64, (*ROW, MIN)), mask(F32, (slice(None), 1, MIN))]
cases["f64_and_bf16"] = [mask(F64, (*ROW, MIN)), mask(BF16, (*ROW, -1e38))]
cases["f32_row_of_bf16_lowest"] = [mask(F32, (*ROW, LOW[BF16]))]


def main():
    torch.manual_seed(48)
    q, k, v = (torch.randn(1, S, 2, D) for _ in range(3))
    tensors = {"q": q, "k": k, "v": v}
    heads = [x.transpose(1, 2).double() for x in (q, k, v)]
    for name, masks in cases.items():
        scores, hidden = heads[0] @ heads[1].mT * D**-0.5, torch.zeros(1, 1, S, S, dtype=torch.bool)
        bias = torch.zeros(1, 1, S, S, dtype=F64)
        for i, one in enumerate(masks):
            low = one <= LOW[one.dtype]
            bias, hidden = bias + torch.where(low, 0.0, one.double()), hidden | low
            tensors[f"{name}.{i}"] = one.contiguous()
        weights = torch.where(hidden, -torch.inf, scores + bias).softmax(-1).nan_to_num(0.0)
        tensors[f"{name}.output"] = (weights @ heads[2]).transpose(1, 2).contiguous()
    save_file(tensors, FIXTURES / "masks_in_dtypes.safetensors", {"torch": torch.__version__})


if __name__ == "__main__":
    main()
