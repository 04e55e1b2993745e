"""`python -m fastkeras`."""

import sys

from fastkeras import cli

if __name__ == "__main__":
    sys.exit(cli.main())
