#!/usr/bin/env python3
"""Prints the bytes of each file of a folder: as it is, after gzip and, with the package brotli, after brotli."""

import gzip
import pathlib
import sys

try:
    import brotli
except ImportError:
    brotli = None

folder = pathlib.Path(sys.argv[1])
sums = [0, 0, 0]
print(f"{'bytes':>10} {'gzip':>10} {'brotli' if brotli else '':>10}  {folder}")
for path in sorted(path for path in folder.rglob("*") if path.is_file()):
    content = path.read_bytes()
    sizes = [len(content), len(gzip.compress(content, 9)), len(brotli.compress(content)) if brotli else 0]
    sums = [total + size for total, size in zip(sums, sizes)]
    print(*(f"{size or '':>10}" for size in sizes), f" {path.relative_to(folder)}")
print(*(f"{total or '':>10}" for total in sums), " all files")
