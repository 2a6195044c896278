"""Every struct that leaves a process as it lies in memory has its size written down: `static_assert(sizeof(struct x) ==
N, ...)` with a plain number. Those are the structs of src/layout (in the header that defines them) and of include/quire
(there or in src/api). One that stays inside is listed in tests/lint/allowed.txt:
`size src/layout/x.h:quire_x reason`."""

import re

from source import Allowed, Lint

STRUCT = re.compile(r"^struct (quire_\w+) \{", re.M)
ASSERT = re.compile(r"static_assert\([^;]*?;", re.S)
SIZE = re.compile(r"sizeof\(struct (quire_\w+)\)\s*==\s*(?:\d+\b|sizeof\(struct quire_\w+\))")


def sizes_in(text):
    return {name for statement in ASSERT.findall(text) for name in SIZE.findall(statement)}


def main():
    lint = Lint()
    allowed = Allowed(lint, {"size"})
    shared = set()
    for path in lint.files(".c", ".h", folders=("src/api", "include/quire")):
        shared |= sizes_in(lint.read(path))
    checked = 0
    for path in lint.files(".h", folders=("src/layout", "include/quire")):
        text = lint.read(path)
        known = sizes_in(text) if path.startswith("src/layout/") else shared
        for match in STRUCT.finditer(text):
            checked += 1
            name = match.group(1)
            if name not in known and not allowed.has("size", f"{path}:{name}"):
                line = text.count("\n", 0, match.start()) + 1
                lint.fault(path, line, f"struct {name} has no static_assert of its size")
    allowed.report_unused(lint)
    lint.end(checked)


main()
