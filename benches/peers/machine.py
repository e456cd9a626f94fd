"""The processor: its description, and the name of its table."""

import os
import platform
import re

SETS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")


def facts():
    """The first processor of /proc/cpuinfo, key → value; nothing where there is none."""
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read().split("\n\n")[0]
    except FileNotFoundError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def sets(facts):
    flags = facts.get("flags", "").split()
    return [name for name in SETS if name in flags]


def model(facts):
    """A cloud's processor often has no number in its name, so family and model follow."""
    name = facts.get("model name", platform.machine())
    numbers = ", ".join(f"{key} {facts[field]}" for key, field in (("family", "cpu family"), ("model", "model")) if field in facts)
    return f"{name} ({numbers})" if numbers else name


def description(held_to=None):
    seen = facts()
    instructions = f"held to {held_to}" if held_to else ", ".join(sets(seen))
    return f"{model(seen)}, {os.cpu_count()} cores, {instructions}"


def slug(held_to=None):
    """The name of the processor's table, or of that with all sides held to an instruction set."""
    seen = facts()
    plain = re.sub(r"\((r|tm)\)|\b(processor|cpu)\b|@.*?(?= \()", "", model(seen).lower())
    last = [name for name in sets(seen) if name != "avx2"] or sets(seen)
    words = re.findall(r"[a-z0-9]+", plain)
    telling = [held_to] if held_to else [name for name in last if name != "avx512f"] or last
    return "-".join([*words, *telling])
