#!/usr/bin/env python3
"""Compiles one kernel of a Metal source for the emulator: compile.py SOURCE NAME LIBRARY.

Exits with 3 if the source has no such kernel. Without a source and a name it compiles the emulator itself. The compiler is $METAL_EMULATOR_CLANG, or `clang++-19`.
"""

import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
COMPILER = os.environ.get("METAL_EMULATOR_CLANG", "clang++-19").split()
# Half types round after every operation.
FLAGS = ["-std=c++20", "-O2", "-march=x86-64-v3", "-fPIC", "-w", "-fno-strict-aliasing", "-fno-threadsafe-statics",
         "-fno-delete-null-pointer-checks", "-fexcess-precision=16"]
POSITIONS = ["thread_position_in_grid", "threadgroup_position_in_grid", "thread_position_in_threadgroup",
             "threads_per_threadgroup", "threadgroups_per_grid", "thread_index_in_threadgroup",
             "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup"]
KERNEL = r"(?:\[\[\s*kernel\b[^\]]*\]\]|\bkernel\b)"


def expand(path):
    """The source with its macros expanded, without headers."""
    source = re.sub(r"#\s*include\s*<metal_\w+>", "", open(path, encoding="utf-8").read())
    macros = ["-D__METAL_VERSION__=320", "-D__HAVE_BFLOAT__=1"]
    command = [*COMPILER, "-E", "-P", "-w", "-x", "c++", *macros, "-"]
    return subprocess.run(command, input=source, text=True, stdout=subprocess.PIPE, check=True).stdout


def parenthesized(text, start):
    """The end of the parenthesis or brace that opens at `start`."""
    opening, depth = text[start], 0
    closing = {"(": ")", "{": "}"}[opening]
    for i in range(start, len(text)):
        depth += (text[i] == opening) - (text[i] == closing)
        if depth == 0:
            return i
    raise ValueError(f"an open {opening}")


