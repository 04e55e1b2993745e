"""Writes a real run of the quickstart into the README, with machine and date.

.venv/bin/python .ci/refresh_readme.py
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
MARK = "<!-- output: quickstart -->"


def machine():
    """One line: what ran it, and when."""
    version = importlib.metadata.version
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, "
        f"TensorFlow {version('tensorflow')}, Keras {version('keras')}, "
        f"{datetime.date.today().isoformat()}"
    )


def refreshed(readme, output):
    """The README with `output` in the fenced block after the mark."""
    block = f"{MARK}\n```text\n{output.strip()}\n```"
    pattern = re.escape(MARK) + r"\n```text\n.*?```"
    # A function, since a backslash in a replacement string has a meaning.
    text, found = re.subn(pattern, lambda _: block, readme, flags=re.DOTALL)
    if found != 1:
        sys.exit(f"README.md must hold one {MARK} with a text block after it.")
    return text


def main():
    script = ROOT / "recipes" / "quickstart.py"
    run = subprocess.run(
        [sys.executable, str(script), "--verbose=0"],
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    path = ROOT / "README.md"
    readme = path.read_text(encoding="utf-8")
    output = f"{machine()}\n{run.stdout}"
    path.write_text(refreshed(readme, output), encoding="utf-8")


if __name__ == "__main__":
    main()
