"""`apple/build` and `android/build-libraries` with stand-ins for the tools that this machine does not have: which commands they run, in
which environment, and what they leave behind when one fails."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent
LIBRARY = "libcandle_attention_mobile"

# Each stand-in writes its arguments to a log; this is what else it does.
CARGO = r"""
while [ "$1" != --target ]; do shift; done; target=$2
env | grep -E '^(IPHONEOS|MACOSX|CARGO_TARGET_.*_(LINKER|RUSTFLAGS))' | sort >>"$LOG" || true
made=${CARGO_TARGET_DIR:-target}/$target/release
mkdir -p "$made"; touch "$made/LIBRARY.a" "$made/LIBRARY.so"
""".replace("LIBRARY", LIBRARY)
XCODEBUILD = r"""while [ "$1" != -output ]; do shift; done; mkdir "$2"; touch "$2/Info.plist"; [ -z "${FAIL:-}" ]"""
LIPO = r"""cat "$2" "$3" >"$5" """
READELF = r"""echo "  LOAD 0x000000 0x0000000000000000 0x0000000000000000 0x1 0x1 R   ${ALIGNMENT:-0x4000}" """


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tools = self.folder / "tools"
        self.tools.mkdir()
        for file in ("apple/build", "apple/Package.swift", "android/build-libraries"):
            copy = self.folder / "package" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACKAGE / file, copy)
        self.package = self.folder / "package"
        self.tool(self.package / "generate")
        (self.package / "android/src/main").mkdir(parents=True)
        self.ndk = self.folder / "ndk"
        self.tool(self.tools / "cargo", CARGO)

    def tool(self, path, does=""):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/usr/bin/env bash\nset -e\necho "{path.name} $*" >>"$LOG"\n{does}\n')
        path.chmod(0o755)

    def apple_tools(self):
        self.tool(self.tools / "rustup")
        self.tool(self.tools / "xcodebuild", XCODEBUILD)
        self.tool(self.tools / "lipo", LIPO)

    def android_tools(self):
        self.tool(self.tools / "rustup")
        tools = self.ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin"
        self.tool(tools / "llvm-readelf", READELF)
        for clang in ("aarch64-linux-android24", "armv7a-linux-androideabi24", "x86_64-linux-android24"):
            self.tool(tools / f"{clang}-clang")

    def run_script(self, script, *arguments, **variables):
        """Its exit status, its messages and the log of the tools."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)
        log.touch()
        kept = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ}
        path = f"{self.tools}:/usr/bin:/bin"
        environment = {**kept, "PATH": path, "LOG": str(log), **variables}
        command = [str(self.package / script), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr, log.read_text().splitlines()

    def test_apple(self):
        self.apple_tools()
        status, messages, log = self.run_script("apple/build")
        self.assertEqual((status, messages), (0, ""))
        self.assertTrue((self.package / "apple/CandleAttentionFFI.xcframework/Info.plist").exists())
        build = "cargo rustc --release --locked --lib --crate-type staticlib --target"
        phone, mac = "aarch64-apple-ios", "aarch64-apple-darwin"
        targets = [phone, "aarch64-apple-ios-sim", "x86_64-apple-ios", mac, "x86_64-apple-darwin"]
        self.assertEqual([line for line in log if line.startswith("cargo")], [f"{build} {target}" for target in targets])
        self.assertIn("IPHONEOS_DEPLOYMENT_TARGET=13.0", log)
        made = [f"target/{target}/release/{LIBRARY}.a" for target in targets]
        both = [f"target/apple/{name}/{LIBRARY}.a" for name in ("simulator", "mac")]
        joined = [f"lipo -create {made[i]} {made[i + 1]} -output {both[i // 2]}" for i in (1, 3)]
        self.assertEqual([line for line in log if line.startswith("lipo")], joined)
        parts = [f"-library {library} -headers apple/headers" for library in (made[0], *both)]
        framework = f"xcodebuild -create-xcframework {' '.join(parts)} -output target/new.xcframework"
        self.assertEqual(log[-2:], ["generate ", framework])
        self.assertEqual((self.package / "apple/Package.swift").read_text(), (PACKAGE / "apple/Package.swift").read_text())

    def test_apple_metal(self):
        self.apple_tools()
        status, _, log = self.run_script("apple/build", "metal")
        self.assertEqual(status, 0)
        self.assertTrue(all(line.endswith("--features metal") for line in log if line.startswith("cargo")))
        self.assertIn("IPHONEOS_DEPLOYMENT_TARGET=18.0", log)
        self.assertIn("MACOSX_DEPLOYMENT_TARGET=15.0", log)
        # An app for older systems is refused by Xcode, and does not end when it starts.
        manifest = self.package / "apple/Package.swift"
        self.assertIn('\n    platforms: [.iOS("18.0"), .macOS("15.0")],\n', manifest.read_text())
        self.assertEqual(self.run_script("apple/build")[0], 0)
        self.assertEqual(manifest.read_text(), (PACKAGE / "apple/Package.swift").read_text())

    def test_apple_failures(self):
        status, messages, _ = self.run_script("apple/build", "gpu")
        self.assertEqual((status, messages), (2, "expected metal or nothing, not `gpu`\n"))
        status, messages, log = self.run_script("apple/build")
        self.assertEqual((status, log), (1, []))
        self.assertEqual(messages, "rustup is missing: this needs macOS with Xcode and rustup\n")
        self.apple_tools()
        self.assertEqual(self.run_script("apple/build")[0], 0)
        framework = self.package / "apple/CandleAttentionFFI.xcframework"
        (framework / "old").touch()
        self.assertNotEqual(self.run_script("apple/build", "metal", FAIL="1")[0], 0)
        self.assertIn('.iOS("13.0")', (self.package / "apple/Package.swift").read_text())
        self.assertTrue((framework / "old").exists(), "a failed build replaced the framework")

    def test_android(self):
        self.android_tools()
        variables = {"ANDROID_NDK_HOME": str(self.ndk), "CARGO_TARGET_DIR": str(self.folder / "elsewhere")}
        status, messages, log = self.run_script("android/build-libraries", **variables)
        self.assertEqual((status, messages), (0, ""))
        made = sorted(path.parent.name for path in (self.package / "android/src/main/jniLibs").glob(f"*/{LIBRARY}.so"))
        self.assertEqual(made, ["arm64-v8a", "armeabi-v7a", "x86_64"])
        targets = ["aarch64-linux-android", "armv7-linux-androideabi", "x86_64-linux-android"]
        self.assertEqual([line for line in log if line.startswith("rustup")], [f"rustup target add {t}" for t in targets])
        build = "cargo rustc --release --locked --lib --crate-type cdylib --target"
        self.assertEqual([line for line in log if line.startswith("cargo")], [f"{build} {target}" for target in targets])
        self.assertEqual(log[-1], "generate ")
        tools = self.ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin"
        self.assertIn(f"CARGO_TARGET_AARCH64_LINUX_ANDROID_LINKER={tools}/aarch64-linux-android24-clang", log)
        self.assertIn(f"CARGO_TARGET_ARMV7_LINUX_ANDROIDEABI_LINKER={tools}/armv7a-linux-androideabi24-clang", log)
        flags = "-Clink-arg=-Wl,-z,max-page-size=16384"
        self.assertIn(f"CARGO_TARGET_X86_64_LINUX_ANDROID_RUSTFLAGS={flags}", log)

    def test_android_failures(self):
        self.android_tools()
        status, messages, _ = self.run_script("android/build-libraries")
        expected = "no NDK at ANDROID_NDK_HOME, ``: expected the folder that holds toolchains/llvm\n"
        self.assertEqual((status, messages), (1, expected))
        status, messages, _ = self.run_script("android/build-libraries", "arm64", ANDROID_NDK_HOME=str(self.ndk))
        self.assertEqual((status, messages), (2, "expected no arguments, not `arm64`\n"))
        variables = {"ANDROID_NDK_HOME": str(self.ndk), "ALIGNMENT": "0x1000"}
        status, messages, _ = self.run_script("android/build-libraries", **variables)
        self.assertEqual(status, 1)
        self.assertRegex(messages, r"is aligned to 0x1000, expected 0x4000 \(16 KB\)")
        libraries = self.package / "android/src/main/jniLibs"
        self.assertFalse(libraries.exists())
        self.assertEqual(self.run_script("android/build-libraries", ANDROID_NDK_HOME=str(self.ndk))[0], 0)
        (libraries / "old").touch()
        self.assertEqual(self.run_script("android/build-libraries", **variables)[0], 1)
        self.assertTrue((libraries / "old").exists(), "a failed build replaced the libraries")

    def test_android_tools_that_are_missing(self):
        self.android_tools()
        linker = self.ndk / "toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android24-clang"
        linker.unlink()
        status, messages, log = self.run_script("android/build-libraries", ANDROID_NDK_HOME=str(self.ndk))
        self.assertEqual((status, messages, log), (1, f"{linker} is missing: expected the NDK r27 or later\n", []))
        shutil.rmtree(self.ndk / "toolchains")
        status, messages, _ = self.run_script("android/build-libraries", ANDROID_NDK_HOME=str(self.ndk))
        expected = f"no NDK at ANDROID_NDK_HOME, `{self.ndk}`: expected the folder that holds toolchains/llvm\n"
        self.assertEqual((status, messages), (1, expected))
        (self.tools / "rustup").unlink()
        status, messages, _ = self.run_script("android/build-libraries", ANDROID_NDK_HOME=str(self.ndk))
        self.assertEqual((status, messages), (1, "rustup is missing: this needs rustup and an Android NDK\n"))


class Versions(unittest.TestCase):
    def test_the_oldest_android_is_stated_once(self):
        script = (PACKAGE / "android/build-libraries").read_text()
        gradle = (PACKAGE / "android/build.gradle.kts").read_text()
        api = next(line for line in script.splitlines() if line.startswith("api="))[4:]
        self.assertIn(f"minSdk = {api}\n", gradle)


if __name__ == "__main__":
    unittest.main()
