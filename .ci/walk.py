#!/usr/bin/env python3
"""Lists the files whose code a plain call of the layer runs, and holds them against what is allowed.

A plain call is a warm `forward` in f32 with fixed weights, without mask or positions, on one thread. Valgrind's callgrind
counts the lines that it executes, inlined functions included. Valgrind has no AVX-512, so the instruction set is AVX2.

    walk.py               fails if more files run than allowed, or if docs/architecture.md walks another way
    walk.py --functions   lists the functions of each file, too
"""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The most files of a folder that a plain call passes.
MOST = {"src": 20, "crates/kernels/src": 15}
PROGRAM = """
use candle_attention::{AttentionConfig, MultiHeadAttention};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, VarMap};

#[inline(never)]
fn warm_forward(layer: &MultiHeadAttention, xs: &Tensor) -> Tensor {
    layer.forward(xs).unwrap()
}

fn main() {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let layer = MultiHeadAttention::new(&AttentionConfig::new(64, 4), vb).unwrap().frozen().unwrap();
    let xs = Tensor::randn(0f32, 1., (2, 5, 64), &Device::Cpu).unwrap();
    for _ in 0..2 {
        layer.forward(&xs).unwrap();
    }
    println!("{:?}", warm_forward(&layer, &xs).dims());
}
"""
MANIFEST = """
[package]
name = "walk"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
candle-attention = { path = "ROOT", default-features = false }
candle-core = { version = "0.11.1", default-features = false }
candle-nn = { version = "0.11.1", default-features = false }

[profile.release.package.candle-attention]
debug = "line-tables-only"

[profile.release.package.candle-attention-kernels]
debug = "line-tables-only"

[profile.release.package.walk]
debug = "line-tables-only"
"""


def build(folder):
    """Builds the program as a package that depends on the layer alone."""
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "src/main.rs").write_text(PROGRAM, encoding="utf-8")
    (folder / "Cargo.toml").write_text(MANIFEST.replace("ROOT", str(ROOT)), encoding="utf-8")
    shutil.copy(ROOT / "Cargo.lock", folder / "Cargo.lock")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    command = ["cargo", "build", "--release", "--manifest-path", str(folder / "Cargo.toml"), "--target-dir", str(target)]
    subprocess.run(command, check=True)
    return target / "release/walk"


def functions_by_file(program, folder):
    """The functions that the call runs, by the file of the lines that ran."""
    output = folder / "callgrind.out"
    environment = dict(os.environ, RAYON_NUM_THREADS="1")
    command = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={output}", "--compress-strings=no",
               "--toggle-collect=walk::warm_forward*", "--compress-pos=no", "--dump-line=yes", str(program)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    found, file, name = collections.defaultdict(set), "", ""
    for line in output.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key == "fn":
            name = value
        if key in ("fl", "fi", "fe"):
            file = value
        # Line 0 is code of the compiler's own.
        elif re.match(r"[1-9]", line) and str(ROOT) in file:
            found[str(pathlib.Path(file).resolve().relative_to(ROOT))].add(name)
    return found


def named_in_the_walk():
    """The files that docs/architecture.md names in the walk of a plain call."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = text.split("## One call of `forward`")[1].split("\n## ")[0]
    steps = section[section.index("\n1. ") :]
    return set(re.findall(r"`((?:src|crates/kernels/src)/[\w/]+\.rs)`", steps))


def main():
    if shutil.which("valgrind") is None:
        print("not run: there is no valgrind (Debian: apt-get install valgrind)")
        return 0
    folder = ROOT / "target/walk"
    found = functions_by_file(build(folder), folder)
    too_many = False
    for room, most in MOST.items():
        files = sorted(file for file in found if file.startswith(room + "/"))
        print(f"{room}: {len(files)} files, at most {most}")
        too_many |= len(files) > most or not files
        for file in files:
            print(f"    {file}")
            if "--functions" in sys.argv:
                for name in sorted(found[file]):
                    print(f"        {name}")
    passed = {file for file in found if file.startswith(tuple(f"{room}/" for room in MOST))}
    named = named_in_the_walk()
    for what, files in [("named and not passed", named - passed), ("passed and not named", passed - named)]:
        if files:
            print(f"docs/architecture.md: {what}: {', '.join(sorted(files))}")
    return int(too_many or named != passed)


if __name__ == "__main__":
    sys.exit(main())
