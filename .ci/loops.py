"""Finds loops of products that keep a part of their sums in memory.

    loops.py OBJDUMP LIBRARY

LIBRARY is the compiled package of kernels. A register tile takes nearly all registers, and where the compiler does not
find room for it, it stores a sum to the stack and loads it again in each step. Then each step waits for a store, and the
product is half as fast, with the same results. So this fails for an innermost loop with eight or more vector
multiply-adds that loads or stores a vector by the stack pointer.

Loops of activations, of the softmax and of roundings are left out, which are recognized by comparisons, divisions and
subtractions: their many constants may be read from anywhere.
"""

import re
import subprocess
import sys

# The fewest multiply-adds of a loop that is examined.
FEWEST = 8
# The fewest loops that a library of kernels has. If there are less, the disassembly was not understood.
FEWEST_LOOPS = 20

FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\s+(.*)$")
JUMP = re.compile(r"^(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s.*?(?:0x)?([0-9a-f]+) <")
FUSED = re.compile(
    r"(?:\{\w+\} )?vfn?m(?:add|sub)\d*ps|vdpbf16ps|(?:\{\w+\} )?vpdpbusd|vpmaddwd"
    r"|fmla|fmlal2?|bfmmla|bfmlal[bt]|bfdot|[us]?dot|usdot|[us]?mmla|smlal2?|sadalp"
)
MULTIPLICATION = re.compile(r"v?mulps")
ADDITION = re.compile(r"v?addps")
VECTOR = re.compile(r"%[xyz]mm\d|\b[qv]\d+\b")
ELEMENTWISE = re.compile(r"v?(?:max|min|div|cmp\w*|round|rndscale|sub)ps|f(?:max|min|cm\w+|rintn|div|sub)")
RETURN = re.compile(r"ret\b")
STACK = re.compile(r"\(%rsp[,)]|\[sp\b")


def functions(lines):
    """The name of each function, and its instructions: address and text."""
    name, instructions = None, []
    for line in lines:
        if found := FUNCTION.match(line):
            if instructions:
                yield name, instructions
            name, instructions = found[1], []
        elif found := INSTRUCTION.match(line):
            instructions.append((int(found[1], 16), found[2].strip()))
    if instructions:
        yield name, instructions


def innermost_loops(instructions):
    """The instructions of each loop without a loop in it: from the target of a jump backwards to the jump."""
    places = {address: place for place, (address, _) in enumerate(instructions)}
    loops = set()
    for place, (_, text) in enumerate(instructions):
        found = JUMP.match(text)
        target = places.get(int(found[1], 16)) if found else None
        # Back from after the end of the function: a branch that was moved there, and no loop.
        has_end = target is not None and any(RETURN.match(text) for _, text in instructions[target:place])
        if target is not None and target <= place and not has_end:
            loops.add((target, place))
    for first, last in sorted(loops):
        if not any((a, b) != (first, last) and first <= a and b <= last for a, b in loops):
            yield instructions[first : last + 1]


def multiply_adds(loop):
    """How many vector multiply-adds a loop has: fused, or a multiplication and an addition."""
    texts = [text for _, text in loop if VECTOR.search(text)]
    fused, products, sums = (sum(bool(kind.match(text)) for text in texts) for kind in (FUSED, MULTIPLICATION, ADDITION))
    return fused + min(products, sums)


def examine(lines):
    """How many loops of products there are, and those that use the stack: function, loop, multiply-adds, accesses."""
    count, spilled = 0, []
    for name, instructions in functions(lines):
        for loop in innermost_loops(instructions):
            products = multiply_adds(loop)
            if products < FEWEST or any(ELEMENTWISE.match(text) for _, text in loop):
                continue
            count += 1
            accesses = [text for _, text in loop if STACK.search(text) and VECTOR.search(text)]
            if accesses:
                spilled.append((name, loop, products, accesses))
    return count, spilled


def main(objdump, library):
    command = [objdump, "--disassemble", "--demangle", "--no-show-raw-insn", library]
    printed = subprocess.run(command, capture_output=True, text=True)
    if printed.returncode != 0:
        sys.exit(printed.stderr.strip())
    count, spilled = examine(printed.stdout.splitlines())
    for name, loop, products, accesses in spilled:
        print(f"{name}: the loop at {loop[0][0]:x} to {loop[-1][0]:x}, with {products} multiply-adds, uses the stack:")
        print("".join(f"    {access}\n" for access in accesses), end="")
    print(f"{library.rsplit('/', 1)[-1]}: {count} loops of products, {len(spilled)} with vectors on the stack")
    if count < FEWEST_LOOPS:
        sys.exit(f"expected at least {FEWEST_LOOPS} loops of products in {library}")
    sys.exit(1 if spilled else 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        sys.exit(2)
    main(*sys.argv[1:])
