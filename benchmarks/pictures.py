"""The pictures of README and site: the top of a run's report, light and dark, and an episode, as a browser shows them.

`make demo && python -m benchmarks.pictures demo-results` writes them into docs/images.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.browser import FLAGS, find_chromium
from benchmarks.measurement import REPOSITORY

IMAGES = REPOSITORY / "docs" / "images"
WIDTH = 1200
REPORT_HEIGHT, EPISODE_HEIGHT = 1240, 1150  # the cards and the chart of results; the first turns of an episode
EPISODE = 76  # of the demo: two good calls, then one that gives nearly everything away


DARK = "--blink-settings=preferredColorScheme=0"


def take(page: str, target: Path, height: int, browser: str, *options: str) -> None:
    """Write a picture of a page as it is when it has been opened.

    Args:
        page: Address of the page.
        target: The picture.
        height: Of the window, in pixels.
        browser: Binary of the browser.
        options: More of its options.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--hide-scrollbars", "--virtual-time-budget=20000", f"--window-size={WIDTH},{height}"]
        command = [browser, *FLAGS, *flags, *options, f"--user-data-dir={profile}", f"--screenshot={target}", page]
        subprocess.run(command, check=True, capture_output=True, timeout=180)


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures", description=__doc__.split("\n", 1)[0])
    parser.add_argument("run", type=Path, help="folder of the run, with its report")
    parser.add_argument("--episode", type=int, default=EPISODE, help="number of the episode")
    chosen = parser.parse_args()
    browser = find_chromium()
    report = (chosen.run / "report.html").resolve()
    if browser is None or not report.is_file():
        missing = "no Chromium here" if browser is None else f"{chosen.run} has no report.html"
        print(f"{missing}: no picture was taken", file=sys.stderr)
        return 2
    take(report.as_uri(), IMAGES / "report.png", REPORT_HEIGHT, browser)
    take(report.as_uri(), IMAGES / "report-dark.png", REPORT_HEIGHT, browser, DARK)
    # A page that has scrolled is painted blank, so the episodes are given a page of their own.
    before, episodes = report.read_text(encoding="utf-8").split('<section id="episodes">')
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder) / "episodes.html"
        alone.write_text(f'{before.partition("<header>")[0]}<section id="episodes">{episodes}', encoding="utf-8")
        take(f"{alone.as_uri()}#episode-{chosen.episode}", IMAGES / "episode.png", EPISODE_HEIGHT, browser)
    print(f"wrote report.png, report-dark.png and episode.png in {IMAGES}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
