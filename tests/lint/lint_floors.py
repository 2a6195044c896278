"""Who may include whom: a file includes its own folder, base, and what its row names (docs/design.md, the house)."""

import os
import re

from source import Lint

FLOORS = {
    "base": [],
    "layout": [],
    "device": [],
    "text": [],
    "net": [],
    "pool": ["layout"],
    "radix": ["layout"],
    "kernels": ["device", "layout"],
    "collective": ["device"],
    "transport": ["device", "net", "layout"],
    "store": ["device", "net", "layout"],
    "msg": ["net", "layout"],
    "view": ["device", "layout", "kernels", "collective"],
    "cache": ["pool", "radix", "layout"],
    "handoff": ["msg", "pool", "layout"],
    "bank": ["device", "transport", "store", "layout"],
    "model": ["view", "kernels", "collective", "layout", "device"],
    "sched": ["layout"],
    "step": ["model", "view", "bank", "kernels", "collective", "device", "layout"],
    "server": ["engine", "text", "net", "msg"],
}
# the controller sees all floors below it; programs see everything
FLOORS["engine"] = [folder for folder in FLOORS if folder != "server"]
# the public interface is a thin layer over the objects of all floors
FLOORS["api"] = FLOORS["engine"] + ["engine"]
FLOORS["cli"] = list(FLOORS)
# benches are commands: they share the reading of models and options with the others
FLOORS["bench"] = list(FLOORS)
# those that implement or show the public interface include its headers
PUBLIC = {"api", "engine", "cli", "bench"}

# a library of others is wrapped once; the rest of the house sees our header
WRAPPED = {
    "xxhash.h": {"base"},
    "openssl/": {"base", "net", "server", "msg"},
    "event2/": {"net"},
    "yaml.h": {"base"},
    "jansson.h": {"base", "text", "model", "server", "cli", "bench", "msg"},
    "pcre2.h": {"text"},
}

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)


def includes(lint, path):
    text = lint.read(path)
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match.group(1), match.group(2)


def check_private(lint, path, line, folder, target):
    """Headers of one backend, and those that say private, are seen inside their folder only."""
    parts = target.split("/")
    hidden = len(parts) > 2 or re.search(r"_(private|state|internal)\.h$", target)
    # benches measure what a floor keeps to itself
    if hidden and parts[0] != folder and folder != "bench":
        lint.fault(path, line, f'"{target}" is private to {parts[0]}')


def check_file(lint, path, graph):
    folder = path.split("/")[1] if path.count("/") > 1 else ""
    if folder not in FLOORS:
        lint.fault(path, 1, f'folder "{folder}" has no row in the table of floors')
        return
    for line, mark, target in includes(lint, path):
        if mark == "<":
            for library, folders in WRAPPED.items():
                if target.startswith(library) and folder not in folders:
                    lint.fault(path, line, f"<{target}> is wrapped; only {', '.join(sorted(folders))} may include it")
            continue
        top = target.split("/")[0]
        if top == "quire" and folder in PUBLIC:
            continue
        if ".." in target.split("/") or "/" not in target:
            lint.fault(path, line, f'write "folder/file.h", not "{target}"')
            continue
        if not os.path.exists(os.path.join(lint.root, "src", target)):
            lint.fault(path, line, f'there is no src/{target}')
            continue
        if top not in (folder, "base") and top not in FLOORS[folder]:
            lint.fault(path, line, f"{folder} may not include {top}: {target}")
        check_private(lint, path, line, folder, target)
        graph.setdefault(path, []).append((line, "src/" + target))


def check_cycles(lint, graph):
    """A header that reaches itself; each cycle is named once, at its first file."""
    done, reported = set(), set()

    def visit(path, trail):
        if path in trail:
            cycle = trail[trail.index(path) :]
            if frozenset(cycle) not in reported:
                reported.add(frozenset(cycle))
                lint.fault(min(cycle), 1, "include cycle: " + " -> ".join(cycle + [path]))
            return
        if path in done:
            return
        for _, target in graph.get(path, []):
            visit(target, trail + [path])
        done.add(path)

    for path in sorted(graph):
        visit(path, [])


def check_public(lint):
    for path in lint.files(".h", folders=("include",)):
        for line, mark, target in includes(lint, path):
            if mark == '"' and not target.startswith("quire/"):
                lint.fault(path, line, f'a public header includes only public ones, not "{target}"')


def main():
    lint = Lint()
    graph = {}
    paths = lint.files(".c", ".h", ".cu", ".cuh", folders=("src",))
    for path in paths:
        check_file(lint, path, graph)
    check_cycles(lint, graph)
    check_public(lint)
    lint.end(len(paths))


main()
