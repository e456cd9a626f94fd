"""`app-store/scan.py` finds each thing that it looks for."""

import importlib.util
import pathlib
import unittest

PATH = pathlib.Path(__file__).resolve().parent.parent / "app-store" / "scan.py"
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
            "    1000: ff ff ff ff  \t<unknown>": "not one of the architecture",
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


if __name__ == "__main__":
    unittest.main()