def parameters(text):
    """The parameters of a function, split at its commas."""
    depth, parts = 0, [""]
    for c in text:
        depth += {"(": 1, "[": 1, "<": 1, ")": -1, "]": -1, ">": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def arguments(text):
    """Where the arguments of a kernel come from."""
    found, next_buffer = [], 0
    for parameter in parameters(text):
        attributes = " ".join(re.findall(r"\[\[(.*?)\]\]", parameter, re.S))
        positions = [name for name in POSITIONS if name in attributes]
        numbered = re.search(r"\b(buffer|threadgroup)\s*\((\d+)\)", attributes)
        if positions:
            found.append((positions[0], 0))
        elif numbered and numbered[1] == "threadgroup":
            found.append(("threadgroup_memory", int(numbered[2])))
        else:
            next_buffer = int(numbered[2]) if numbered else next_buffer
            found.append(("buffer", next_buffer))
            next_buffer += 1
    return found


def kernels(text):
    """Host names to C++ functions, functions to their arguments, and the text without attributes."""
    functions, sources = {}, {}

    def instantiation(match):
        name = "".join(re.findall(r'"([^"]*)"', match[1]))
        declared = match[2]
        if declared.startswith("decltype"):
            function = declared[parenthesized(declared, declared.index("(")) + 1:]
        else:
            function = re.split(r"(?<=>)\s*\(", declared.split(None, 1)[1])[0]
        functions[name] = function.strip()
        return ""

    text = re.sub(r"\btemplate\s*\[\[\s*host_name\s*\(([^)]*)\)\s*\]\]\s*" + KERNEL + r"?\s*([^;]*);", instantiation, text)
    for match in re.finditer(r"(?:\[\[\s*host_name\s*\(([^)]*)\)\s*\]\]\s*)?" + KERNEL + r"\s+void\s+(\w+)\s*\(", text):
        name = match[2]
        sources[name] = arguments(text[match.end():parenthesized(text, match.end() - 1)])
        functions.setdefault(name, name)
        if match[1]:
            functions[match[1].strip().strip('"')] = name
    return functions, sources, text


def without_other_kernels(text, name):
    """Leaves out the kernels that are no templates, but for this one: each would instantiate what it calls."""
    kept, end = [], 0
    for match in re.finditer(KERNEL + r"\s+void\s+(\w+)\s*\(", text):
        if match[1] != name and not text[:match.start()].rstrip().endswith(">"):
            kept.append(text[end:match.start()])
            end = parenthesized(text, text.index("{", parenthesized(text, match.end() - 1))) + 1
    return "".join(kept) + text[end:]


def without_repeated_functions(text):
    """Leaves out functions whose header repeats another but for address spaces."""
    seen, kept, end = set(), [], 0
    for match in re.finditer(r"^(?:template\s*<[^{};()]*>\s*)?METAL_FUNC\s+[^{};]*\)\s*\{", text, re.M):
        header = re.sub(r"\b(?:device|constant|thread|threadgroup)\b", "", match[0])
        header = " ".join(header.split())
        if header in seen:
            kept.append(text[end:match.start()])
            end = text.index("\n}", match.end()) + 2
        seen.add(header)
    return "".join(kept) + text[end:]


def translate(text):
    """Metal as C++: returns the text and what sets its function constants."""
    constants = []

    def function_constant(match):
        constants.append(f"{match[2]} = gpu::constant_value<{match[1]}>(dispatch, {match[3]});")
        return f"static {match[1]} {match[2]};"

    text = re.sub(r"\bconstant\s+(\w+)\s+(\w+)\s*\[\[\s*function_constant\((\d+)\)\s*\]\]\s*;", function_constant, text)

    def derived(match):
        if not any(re.search(rf"\b{constant.split()[0]}\b", match[3]) for constant in constants):
            return match[0]
        constants.append(f"{match[2]} = {match[3]};")
        return f"static {match[1]} {match[2]};"

    text = re.sub(r"^constant\s+(\w+)\s+(\w+)\s*=\s*([^;]*);", derived, text, flags=re.M)
    text = re.sub(r"\[\[.*?\]\]", " ", text, flags=re.S)
    text = re.sub(r"(\btemplate\s*<[^{};()]*>\s*)?\bkernel\s+void\b", lambda match: (match[1] or "static ") + "void", text)
    text = re.sub(r"^constant\s", "static constant ", text, flags=re.M)
    # Address spaces are empty macros: of functions and specializations that differ in them only, the first is left.
    text = re.sub(r"template <typename T>\s*struct pointer_element<(?:device|constant|threadgroup) T\*> \{.*?\};", "", text, flags=re.S)
    text = without_repeated_functions(text)
    # Metal is C++14, where a structure with a defaulted constructor is an aggregate.
    text = re.sub(r"^\s*(?:constexpr\s+)?\w+(?:<\w+>)?\(\)\s*(?:thread|threadgroup|device|constant)?\s*=\s*default;", "", text, flags=re.M)
    # Arrays and variables in threadgroup memory.
    text = re.sub(r"\bthreadgroup\s+((?:typename\s+)?[\w:]+(?:<[^;>]*>)?)\s+(\w+)\s*((?:\[[^;]*\])?)\s*;", r"THREADGROUP_ARRAY \1 \2\3;", text)
    # All literals are of type float or half.
    number = r"(?<![\w.])((?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)"
    text = re.sub(number + r"h\b", r"half(\1f)", text)
    text = re.sub(number + r"(?![\w.])", r"\1f", text)
    text = re.sub(r"\bstatic_cast\s*<", "convert<", text)
    return text, constants


def program(path, name):
    """The C++ program of a kernel; None if there is none."""
    functions, sources, text = kernels(expand(path))
    if name not in functions:
        return None
    function = functions[name]
    text, constants = translate(without_other_kernels(text, function))
    from_ = ", ".join(f"{{gpu::Source::{source}, {index}}}" for source, index in sources[re.match(r"\w+", function)[0]])
    return f"""#include "{HERE}/metal.hpp"
{text}
static void set_constants(const gpu::Dispatch& dispatch) {{ {" ".join(constants)} }}
static const gpu::Argument from[] = {{{from_}}};
static void thread_of_kernel(const gpu::Dispatch& dispatch) {{
    using Own = gpu::Call<decltype(&{function})>;
    Own::run(&{function}, dispatch, from, Own::indices);
}}
extern "C" {{
THREADGROUP_ARRAY __attribute__((used)) char own_shared[16];
extern char __start_shared[] __attribute__((visibility("hidden"))), __stop_shared[] __attribute__((visibility("hidden")));
const char* emulated_kernel(const gpu::Dispatch* dispatch) {{
    set_constants(*dispatch);
    return gpu::run({{thread_of_kernel, __start_shared, __stop_shared}}, *dispatch);
}}
}}
"""


def main():
    *kernel, library = sys.argv[1:]
    made = f"{library}.{os.getpid()}"
    source = f"{HERE}/runtime.cpp"
    if kernel:
        text = program(*kernel)
        if text is None:
            return 3
        source = f"{made}.cpp"
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
    subprocess.run([*COMPILER, *FLAGS, "-shared", "-o", made, source], check=True)
    if kernel:
        os.remove(source)
    os.rename(made, library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
