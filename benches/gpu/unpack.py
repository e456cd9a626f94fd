#!/usr/bin/env python3
"""Unpacks the programs that `.ci/devices cuda-build` has packed, and finds the libraries that they load.

Run: eval "$(benches/gpu/unpack.py ARCHIVE FOLDER)" unpacks into FOLDER and sets LD_LIBRARY_PATH for programs such as
     FOLDER/programs/devices. `run.py` beside this file does both by itself.

The libraries are those of a CUDA 13 installation, of PyTorch's wheels, or wherever the system's loader looks.
"""

import lzma
import os
import shlex
import sys
import sysconfig
import tarfile
from pathlib import Path

# With what each is for.
LIBRARIES = {
    "libcuda.so.1": "the driver",
    "libnvrtc.so.13": "NVRTC 13",
    "libcublas.so.13": "cuBLAS 13",
    "libcublasLt.so.13": "cuBLAS 13",
    "libcurand.so.10": "cuRAND 10",
    "libcudart.so.13": "the CUDA 13 runtime",
}
SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/lib/x86_64-linux-gnu")


def folders():
    """Where libraries may lie, the most specific first."""
    found = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        if variable in os.environ:
            found += [Path(os.environ[variable], "lib64"), Path(os.environ[variable], "lib")]
    found += sorted(Path("/usr/local").glob("cuda*/lib64"), reverse=True)
    # Environments of Python: this one's, and the one of the python3 that is first on the path.
    sites = {sysconfig.get_path("purelib"), *(entry for entry in sys.path if entry.endswith("-packages"))}
    for site in sorted(sites):
        found += sorted(Path(site).glob("nvidia/*/lib"))
    found += sorted(Path("/usr/local/nvidia").glob("lib*"))
    return [folder for folder in [*found, *map(Path, SYSTEM)] if folder.is_dir()]


def library_path(wanted=LIBRARIES):
    """The LD_LIBRARY_PATH with which the programs start; an error names each library that is missing."""
    places = folders()
    used, missing = [], []
    for name in wanted:
        place = next((folder for folder in places if (folder / name).exists()), None)
        if place is None:
            missing.append(f"{name} ({LIBRARIES[name]})")
        elif place not in used and str(place) not in SYSTEM:
            used.append(place)
    if missing:
        searched = ", ".join(map(str, places))
        raise FileNotFoundError(f"missing libraries: {', '.join(missing)}; expected in one of: {searched}")
    kept = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return ":".join(dict.fromkeys([*map(str, used), *kept]))


def unpack(archive, folder):
    """Unpacks into FOLDER/programs and returns that."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:xz") as packed:
            packed.extractall(folder, filter="data")
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise OSError(f"{archive} is no archive of .ci/devices cuda-build: {error}")
    return folder / "programs"


def main():
    if len(sys.argv) != 3:
        print("expected ARCHIVE FOLDER", file=sys.stderr)
        return 2
    try:
        programs = unpack(Path(sys.argv[1]), Path(sys.argv[2]))
        print(f"export LD_LIBRARY_PATH={shlex.quote(library_path())}")
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"unpacked into {programs}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
