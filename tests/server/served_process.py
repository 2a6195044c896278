"""A `quire serve` of the tests: started on a free port, asked, ended."""

import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading

SKIP = 77


def program():
    return os.path.join(os.environ["QUIRE_TEST_BINARY_DIR"], "bin", "quire")


def mini():
    return os.path.join(os.environ["QUIRE_TEST_SOURCE_DIR"], "models", "quire-mini")


def skip(why):
    """A test that cannot run says so; where CI=true it is a failure, since CI can install everything."""
    print("skipped:", why)
    sys.exit(1 if os.environ.get("CI") == "true" else SKIP)


class Server:
    """A process; the summary it printed is in `summary`, what it logs in `log`."""

    def __init__(self, *arguments, model=None):
        command = [program(), "serve", "--model", model or mini(), "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        atexit.register(self.kill)
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.summary = ""
        for line in self.process.stdout:
            self.summary += line
            found = re.search(r"http://[^ ]*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
            if line.startswith("  access"):
                break
        if not hasattr(self, "port"):
            self.process.wait()
            raise RuntimeError("no server: " + self.summary + "".join(self.log))
        self.url = f"http://127.0.0.1:{self.port}"
        for _ in range(200):
            if self.ask("GET", "/readyz")[0] == 200:
                return
            threading.Event().wait(0.02)
        raise RuntimeError("the server does not become ready")

    def ask(self, method, path, body=None, headers=None):
        """(status, bytes) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        connection.request(method, path, data, headers or {})
        reply = connection.getresponse()
        result = reply.status, reply.read()
        connection.close()
        return result

    def post(self, path, body):
        status, data = self.ask("POST", path, body)
        assert status == 200, (status, data)
        return json.loads(data)

    def metric(self, name):
        text = self.ask("GET", "/metrics")[1].decode()
        return float(re.search(r"^" + re.escape(name) + r" (\S+)$", text, re.M).group(1))

    def settled(self, condition, what, seconds=10):
        for _ in range(50 * seconds):
            if condition():
                return
            threading.Event().wait(0.02)
        raise AssertionError(what)

    def check_empty(self):
        """Nothing is inside, the laws hold, and every page is free or cached."""
        self.settled(
            lambda: self.metric("quire_requests_open") == 0 and self.metric("quire_requests_running") == 0,
            "requests are left",
        )
        self.settled(
            lambda: self.metric('quire_pages{state="free"}') + self.metric('quire_pages{state="cached"}')
            == self.metric('quire_pages{state="all"}'),
            "pages are left",
        )
        assert self.ask("GET", "/debug/check")[0] == 200

    def kill(self):
        """A test that fails leaves no server behind."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def end(self, number=signal.SIGTERM):
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return code
