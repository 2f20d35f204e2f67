"""Make `python -m resilisim` the command line."""

from __future__ import annotations

from resilisim.cli.main import main

if __name__ == "__main__":
    main()
