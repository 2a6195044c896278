"""The one table of options of `quire serve`: flags, environment, YAML, help and dump agree, option by option.

Every option that --help names is set to a value other than its default in each of the three ways, and the dump says the
value and the way; the dump reads back. A value out of bounds and an unknown name are refused in each way, by the place
they came from.

ctest: timeout=120
"""

import os
import re
import subprocess
import tempfile

from served_process import program

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
DEEDS = ("config", "help", "print-config")


def serve(*arguments, **environment):
    return subprocess.run(
        [program(), "serve", *arguments], capture_output=True, text=True, check=False, env={**CLEAN, **environment}
    )


def dump(*arguments, **environment):
    """{name: (value, where)} of --print-config."""
    shown = serve(*arguments, "--print-config", **environment)
    assert shown.returncode == 0, shown
    found = {}
    for line in shown.stdout.splitlines():
        unset = re.fullmatch(r"# ([a-z0-9-]+): not set", line)
        is_set = re.fullmatch(r"(?:# )?([a-z0-9-]+): (.*)  # (.*)", line)
        assert unset or is_set, line
        name = (unset or is_set).group(1)
        assert name not in found, name
        found[name] = (is_set.group(2), is_set.group(3)) if is_set else (None, "default")
    return found, shown.stdout


def options():
    """[(name, a value that is not the default, one out of bounds or None)] as --help has them."""
    text = serve("--help").stdout
    rows = re.findall(r"^ +(?:-\w, )?--(\[no-\])?([a-z0-9-]+)( [A-Z]+)?((?:  .*)?(?:\n {30}.*)*)", text, re.M)
    found = []
    for flag, name, _, description in rows:
        words = re.sub(r"\s+", " ", description)
        bounds = re.search(r"\[([^;\[\]]*); ([^\[\]]*)\]$|\[(one of [^\]]*)\]$", words)
        default, limits = (bounds.group(1), bounds.group(2) or bounds.group(3)) if bounds else (None, "")
        numbers = re.fullmatch(r"(\S+) to (\S+)", limits)
        if flag:
            found.append((name, "false" if words.endswith("[true]") else "true", "perhaps"))
        elif limits.startswith("one of "):
            values = limits[len("one of "):].split(", ")
            found.append(
                (name, next(value for value in values[::-1] if value != (default or values[0])), "none of them")
            )
        elif numbers:
            low, high = numbers.groups()
            found.append((name, high if high != default else low, "-1"))
        else:
            found.append((name, f"/a/{name}", None))
    return found


def check_sources(rows, before):
    for name, value, _ in rows:
        variable = "QUIRE_" + name.upper().replace("-", "_")
        written = f'"{value}"' if value.startswith("/") else value
        assert before[name][1] == "default" and before[name][0] != written, (name, before[name])
        assert dump(f"--{name}", value)[0][name] == (written, f"--{name}") if value not in ("true", "false") else (
            dump(f"--{name}" if value == "true" else f"--no-{name}")[0][name] == (value, f"--{name}")
        ), name
        assert dump(**{variable: value})[0][name] == (written, variable), name
        # the stronger source wins, whatever it says
        assert dump(f"--{name}={value}", **{variable: value})[0][name][1] == f"--{name}", name


def check_files(rows, folder):
    path = os.path.join(folder, "serve.yaml")
    with open(path, "w", encoding="utf-8") as file:
        for number, (name, value, _) in enumerate(rows):
            file.write(f"{name if number % 2 else name.replace('-', '_')}: {value}\n")
    found, text = dump("--config", path)
    for number, (name, value, _) in enumerate(rows):
        assert found[name][0].strip('"') == value and f"serve.yaml:{number + 1}: {name}" in found[name][1], found[name]
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    again, _ = dump("--config", path)
    assert {name: again[name][0] for name in again if name not in DEEDS} == {
        name: found[name][0] for name in found if name not in DEEDS
    }


def refused(where, *arguments, **environment):
    failed = serve("--print-config", *arguments, **environment)
    assert failed.returncode == 2 and failed.stdout == "" and where in failed.stderr, (where, failed)


def check_refusals(rows, folder):
    path = os.path.join(folder, "bad.yaml")

    def write(text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    for name, _, bad in rows:
        if bad is not None:
            variable = "QUIRE_" + name.upper().replace("-", "_")
            refused(f"--{name}: must be ", f"--{name}={bad}")
            refused(f"{variable}: must be ", **{variable: bad})
            write(f"# one\n{name}: {bad}\n")
            refused(f"bad.yaml:2: {name}: must be ", "--config", path)
    refused("--prot: unknown option; did you mean --port?", "--prot", "1")
    for text, where in (
        ("host: x\nprot: 1\n", 'bad.yaml:2: unknown option "prot"; did you mean port?'),
        ("port: 1\nhost: x\nport: 1\n", "bad.yaml:3: port is set twice"),
        ("config: other.yaml\n", "bad.yaml:1: config is for the command line"),
        ("help: true\n", "bad.yaml:1: help is for the command line"),
        ("port: 1\nprint-config: true\n", "bad.yaml:2: print-config is for the command line"),
        ("server:\n  port: 1\n", "bad.yaml:1: unknown option"),
        ("port:\n  - 1\n", "bad.yaml:2: only"),
    ):
        write(text)
        refused(where, "--config", path)


def main():
    before, _ = dump()
    rows = options()
    assert {row[0] for row in rows} | set(DEEDS) == set(before), {row[0] for row in rows} ^ set(before)
    assert len(rows) > 40
    rows = [row for row in rows if row[0] not in DEEDS]
    check_sources(rows, before)
    with tempfile.TemporaryDirectory() as folder:
        check_files(rows, folder)
        check_refusals(rows, folder)
    print(len(rows), "options are the same by flag, environment, file, help and dump")


main()
