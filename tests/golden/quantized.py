"""Quantized attention layers in the formats in which models are published, dequantized by the formats' owners.

Writes ../fixtures/quantized/NAME.safetensors for each format:
    layer.{q,k,v,o}_proj.*   the stored tensors of a Llama layer: width 64, one head of 32, one key-value head
    extra.*                  modules of other sizes and kinds, where the format has such
    golden.MODULE            what the owner's code makes of it, f32 (out, in)
and as metadata `config`, the config.json, and `versions`.

Owners: mlx (`mx.quantize`, `mx.dequantize`); transformers (metal, fp8); compressed-tensors; auto-gptq, whose linear
layer gets the identity as its input; autoawq (`dequantize_gemm`). Stored integers of GPTQ and AWQ are random words.
Scales are stored in f16, bf16 or f32; the owners' arithmetic runs in f32, into which all of these are exact. Zero points
of `gptq_v2`, which auto-gptq does not know, are those of v1 and one, as GPTQModel converts them.

Made with torch 2.15.0, transformers 5.23.0, mlx 0.32.4 (mlx[cpu]), compressed-tensors 0.20.0, auto-gptq 0.7.1 and
autoawq 0.2.9, the last two installed with --no-deps; their files are loaded alone, because the packages import old
parts of transformers.
Re-run:  python tests/golden/quantized.py
"""

import importlib.metadata
import importlib.util
import json
import types

import mlx.core as mx
import numpy as np
import torch
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from transformers.integrations import finegrained_fp8, metal_quantization

from common import save

PACKAGES = ["torch", "transformers", "mlx", "compressed-tensors", "auto-gptq", "autoawq"]
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "rope_theta": 10000.0,
    "attention_bias": False,
}
SHAPES = {"layer.q_proj": (32, 64), "layer.k_proj": (32, 64), "layer.v_proj": (32, 64), "layer.o_proj": (64, 32)}
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def owners_file(package, path):
    """A file of an installed package, without the package's own imports."""
    file = next(f for f in importlib.metadata.files(package) if str(f) == path).locate()
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in SHAPES.items()}


def words(generator, shape):
    return torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64).to(torch.int32)


def write(name, tensors, config):
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    config = json.dumps({**LLAMA, **config})
    note = "quantized layers, dequantized by the formats' owners"
    save(f"quantized/{name}.safetensors", tensors, PACKAGES, note, "torch", config=config)


def to_mlx(tensor):
    """bf16 and f16 have the bits of torch's."""
    kind = {F32: mx.float32, F16: mx.float16, BF16: mx.bfloat16}[tensor.dtype]
    return mx.array(tensor.float().numpy()).astype(kind)


def to_torch(array):
    kind = {mx.float32: F32, mx.float16: F16, mx.bfloat16: BF16}.get(array.dtype)
    if kind is None:
        return torch.from_numpy(np.array(array))
    return torch.from_numpy(np.array(array.astype(mx.float32))).to(kind)


def mlx():
    own = {
        "layer.k_proj": (8, 32, F16),
        "layer.v_proj": (6, 64, BF16),
        "layer.o_proj": (3, 32, F16),
        "extra.two": (2, 32, BF16),
        "extra.five": (5, 32, BF16),
    }
    tensors, settings = {}, {"group_size": 64, "bits": 4, "mode": "affine"}
    made = weights(1)
    generator = torch.Generator().manual_seed(11)
    # An embedding with rows of zeros, as vocabularies are padded with them.
    made["extra.embed_tokens"] = torch.randn(7, 128, generator=generator)
    made["extra.embed_tokens"][5:] = 0
    made["extra.two"] = torch.randn(3, 64, generator=generator)
    made["extra.five"] = torch.randn(3, 96, generator=generator)
    for module, weight in made.items():
        bits, group, dtype = own.get(module, (4, 64, BF16))
        if module in own:
            settings[module] = {"group_size": group, "bits": bits}
        weight, scales, biases = mx.quantize(to_mlx(weight.to(dtype)), group_size=group, bits=bits)
        tensors |= {f"{module}.weight": to_torch(weight), f"{module}.scales": to_torch(scales)}
        tensors[f"{module}.biases"] = to_torch(biases)
        wide = [array.astype(mx.float32) for array in (scales, biases)]
        tensors[f"golden.{module}"] = to_torch(mx.dequantize(weight, *wide, group_size=group, bits=bits))
    write("mlx", tensors, {"quantization": settings, "quantization_config": settings})


