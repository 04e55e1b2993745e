"""Writes what a real run printed into the README, with machine and date.

.venv/bin/python .ci/refresh_readme.py quickstart
.venv/bin/python .ci/refresh_readme.py bench --seconds 60

What follows the name is handed to the command.
"""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
COMMANDS = {
    "quickstart": [str(ROOT / "recipes" / "quickstart.py"), "--verbose=0"],
    "bench": ["-m", "fastkeras", "bench"],
}


def machine():
    """One line: what ran it, and when."""
    version = importlib.metadata.version
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, "
        f"TensorFlow {version('tensorflow')}, Keras {version('keras')}, "
        f"{datetime.date.today().isoformat()}\n"
    )


def refreshed(readme, name, output):
    """The README with `output` in the fenced block after the mark."""
    mark = f"<!-- output: {name} -->"
    block = f"{mark}\n```text\n{output.strip()}\n```"
    pattern = re.escape(mark) + r"\n```text\n.*?```"
    # A function, since a backslash in a replacement string has a meaning.
    text, found = re.subn(pattern, lambda _: block, readme, flags=re.DOTALL)
    if found != 1:
        sys.exit(f"README.md must hold one {mark} with a text block after it.")
    return text


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"Give one of {sorted(COMMANDS)}. Received: {sys.argv[1:]}")
    name, *options = sys.argv[1:]
    run = subprocess.run(
        [sys.executable, *COMMANDS[name], *options],
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    # The bench says by itself what it ran on.
    head = machine() if name == "quickstart" else ""
    path = ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    path.write_text(refreshed(readme, name, head + run.stdout), "utf-8")


if __name__ == "__main__":
    main()
