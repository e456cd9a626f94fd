#!/usr/bin/env python3
"""Looks for what the App Store refuses in a linked library for iOS. README.md in this folder explains the lists.

    app-store/scan.py LIBRARY PRIVACY_MANIFEST

Requires llvm-nm and llvm-objdump on the path, or their folder in LLVM_BIN.
"""

import fnmatch
import os
import plistlib
import re
import subprocess
import sys
from xml.parsers.expat import ExpatError

# Imports that were refused, with where; `*` stands for any characters.
REFUSED = {
    "_mach_vm_*": "non-public, deltachat-ios#123",
    "_dyld_dynamic_interpose": "non-public, SwiftTrace#45",
    "_CS[A-Z]*": "the private framework CoreSymbolication, backtrace-rs#92",
    "_CGContextSetFontSmoothingStyle": "non-public, core-foundation-rs#707",
    "_ubrk_*": "the private ICU of iOS, icu4c-iosx#4",
    "_unorm_*": "the private ICU of iOS, icu4c-iosx#4",
    "_ptrace": "non-public, flutter#40932",
    "_sandbox_*": "non-public on iOS",
    "_csops*": "non-public",
    "_IOHID*": "a private framework of iOS",
    "_MobileInstallation*": "a private framework",
    "_SBS*": "the private framework SpringBoardServices",
    "_syscall": "deprecated: system calls are not an interface",
    "___syscall*": "system calls are not an interface",
    "_system": "starts a program, unavailable on iOS",
    "_popen": "starts a program",
    "_dlopen": "loads code, or private frameworks",
    "_task_for_pid": "access to other processes",
    "_vm_protect": "makes memory executable",
    "_mach_vm_protect": "makes memory executable",
    "_pthread_jit_write_protect_np": "makes memory executable",
    "_sys_icache_invalidate": "makes memory executable",
}

# Imports that start programs. The standard library has them; this library never does.
PROCESSES = ["_fork", "_vfork", "_exec*", "_posix_spawn*"]

# Imports whose reason a privacy manifest must state.
REASONS = {
    "NSPrivacyAccessedAPICategoryFileTimestamp": [
        "_stat", "_stat$*", "_fstat", "_fstat$*", "_lstat", "_lstat$*", "_fstatat", "_fstatat$*",
        "_getattrlist", "_fgetattrlist", "_getattrlistat", "_getattrlistbulk",
    ],
    "NSPrivacyAccessedAPICategorySystemBootTime": ["_mach_absolute_time", "_mach_continuous_time"],
    "NSPrivacyAccessedAPICategoryDiskSpace": ["_statfs*", "_fstatfs*", "_statvfs", "_fstatvfs"],
    "NSPrivacyAccessedAPICategoryUserDefaults": ["_OBJC_CLASS_$_NSUserDefaults"],
}

# What instructions may use beyond Armv8.0: numbers of 16 bits (FEAT_FP16). The disassembler knows no others.
EXTENSIONS = "+fullfp16"

# Instructions for the kernel, and registers without a name, which only some chips have.
PRIVILEGED = re.compile(r"^(hvc|smc|eret|drps|tlbi|at|sys|sysl)\b|^(msr|mrs)\b.*\b(\w+_EL[123]|S\d_\d_C\d+_C\d+_\d)\b", re.I)


def is_apple_amx(word):
    """Whether an instruction is one of Apple's undocumented matrix unit: 0x00201000 to 0x002013ff."""
    return word & 0xFFFFFC00 == 0x00201000


def tool(name, *arguments):
    path = os.path.join(os.environ.get("LLVM_BIN", ""), name)
    try:
        return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        sys.exit(f"{path} is missing, expected LLVM's tools on the path or in the folder LLVM_BIN")
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr.strip() or str(error))


def read_manifest(path):
    try:
        with open(path, "rb") as file:
            manifest = plistlib.load(file)
    except OSError as error:
        sys.exit(str(error))
    except (ValueError, ExpatError) as error:
        sys.exit(f"{path}: {error}, expected a privacy manifest")
    if not isinstance(manifest, dict) or "NSPrivacyAccessedAPITypes" not in manifest:
        sys.exit(f"{path} has no NSPrivacyAccessedAPITypes, expected a privacy manifest")
    return manifest


def matches(symbol, patterns):
    return any(fnmatch.fnmatchcase(symbol, pattern) for pattern in patterns)


def refused_imports(imports):
    for symbol in imports:
        for pattern, why in REFUSED.items():
            if matches(symbol, [pattern]):
                yield f"import {symbol}: {why}"
        if matches(symbol, PROCESSES):
            yield f"import {symbol}: starts a program"


def missing_reasons(imports, manifest):
    stated = {entry["NSPrivacyAccessedAPIType"] for entry in manifest["NSPrivacyAccessedAPITypes"]}
    needed = {category for category, patterns in REASONS.items() if any(matches(i, patterns) for i in imports)}
    for category in sorted(needed - stated):
        yield f"the privacy manifest does not state {category}, which imports need"
    for category in sorted(stated - needed):
        yield f"the privacy manifest states {category}, which no import needs"


def instructions(disassembly):
    """Address, word and text of each instruction."""
    for line in disassembly:
        if found := re.match(r"\s*([0-9a-f]+): ([0-9a-f]{2} [0-9a-f]{2} [0-9a-f]{2} [0-9a-f]{2}|[0-9a-f]{8})\s+(.*)", line):
            address, word, text = found.groups()
            in_memory = bytes.fromhex(word)
            yield address, int.from_bytes(in_memory, "little" if " " in word else "big"), text.replace("\t", " ")


def refused_instructions(disassembly):
    count = 0
    for address, word, text in instructions(disassembly):
        count += 1
        if is_apple_amx(word):
            yield f"instruction {word:08x} at {address}: Apple's undocumented matrix unit"
        elif PRIVILEGED.search(text):
            yield f"instruction `{text}` at {address}: for the kernel or for some chips"
        elif "<unknown>" in text and word != 0:
            yield f"instruction {word:08x} at {address}: neither of Armv8.0 nor of FEAT_FP16"
    if count == 0:
        yield "no instructions were found"


def main():
    if len(sys.argv) != 3:
        sys.exit("expected LIBRARY PRIVACY_MANIFEST")
    library, path = sys.argv[1:]
    manifest = read_manifest(path)
    imports = sorted(set(tool("llvm-nm", "--undefined-only", "--just-symbol-name", library).split()))
    if not imports:
        sys.exit(f"{library} has no imports, expected a linked library")
    print(f"{len(imports)} imports: {' '.join(imports)}")
    disassembly = tool("llvm-objdump", "--disassemble", f"--mattr={EXTENSIONS}", library).splitlines()
    problems = [*refused_imports(imports), *missing_reasons(imports, manifest), *refused_instructions(disassembly)]
    for problem in problems:
        print(problem, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