def metal():
    for bits in (4, 8):
        tensors = {}
        for module, weight in weights(2).items():
            packed, scales, biases = metal_quantization._affine_quantize_tensor(weight, 32, bits)
            scales, biases = scales.to(BF16), biases.to(BF16)
            tensors |= {f"{module}.weight": packed, f"{module}.scales": scales, f"{module}.qbiases": biases}
            golden = metal_quantization._affine_dequantize_tensor(packed, scales, biases, 32, bits)
            tensors[f"golden.{module}"] = golden
        settings = {"quant_method": "metal", "bits": bits, "group_size": 32}
        write(f"metal{bits}", tensors, {"quantization_config": settings})


def fp8():
    block = [24, 40]
    config = types.SimpleNamespace(scale_fmt="float", weight_block_size=None)
    quantize = finegrained_fp8.Fp8Quantize(types.SimpleNamespace(quantization_config=config))
    tensors = {}
    for (module, weight), dtype in zip(weights(3).items(), (F32, BF16, torch.float8_e8m0fnu, None)):
        if dtype is None:
            stored = quantize._quantize_one("weight", weight)
            values, scale = stored["weight"], stored["weight_scale_inv"].reshape(())
            golden = finegrained_fp8._dequantize_fp8_weight(values, scale, None, F32)
        else:
            rows, columns = [-(-size // of) for size, of in zip(weight.shape, block)]
            scale = torch.zeros(rows, columns)
            for i in range(rows):
                for j in range(columns):
                    part = weight[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
                    scale[i, j] = part.abs().max() / 448
            scale = scale.log2().ceil().exp2().to(dtype) if dtype.itemsize == 1 else scale.to(dtype)
            wide = scale.to(F32)
            large = wide.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
            values = (weight / large[: weight.shape[0], : weight.shape[1]]).clamp(-448, 448).to(torch.float8_e4m3fn)
            golden = finegrained_fp8._dequantize_fp8_weight(values, wide, block, F32)
        tensors |= {f"{module}.weight": values, f"{module}.weight_scale_inv": scale, f"golden.{module}": golden}
    tensors["layer.q_proj.activation_scale"] = torch.tensor(0.5)
    settings = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": block}
    write("fp8", tensors, {"quantization_config": settings})


def compressed(name, compressor, format, modules):
    tensors, groups = {}, {}
    made = weights(4)
    generator = torch.Generator().manual_seed(14)
    for module, (dtype, settings) in modules.items():
        weight = made.get(module)
        if weight is None:
            weight = torch.randn(7, 30, generator=generator)
        args = QuantizationArgs(**settings)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        parts = {"tensor": weight.reshape(1, -1), "channel": weight}.get(args.strategy)
        if args.strategy == "group":
            parts = weight.reshape(weight.shape[0], -1, args.group_size)
        elif args.strategy == "block":
            height, width = args.block_structure
            padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % width, 0, -weight.shape[0] % height))
            blocks = padded.unflatten(0, (-1, height)).unflatten(2, (-1, width))
            parts = blocks.transpose(1, 2).flatten(2)
        scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
        shape = {"channel": (-1, 1), "tensor": (1,)}.get(args.strategy, scale.shape)
        scale, zero = scale.reshape(shape).to(dtype), zero.reshape(shape)
        state = {"weight": weight.to(dtype), "weight_scale": scale}
        if not args.symmetric:
            state["weight_zero_point"] = zero
        stored = compressor.compress(state, scheme)
        wide = {**stored, "weight_scale": scale.to(F32)}
        tensors |= {f"{module}.{part}": tensor for part, tensor in stored.items()}
        tensors[f"golden.{module}"] = compressor.decompress(wide, scheme)["weight"].to(F32)
        groups[f"group_{len(groups)}"] = {"targets": [f"re:.*{module}"], "weights": json.loads(args.model_dump_json())}
    tensors["layer.q_proj.input_scale"] = torch.tensor([0.25])
    config = {"quant_method": "compressed-tensors", "format": format, "config_groups": groups, "ignore": ["lm_head"]}
    write(name, tensors, {"quantization_config": config})


def compressed_tensors():
    args = {"num_bits": 8, "type": "int", "symmetric": True}
    compressed("compressed_int", NaiveQuantizationCompressor, "int-quantized", {
        "layer.q_proj": (BF16, {**args, "strategy": "channel"}),
        "layer.k_proj": (F32, {**args, "strategy": "tensor"}),
        "layer.v_proj": (F16, {**args, "strategy": "group", "group_size": 16, "symmetric": False}),
        "layer.o_proj": (BF16, {**args, "strategy": "channel", "symmetric": False}),
    })
    compressed("compressed_float", NaiveQuantizationCompressor, "float-quantized", {
        "layer.q_proj": (BF16, {**args, "type": "float", "strategy": "channel"}),
        "layer.k_proj": (F32, {**args, "type": "float", "strategy": "tensor"}),
        "layer.v_proj": (BF16, {**args, "type": "float", "strategy": "block", "block_structure": [16, 24]}),
        "layer.o_proj": (F16, {**args, "type": "float", "strategy": "channel"}),
    })
    four = {**args, "num_bits": 4}
    compressed("compressed_packed", PackedQuantizationCompressor, "pack-quantized", {
        "layer.q_proj": (BF16, {**four, "strategy": "group", "group_size": 32}),
        "layer.k_proj": (BF16, {**args, "strategy": "channel"}),
        "layer.v_proj": (F16, {**four, "strategy": "group", "group_size": 16, "symmetric": False}),
        "layer.o_proj": (F32, {**four, "strategy": "tensor"}),
        # Rows that end inside a word, and fewer zero points than a word has.
        "extra.odd": (BF16, {**four, "strategy": "channel", "symmetric": False}),
        "extra.odd8": (BF16, {**args, "strategy": "channel", "symmetric": False}),
    })


def gptq():
    layer = owners_file("auto-gptq", "auto_gptq/nn_modules/qlinear/qlinear_cuda.py").QuantLinear
    generator = torch.Generator().manual_seed(5)
    bits = {"layer.q_proj": 4, "layer.k_proj": 8, "layer.v_proj": 4, "layer.o_proj": 8}
    v1, v2 = {}, {}
    for module, (rows, columns) in SHAPES.items():
        width, group = bits[module], 16
        linear = layer(width, group, columns, rows, False)
        linear.qweight = words(generator, (columns * width // 32, rows))
        # v1 has no zero point of zero: less one, it would be the largest number.
        zeros = torch.randint(0, 2**width - 1, (columns // group, rows), generator=generator)
        pack = lambda zeros: sum(zeros[:, i :: 32 // width] << (width * i) for i in range(32 // width)).to(torch.int32)
        linear.qzeros = pack(zeros)
        linear.scales = (torch.rand(columns // group, rows, generator=generator) * 0.01).half()
        if module == "layer.q_proj":
            # The order of activations: groups of scattered inputs.
            linear.g_idx = linear.g_idx[torch.randperm(columns, generator=generator)]
        stored = {"qweight": linear.qweight, "qzeros": linear.qzeros, "scales": linear.scales}
        if module != "layer.o_proj":
            stored["g_idx"] = linear.g_idx
        linear.scales = linear.scales.float()
        golden = {f"golden.{module}": linear(torch.eye(columns)).t().clone()}
        v1 |= {f"{module}.{part}": tensor for part, tensor in stored.items()} | golden
        stored["qzeros"] = pack(zeros + 1)
        v2 |= {f"{module}.{part}": tensor for part, tensor in stored.items()} | golden
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True, "sym": False}
    write("gptq", v1, {"quantization_config": settings})
    write("gptq_v2", v2, {"quantization_config": {**settings, "checkpoint_format": "gptq_v2"}})


def awq():
    packing = owners_file("autoawq", "awq/utils/packing_utils.py")
    generator = torch.Generator().manual_seed(6)
    tensors = {}
    for module, (rows, columns) in SHAPES.items():
        qweight, qzeros = words(generator, (columns, rows // 8)), words(generator, (columns // 16, rows // 8))
        scales = (torch.rand(columns // 16, rows, generator=generator) * 0.01).half()
        tensors |= {f"{module}.qweight": qweight, f"{module}.qzeros": qzeros, f"{module}.scales": scales}
        golden = packing.dequantize_gemm(qweight, qzeros, scales.float(), 4, 16)
        tensors[f"golden.{module}"] = golden.t()
    settings = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
    write("awq", tensors, {"quantization_config": settings})


if __name__ == "__main__":
    for make in (mlx, metal, fp8, compressed_tensors, gptq, awq):
        make()
