"""What the lints share: the list of files, a C tokenizer, functions with their sizes, exceptions, and the report."""

import os
import re
import sys

CODE_FOLDERS = ("src", "include", "tests", "tools", "examples", "bindings")
SKIPPED_FOLDERS = {"corpus", "goldens", "__pycache__"}


class Lint:
    """Collects faults and ends the program: 0 clean, 1 with faults, 77 skipped."""

    def __init__(self):
        self.root = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".")
        self.faults = []

    def fault(self, path, line, text):
        self.faults.append(f"{path}:{line}: {text}")

    def files(self, *endings, folders=CODE_FOLDERS):
        """Paths relative to the root, sorted."""
        found = []
        for folder in folders:
            for where, inner, names in os.walk(os.path.join(self.root, folder)):
                inner[:] = [name for name in inner if name not in SKIPPED_FOLDERS]
                for name in names:
                    if name.endswith(endings):
                        found.append(os.path.relpath(os.path.join(where, name), self.root))
        return sorted(found)

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", newline="") as file:
            return file.read()

    def end(self, checked):
        for fault in sorted(self.faults):
            print(fault)
        print(f"{checked} checked, {len(self.faults)} faults")
        sys.exit(1 if self.faults else 0)

    def skip(self, why):
        print(f"skipped: {why}")
        sys.exit(77)


class Allowed:
    """tests/lint/allowed.txt: exceptions with their reasons. One that is not needed any more is a fault."""

    def __init__(self, lint, rules):
        self.path = "tests/lint/allowed.txt"
        self.rows = {}
        for number, line in enumerate(lint.read(self.path).splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            words = line.split(None, 2)
            if len(words) < 3:
                lint.fault(self.path, number, "an exception is: rule path reason")
            elif words[0] in rules:
                self.rows[(words[0], words[1])] = [number, False]

    def has(self, rule, path):
        """True when the path, or a folder above it written with a slash at its end, is excepted from the rule."""
        hit = False
        for (row_rule, row_path), row in self.rows.items():
            if row_rule == rule and (row_path == path or (row_path.endswith("/") and path.startswith(row_path))):
                row[1] = hit = True
        return hit

    def report_unused(self, lint):
        for (rule, path), (number, used) in self.rows.items():
            if not used:
                lint.fault(self.path, number, f"the exception from {rule} for {path} is not needed")


TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)
      | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<char>[uUL]?'(?:\\.|[^'\\\n])*')
      | (?P<word>[A-Za-z_]\w*)
      | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
      | (?P<space>\s+)
      | (?P<mark>->|.)""",
    re.X | re.S,
)


class Token:
    __slots__ = ("kind", "text", "line")

    def __init__(self, kind, text, line):
        self.kind, self.text, self.line = kind, text, line


def without_directives(text):
    """The text with preprocessor lines blanked; the number of lines stays."""
    lines, inside, comment = [], False, False
    for line in text.split("\n"):
        starts = not comment and line.lstrip().startswith("#")
        blank = inside or starts
        inside = blank and line.rstrip().endswith("\\")
        # a comment that begins on a directive's line and goes on
        code = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
        opened, closed = code.rfind("/*"), code.rfind("*/")
        if opened > closed:
            comment = True
        elif closed >= 0:
            comment = False
        lines.append("" if blank and not comment else ("/*" if blank and comment else line))
    return "\n".join(lines)


def tokens(text, comments=False):
    """All tokens but white space; comments only when asked for."""
    found, line = [], 1
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        if kind != "space" and (comments or kind != "comment"):
            found.append(Token(kind, match.group(), line))
        line += match.group().count("\n")
    return found


class Function:
    __slots__ = ("name", "line", "end", "parameters", "static", "defined", "body")


CONTROL = {"if", "while", "for", "switch", "return", "sizeof", "_Alignof", "_Static_assert", "static_assert"}


def _parameters(group):
    """Number of parameters between a pair of parentheses (given without them)."""
    depth, count = 0, 1
    for token in group:
        depth += token.text in "([{"
        depth -= token.text in ")]}"
        count += depth == 0 and token.text == ","
    if not group or (len(group) == 1 and group[0].text == "void"):
        return 0
    return count


def _declarator(statement):
    """(name, parameters) of a statement that declares a function; None otherwise."""
    at = 0
    while at < len(statement):
        token = statement[at]
        if token.text == "(":
            depth, end = 1, at + 1
            while end < len(statement) and depth:
                depth += statement[end].text == "("
                depth -= statement[end].text == ")"
                end += 1
            before = statement[at - 1] if at else None
            attribute = before is not None and before.text in ("__attribute__", "_Alignas", "__declspec")
            if statement[at + 1 : at + 2] and statement[at + 1].text == "*":
                return None  # a pointer to a function
            if before is not None and before.kind == "word" and not attribute and before.text not in CONTROL:
                return before.text, _parameters(statement[at + 1 : end - 1])
            if not attribute:
                return None
            at = end
        elif token.text in ("=", "["):
            return None
        else:
            at += 1
    return None


def functions(text):
    """Functions defined or declared at file scope, outermost only."""
    found, statement, at = [], [], 0
    all_tokens = tokens(without_directives(text))
    while at < len(all_tokens):
        token = all_tokens[at]
        if token.text == "}" or token.text == ";":
            _add(found, statement, token, None)
            statement = []
        elif token.text == "{":
            if len(statement) == 2 and statement[0].text == "extern":
                statement = []  # extern "C": its contents are at file scope
            else:
                depth, end = 1, at + 1
                while end < len(all_tokens) and depth:
                    depth += all_tokens[end].text == "{"
                    depth -= all_tokens[end].text == "}"
                    end += 1
                body = all_tokens[at + 1 : end - 1]
                is_function = bool(statement) and "typedef" != statement[0].text and _declarator(statement)
                if is_function:
                    _add(found, statement, all_tokens[end - 1], body)
                    statement = []
                else:
                    statement.append(token)  # a struct, an enum, an initialiser: the statement goes on
                at = end - 1
        else:
            statement.append(token)
        at += 1
    return found


def _add(found, statement, last, body):
    if not statement or statement[0].text == "typedef":
        return
    declared = _declarator(statement)
    if not declared or (body is None and len(statement) > 0 and statement[0].text in CONTROL):
        return
    function = Function()
    function.name, function.parameters = declared
    function.line, function.end = statement[0].line, last.line
    function.static = any(token.text == "static" for token in statement)
    function.defined = body is not None
    function.body = body or []
    found.append(function)
