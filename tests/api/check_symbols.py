"""What libquire.so exports is what src/api/quire.map lists, what the public headers declare, what test_api.c calls, and
what the table of test_api_hostile.c has.

Arguments: the source folder, the library."""

import os
import re
import shutil
import subprocess
import sys

root, library = sys.argv[1:3]
if not shutil.which("nm"):
    print("skipped: nm is missing")
    sys.exit(77)


def read(path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
rows = [line.split() for line in listing.splitlines()]
exported = {row[2].split("@")[0] for row in rows if row[1] != "A"}
kinds = {row[1] for row in rows if row[1] != "A"}

mapped = set(re.findall(r"\b(quire_\w+);", without_comments(read("src/api/quire.map"))))
declared = set()
for name in sorted(os.listdir(os.path.join(root, "include/quire"))):
    text = without_comments(read("include/quire/" + name))
    declared |= set(re.findall(r"QUIRE_API[^;(]*?\b(quire_\w+)\(", text))
called = set(re.findall(r"\b(quire_\w+)\(", without_comments(read("tests/api/test_api.c"))))
hostile = {"quire_" + name for name in re.findall(r"\b(?:CALL|RARE)\((\w+)\),", read("tests/api/test_api_hostile.c"))}
bound = set(re.findall(r"\bquire_(?:kv_\w+|version)\b", read("bindings/python/quire/__init__.py")))

faults = 0
for what, names in (("the map", mapped), ("the headers", declared), ("the tests", called & declared),
                    ("the table of hostile calls", hostile),
                    ("the Python package", bound & declared)):
    for name in sorted(exported ^ names):
        print(f"{name}: {'not in' if name in exported else 'exported by none, but in'} {what}")
        faults += 1
if kinds != {"T"}:
    print(f"exports of kinds {sorted(kinds)}: functions only, so that data can change its size")
    faults += 1
print(f"{len(exported)} functions, {faults} faults")
sys.exit(1 if faults or not exported else 0)
