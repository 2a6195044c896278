# ctest: timeout=120
"""clang-format 14 would change nothing."""

import re
import shutil
import subprocess

from source import Lint


def main():
    lint = Lint()
    if not shutil.which("clang-format-14"):
        lint.skip("clang-format-14 is missing (tools/setup --ci installs it)")
    paths = lint.files(".c", ".h")
    if paths:
        done = subprocess.run(
            ["clang-format-14", "--dry-run", "-Werror"] + paths, capture_output=True, text=True, cwd=lint.root
        )
        # one line a file is enough: `make format` mends them all
        first = {}
        for match in re.finditer(r"^([^\s:]+):(\d+):\d+: error: .*$", done.stderr, re.M):
            first.setdefault(match.group(1), match.group(2))
        for path, line in first.items():
            lint.fault(path, line, "not as clang-format writes it; run `make format`")
        if done.returncode and not first:
            lint.fault(".clang-format", 1, done.stderr.strip().splitlines()[0])
    lint.end(len(paths))


main()
