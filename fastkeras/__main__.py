"""`python -m fastkeras`."""

import sys

from fastkeras._lib import interrupts

with interrupts.end_quietly():
    from fastkeras import cli

if __name__ == "__main__":
    sys.exit(cli.main())
