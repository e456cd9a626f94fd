"""Chromium without a window, driven over a pipe by the DevTools protocol, and a file server on this machine."""

import base64
import functools
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

LIMIT = 30  # seconds for anything


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and prints nothing."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm", ".js": "text/javascript"}

    def log_message(self, *_):
        pass


def serve(folder):
    """Serves a folder on a free port: the address, and what ends it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def stop():
        server.shutdown()
        server.server_close()

    return f"http://127.0.0.1:{server.server_address[1]}/", stop


class Browser:
    """A browser with a profile of its own, for a `with` statement."""

    def __enter__(self):
        self.profile = tempfile.mkdtemp()
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()
        chromium = os.environ.get("CHROMIUM", "chromium")
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        options += ["--no-first-run", "--disable-background-networking", f"--user-data-dir={self.profile}", "about:blank"]
        # The browser reads commands from file 3 and writes to file 4.
        script = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, chromium, *options], pass_fds=(to_read, from_write), stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(from_write)
        self.commands, self.answers = os.fdopen(to_write, "wb"), os.fdopen(from_read, "rb")
        self.asked, self.results, self.pages, self.changed = 0, {}, {}, threading.Condition()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        return self

    def __exit__(self, *_):
        try:
            self.send("Browser.close")
            self.process.wait(10)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
        self.reader.join(10)
        self.commands.close()
        self.answers.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self):
        buffer = b""
        while chunk := self.answers.read1(1 << 16):
            *messages, buffer = (buffer + chunk).split(b"\0")
            for message in map(json.loads, messages):
                with self.changed:
                    if "id" in message:
                        self.results[message["id"]] = message
                    elif page := self.pages.get(message.get("sessionId")):
                        page.take(message["method"], message["params"])
                    self.changed.notify_all()

    def post(self, method, session=None, **params):
        """Sends a command and does not wait for its result."""
        with self.changed:
            self.asked += 1
            message = {"id": self.asked, "method": method, "params": params} | ({"sessionId": session} if session else {})
            self.commands.write(json.dumps(message).encode() + b"\0")
            self.commands.flush()
            return self.asked

    def send(self, method, session=None, **params):
        """Sends a command and returns its result."""
        with self.changed:
            asked = self.post(method, session, **params)
            if not self.changed.wait_for(lambda: asked in self.results, LIMIT):
                raise RuntimeError(f"{method}: no answer in {LIMIT} s")
            answer = self.results.pop(asked)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]


class Page:
    """A page of a browser. `requests` and `errors` hold what it asked for and what went wrong."""

    def __init__(self, browser, width=1280, height=800, dark=False, phone=False, prelude=""):
        self.browser, self.requests, self.errors = browser, [], []
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ["Page", "Runtime", "Network", "Log", "DOM"]:
            self.send(f"{domain}.enable")
        # Workers are watched, too.
        self.send("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=True, flatten=True)
        self.size(width, height, phone)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        if prelude:
            self.send("Page.addScriptToEvaluateOnNewDocument", source=prelude)
        if phone:
            self.send("Emulation.setTouchEmulationEnabled", enabled=True)

    def size(self, width, height, phone=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def send(self, method, **params):
        return self.browser.send(method, self.session, **params)

    def take(self, method, params):
        """An event of the browser."""
        if method == "Target.attachedToTarget":
            worker = params["sessionId"]
            self.browser.pages[worker] = self
            for command in ["Network.enable", "Runtime.enable", "Runtime.runIfWaitingForDebugger"]:
                self.browser.post(command, worker)
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str(params["args"]))

    def open(self, address, state="ready"):
        """Opens an address and waits for a state of the page, if one is given."""
        self.send("Page.navigate", url=address)
        if state:
            self.wait(f"document.documentElement.dataset.state === {json.dumps(state)}")

    def run(self, script):
        """The value of a script, awaited."""
        answer = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait(self, condition, limit=LIMIT):
        """Waits until a script gives true, and returns its value."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            try:
                if value := self.run(condition):
                    return value
            except RuntimeError:
                pass  # the page is on its way
            time.sleep(0.02)
        raise AssertionError(f"not in {limit} s: {condition}; {self.errors[:3]}; {self.run('document.body.innerText.slice(0, 300)')}")

    def key(self, *names):
        """Presses keys one after another."""
        codes = {"ArrowUp": 38, "ArrowDown": 40, "ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "End": 35}
        for name in names:
            text = "\r" if name == "Enter" else name if len(name) == 1 else ""
            values = {"key": name, "windowsVirtualKeyCode": codes.get(name) or (ord(name.upper()) if len(name) == 1 and name.isascii() and name.isalnum() else 0)}
            self.send("Input.dispatchKeyEvent", type="keyDown", **values, **({"text": text} if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **values)

    def type(self, text):
        """Types a text where the focus is, one key at a time."""
        for letter in text:
            self.key(letter)

    def middle(self, selector):
        found = f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
        return self.run(f"{found} const b = e.getClientRects()[0]; return [b.left + Math.min(b.width, 200) / 2, b.top + b.height / 2]; }})()")

    def click(self, selector):
        """Clicks the middle of an element."""
        x, y = self.middle(selector)
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"]:
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def files(self, selector, paths):
        """Chooses files, or one folder, in an input."""
        document = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=document, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(pathlib.Path(path).resolve()) for path in paths])

    def drop(self, selector, paths):
        """Drops files or folders on an element."""
        x, y = self.middle(selector)
        data = {"items": [], "files": [str(pathlib.Path(path).resolve()) for path in paths], "dragOperationsMask": 1}
        for kind in ["dragEnter", "dragOver", "drop"]:
            self.send("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def picture(self, path, whole=False):
        """Writes what is seen as a PNG."""
        options = {"captureBeyondViewport": True} if whole else {}
        pathlib.Path(path).write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png", **options)["data"]))

    def close(self):
        self.send("Page.close")
