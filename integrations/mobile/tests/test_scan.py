"""`app-store/scan.py` finds each thing that it looks for.

The tests of the program need LLVM's tools, on the path or in the folder LLVM_BIN, and are skipped without them.
"""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
PATH = PACKAGE / "app-store" / "scan.py"
MANIFEST = PACKAGE / "apple" / "Sources" / "CandleAttention" / "PrivacyInfo.xcprivacy"
ASSEMBLER = shutil.which("llvm-mc", path=os.environ.get("LLVM_BIN", os.environ["PATH"]))
spec = importlib.util.spec_from_file_location("scan", PATH)
scan = importlib.util.module_from_spec(spec)
spec.loader.exec_module(scan)


class Imports(unittest.TestCase):
    def test_refused(self):
        for symbol in [
            *("_mach_vm_remap", "_ptrace", "_CSSymbolGetName", "_fork", "_execvp", "_posix_spawnp", "_dlopen", "_system"),
            *("_ubrk_next", "_syscall", "_CGContextSetFontSmoothingStyle", "_dyld_dynamic_interpose"),
        ]:
            self.assertTrue(list(scan.refused_imports([symbol])), symbol)
        for symbol in ["_malloc", "_dlsym", "__tlv_bootstrap", "_sysctlbyname", "_exp", "_CStringFromData", "_stat"]:
            self.assertEqual(list(scan.refused_imports([symbol])), [], symbol)

    def test_reasons(self):
        timestamps = {"NSPrivacyAccessedAPITypes": [{"NSPrivacyAccessedAPIType": "NSPrivacyAccessedAPICategoryFileTimestamp"}]}
        nothing = {"NSPrivacyAccessedAPITypes": []}
        self.assertEqual(list(scan.missing_reasons(["_fstat", "_exp"], timestamps)), [])
        self.assertEqual(list(scan.missing_reasons(["_exp"], nothing)), [])
        self.assertIn("does not state", *scan.missing_reasons(["_stat$INODE64"], nothing))
        self.assertIn("which no import needs", *scan.missing_reasons(["_exp"], timestamps))
        self.assertIn("SystemBootTime, which imports need", *scan.missing_reasons(["_mach_absolute_time"], nothing))


class Instructions(unittest.TestCase):
    def found(self, line):
        return list(scan.refused_instructions([line]))

    def test_refused(self):
        for line, why in {
            "    1000: 20 12 20 00  \t<unknown>": "matrix unit",
            "    1000: 00201220     \t<unknown>": "matrix unit",
            "    1000: 00 00 38 d5  \tmrs\tx0, MIDR_EL1": "kernel",
            "    1000: 00 f0 3b d5  \tmrs\tx0, S3_3_C15_C0_0": "kernel",
            "    1000: 02 00 00 d4  \thvc\t#0": "kernel",
            "    1000: ff ff ff ff  \t<unknown>": "neither of Armv8.0 nor of FEAT_FP16",
        }.items():
            self.assertIn(why, *self.found(line))
        self.assertEqual(list(scan.refused_instructions([])), ["no instructions were found"])

    def test_accepted(self):
        for line in [
            "    1000: c0 03 5f d6  \tret",
            "    1000: 60 d0 3b d5  \tmrs\tx0, TPIDRRO_EL0",
            "    1000: 00 44 3b d5  \tmrs\tx0, FPCR",
        ]:
            self.assertEqual(self.found(line), [])


@unittest.skipUnless(ASSEMBLER, "llvm-mc is missing")
class Program(unittest.TestCase):
    """The scan of a file of which each instruction is known."""

    def scanned(self, *instructions, manifest=MANIFEST):
        """The exit status and the messages for a function of these instructions."""
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "library.o"
            source = "\n".join(["_f:", *instructions, "ret", ""])
            options = ["--triple=arm64-apple-ios", "--mattr=+v8.6a,+fullfp16", "--filetype=obj", "-o", str(library)]
            subprocess.run([ASSEMBLER, *options], input=source, check=True, text=True)
            done = subprocess.run([sys.executable, str(PATH), str(library), str(manifest)], capture_output=True, text=True)
        return done.returncode, done.stderr

    def test_accepted(self):
        self.assertEqual(self.scanned("bl _stat", "fmul v0.4s, v1.4s, v2.4s", "fmul v0.8h, v1.8h, v2.8h"), (0, ""))

    def test_refused(self):
        for instruction, message in {
            "bl _fork": "import _fork: starts a program",
            "bl _mach_absolute_time": "the privacy manifest does not state NSPrivacyAccessedAPICategorySystemBootTime",
            ".long 0x00201220": "instruction 00201220 at 4: Apple's undocumented matrix unit",
            "mrs x0, MIDR_EL1": "at 4: for the kernel or for some chips",
            "sdot v0.4s, v1.16b, v2.16b": "instruction 4e829420 at 4: neither of Armv8.0 nor of FEAT_FP16",
        }.items():
            status, messages = self.scanned("bl _stat", instruction)
            self.assertEqual((status, messages.count("\n")), (1, 1), messages)
            self.assertIn(message, messages)

    def test_nothing_to_scan(self):
        status, messages = self.scanned("nop")
        self.assertEqual(status, 1)
        self.assertIn("has no imports, expected a linked library", messages)

    def test_no_manifest(self):
        status, messages = self.scanned("bl _stat", manifest=PACKAGE / "README.md")
        self.assertEqual((status, messages), (1, f"{PACKAGE}/README.md: Invalid file, expected a privacy manifest\n"))


if __name__ == "__main__":
    unittest.main()
