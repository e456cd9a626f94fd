"""Counts the instructions of one product on 64-bit Arm, for each instruction set and format of weights.

    count.py QEMU PROGRAM

QEMU is a command, PROGRAM is crates/kernels/examples/product.rs. qemu writes down each block of instructions once, and each
run of a block. The counts are those of two products less those of one. They are no times: instructions differ in how many of
them a processor runs in a cycle.
"""

import collections
import os
import re
import subprocess
import sys
import tempfile

# Instruction sets with the formats for which they have kernels of their own.
FORMATS = {
    "neon": ["F32", "Int8", "Q8_0", "Q4_0"],
    "neon_dotprod": ["Int8", "Q8_0", "Q4_0"],
    "neon_fhm": ["F16"],
    "neon_bf16": ["Bf16", "Int8", "Q8_0", "Q4_0"],
}
MULTIPLY_ADDS = 64 * 384 * 384


def instructions(qemu, program, isa, format, times):
    """The instructions that the program executes."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "log")
        options = ["-d", "in_asm,exec,nochain", "-D", log, "-E", f"CANDLE_ATTENTION_ISA={isa}"]
        command = [*qemu, *options, program, format, str(times)]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="", file=sys.stderr)
        sizes, runs, block = {}, collections.Counter(), None
        with open(log, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("IN:"):
                    block = None
                elif line.startswith("Trace "):
                    runs[int(re.search(r"\[[0-9a-f]+/([0-9a-f]+)/", line)[1], 16)] += 1
                elif at := re.match(r"0x([0-9a-f]+):", line):
                    block = int(at[1], 16) if block is None else block
                    sizes.setdefault(block, set()).add(int(at[1], 16))
    return sum(len(sizes[block]) * count for block, count in runs.items())


def main():
    qemu, program = sys.argv[1].split(), sys.argv[2]
    print("| Instruction set | Weights | Instructions | Multiply-adds per instruction |")
    print("|---|---|--:|--:|")
    for isa, formats in FORMATS.items():
        for format in formats:
            once, twice = (instructions(qemu, program, isa, format, times) for times in (1, 2))
            count = twice - once
            print(f"| `{isa}` | {format} | {count:,} | {MULTIPLY_ADDS / count:.1f} |")


main()
