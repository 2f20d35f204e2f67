"""How long a page takes to open in a browser, as the page's own clock has it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Timer

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--v=0",
)
PATIENCE = 120.0  # seconds
MARK = "opened:"

# Says when the list of episodes stood and the browser had painted after that.
_CLOCK = """
const wait = () => {
  const [ready] = performance.getEntriesByName("viewer-ready");
  if (ready === undefined) return setTimeout(wait, 10);
  const [loaded] = performance.getEntriesByType("navigation");
  const tell = async () => {
    const seconds = {
      parsed: loaded.domContentLoadedEventEnd, ready: ready.startTime, painted: performance.now(),
    };
    for (const word of %s) seconds[word] = await searching(word);
    console.log("%s" + JSON.stringify(seconds));
  };
  requestAnimationFrame(() => setTimeout(tell));
};

// Until everything that was said has been looked through for a word, the pause after the last keystroke included.
const searching = async (word) => {
  const begin = performance.now();
  const input = document.getElementById("viewer-search");
  input.value = word;
  input.dispatchEvent(new Event("input"));
  const looking = document.querySelector(".viewer-looking");
  while (!looking.hidden) await new Promise((resolve) => setTimeout(resolve, 5));
  return performance.now() - begin;
};
wait();
"""


def find_chromium() -> str | None:
    """Return the browser's binary: the one that CHROMIUM names, or the first of the usual names, or None."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def opening_seconds(report: Path, browser: str, words: Sequence[str] = ()) -> dict[str, float]:
    """Open a report once in a fresh browser, and search its episodes.

    Args:
        report: The report; a variant that tells the time is written beside it.
        browser: Binary of the browser.
        words: What is searched for, one word after the other.

    Returns:
        Seconds from the beginning of the navigation: "parsed" (the whole file), "ready" (the list of episodes stands),
        "painted" (and is painted). For each word those until everything that was said has been looked through.

    Raises:
        RuntimeError: The page did not tell.
    """
    script = _CLOCK % (json.dumps(list(words)), MARK)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = report.read_text(encoding="utf-8")
    text = text.replace("script-src &#39;sha256-", f"script-src &#39;sha256-{digest}&#39; &#39;sha256-", 1)
    head, end = text.rsplit("</body>", 1)
    variant = report.with_name(f"timed-{report.name}")
    variant.write_text(f"{head}<script>{script}</script></body>{end}", encoding="utf-8")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", "--window-size=1180,900", variant.as_uri()]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
        )
        watch = Timer(PATIENCE, process.kill)
        watch.start()
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if MARK in line and "{" in line:
                    told = line[line.index(MARK) + len(MARK) :]
                    milliseconds = json.loads(told[: told.index("}") + 1])
                    return {name: value / 1e3 for name, value in milliseconds.items()}
        finally:
            watch.cancel()
            process.terminate()
            process.wait()
    raise RuntimeError(f"{variant} did not say when it was open")
