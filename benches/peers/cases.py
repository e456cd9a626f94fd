"""What is compared: the cases by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    # layer, encoder or sentences
    kind: str
    # The model of an encoder; for layers, nothing.
    model: str = ""
    # (b, s) of an encoder's input; (b, s, hidden_size, heads) of a layer.
    shape: tuple[int, ...] = ()
    ragged: bool = False
    # Peers that could run it but do not.
    without: tuple[str, ...] = ()
    # Rounds at most; nothing for no limit.
    rounds: int | None = None
    dtypes: tuple[str, ...] = ("f32", "bf16")


LAYERS = [
    (10, 20, 512, 8),
    (1, 16, 384, 12),
    (1, 128, 768, 12),
    (8, 128, 768, 12),
    (1, 512, 768, 12),
    (1, 2048, 768, 12),
    (1, 4096, 512, 8),
    (32, 128, 384, 12),
]
RAGGED = (32, 128, 384, 12)
MINILM, BERT, MODERNBERT = "MiniLM-L6", "BERT-base", "ModernBERT-base"
# About 4,000 English words are 5,400 tokens.
ENCODERS = {
    MINILM: [(1, 16), (1, 128), (8, 128), (32, 128), (16, 250), (4, 512)],
    BERT: [(1, 32), (16, 256)],
    MODERNBERT: [(1, 5400)],
}
# What is timed in int8.
INT8_SHAPES = [(1, 16), (8, 128), (32, 128), (16, 250)]
INT8_ENCODERS = {MINILM: INT8_SHAPES, BERT: INT8_SHAPES, MODERNBERT: []}
# The shapes that candle-transformers is timed on too: it is slow, and has no ModernBERT here.
CANDLE = [(MINILM, (8, 128)), (MINILM, (32, 128))]
# A run on one thread takes tens of seconds or more: few rounds, and neither converted twice nor run with whole score matrices.
LONG = (MODERNBERT, (1, 5400))
LONG_ROUNDS = 2
LONG_WITHOUT = ("ONNX Runtime", "rten")


def ragged_lengths():
    """Lengths of the ragged batch: mostly short."""
    import torch

    torch.manual_seed(1)
    lengths = (8 + torch.randint(0, 121, (RAGGED[0],)) * torch.rand(RAGGED[0]) * 0.8).long()
    lengths[0] = RAGGED[1]
    return lengths


def all_cases():
    cases = [Case(f"layer {b}×{s}×{hidden}, {heads}", "layer", shape=(b, s, hidden, heads)) for b, s, hidden, heads in LAYERS]
    cases.append(Case("layer, 32 ragged rows of 8 to 128 (mean 35), 384, 12", "layer", shape=RAGGED, ragged=True))
    for model, shapes in ENCODERS.items():
        int8 = INT8_ENCODERS[model]
        for shape in dict.fromkeys([*shapes, *int8]):
            dtypes = ("f32", "bf16") * (shape in shapes) + ("int8",) * (shape in int8)
            without = () if (model, shape) in CANDLE else ("candle-transformers",)
            rounds = None
            if (model, shape) == LONG:
                without, rounds = (*without, *LONG_WITHOUT), LONG_ROUNDS
            name = f"{model} {shape[0]}×{shape[1]}"
            cases.append(Case(name, "encoder", model, shape, without=without, rounds=rounds, dtypes=dtypes))
    name = "MiniLM-L6, 1,000 texts of 6 to 217 tokens, tokenizing included"
    cases.append(Case(name, "sentences", MINILM, dtypes=("f32", "bf16", "int8", "q8_0", "q4_0")))
    return cases
