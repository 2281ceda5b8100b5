"""`python -m cudal1_data` is the command `cudal1-data`."""

import sys

from cudal1_data.cli import main

if __name__ == "__main__":
    sys.exit(main())
