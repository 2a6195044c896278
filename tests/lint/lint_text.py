"""Text of all files: no marks of unfinished work, no tabs or trailing blanks, one newline at the end, goto forward.

Lines of C, CUDA, Python, shell and CMake, comments too, have 120 columns at most; a line that cannot be broken well is
allowed in allowed.txt (`length path reason`). Prose (.md, .txt) and data are free."""

import os
import re

from source import CODE_FOLDERS, Allowed, Lint, functions

# written apart, so that this file is clean itself
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
ENDINGS = (".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".cmake", ".in", ".map", ".txt", ".yaml", ".yml")
# scripts without an ending, and what lies at the root
OTHERS = ["CMakeLists.txt", "Makefile", ".ci/run", "README.md", "NOTICE", ".clang-format", ".gitignore"]
SCRIPT = re.compile(r"^#!")
# what is neither program nor script has lines as long as it likes
FREE_ENDINGS = (".md", ".txt", ".yaml", ".yml", "NOTICE")
COLUMNS = 120
DEAD_CODE = re.compile(r"^[ \t]*#[ \t]*if[ \t]+0\b")


def check_length(lint, path, allowed):
    for number, line in enumerate(lint.read(path).split("\n"), 1):
        if len(line) > COLUMNS and not allowed.has("length", path):
            lint.fault(path, number, f"{len(line)} columns; the limit is {COLUMNS}")


def check_lines(lint, path):
    text = lint.read(path)
    if text and (not text.endswith("\n") or text.endswith("\n\n")):
        lint.fault(path, text.count("\n"), "the file must end with one newline")
    for number, line in enumerate(text.split("\n"), 1):
        if UNFINISHED.search(line):
            lint.fault(path, number, "unfinished work does not stay in the tree")
        if line != line.rstrip():
            lint.fault(path, number, "blank or carriage return at the end of the line")
        if "\t" in line and not path.endswith((".md", ".txt", "Makefile")):
            lint.fault(path, number, "tab")
        if path.endswith((".c", ".h")) and DEAD_CODE.match(line):
            lint.fault(path, number, "dead code")


def check_goto(lint, path):
    for function in functions(lint.read(path)):
        labels = {}
        body = function.body
        for i, token in enumerate(body[:-1]):
            before = body[i - 1].text if i else ";"
            if token.kind == "word" and body[i + 1].text == ":" and before in (";", "{", "}", ":", ")"):
                labels.setdefault(token.text, token.line)
        for token, target in zip(body, body[1:]):
            if token.text == "goto" and labels.get(target.text, token.line) < token.line:
                lint.fault(path, token.line, f"goto {target.text} goes backward")


def main():
    lint = Lint()
    paths = lint.files(*ENDINGS, folders=CODE_FOLDERS + ("docs", "cmake"))
    paths += [path for path in OTHERS if os.path.exists(os.path.join(lint.root, path))]
    tools = os.listdir(os.path.join(lint.root, "tools")) if os.path.isdir(os.path.join(lint.root, "tools")) else []
    for path in (f"tools/{name}" for name in sorted(tools) if "." not in name):
        if os.path.isfile(os.path.join(lint.root, path)) and SCRIPT.match(lint.read(path)):
            paths.append(path)
    for path in paths:
        check_lines(lint, path)
    for path in lint.files(".c", ".h", ".cu"):
        check_goto(lint, path)
    allowed = Allowed(lint, ("length",))
    for path in paths:
        if path.endswith("CMakeLists.txt") or not path.endswith(FREE_ENDINGS):
            check_length(lint, path, allowed)
    allowed.report_unused(lint)
    lint.end(len(paths))


main()
