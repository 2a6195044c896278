"""File names are unique in the tree; include guards are named after their files."""

import os
import re

from source import Lint

GUARD = re.compile(r"^#ifndef (\w+)\n#define (\w+)\n", re.M)


def check_unique(lint, paths):
    seen = {}
    for path in paths:
        name = os.path.basename(path)
        if name in seen:
            lint.fault(path, 1, f"{name} is also the name of {seen[name]}")
        seen.setdefault(name, path)


def check_guard(lint, path):
    match = GUARD.search(lint.read(path))
    if not match or match.group(1) != match.group(2):
        lint.fault(path, 1, "the header has no include guard")
        return
    stem = re.sub(r"\W", "_", os.path.basename(path)).upper()
    if not match.group(1).startswith("QUIRE_") or not match.group(1).endswith(stem):
        lint.fault(path, 1, f"the guard must be QUIRE_..._{stem}, not {match.group(1)}")


def main():
    lint = Lint()
    paths = lint.files(".c", ".h", ".cu", ".cuh", ".py")
    check_unique(lint, paths)
    for path in lint.files(".h"):
        check_guard(lint, path)
    lint.end(len(paths))


main()
