"""A page opened in headless Chromium, without any package: a script in the page looks at it and tells what it saw."""

import base64
import hashlib
import json
import re
import subprocess
from html.parser import HTMLParser

from benchmarks.browser import FLAGS, find_chromium

FINDINGS = "findings-of-the-test"

# Runs what a test gives as the body of an async function and writes what it returns into the page.
_PROBE = """
(async () => {
  const until = async (condition) => {
    for (let tries = 0; tries < 400; tries += 1) {
      const found = condition();
      if (found) return found;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    throw new Error(`waited in vain for ${condition}`);
  };
  const all = (selector) => [...document.querySelectorAll(selector)];
  const text = (selector) => document.querySelector(selector)?.textContent ?? null;
  const pick = (id, value) => {
    const node = document.getElementById(id);
    node.value = value;
    node.dispatchEvent(new Event(node.tagName === "INPUT" ? "input" : "change"));
  };
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const place = document.createElement("pre");
  place.id = "%s";
  try {
    place.textContent = JSON.stringify({ found: await (async () => { %s })() });
  } catch (error) {
    place.textContent = JSON.stringify({ error: String(error) });
  }
  document.body.append(place);
})();
"""


class Visit:
    """What came of opening a page: its HTML at the end, and what it wrote to the console, complaints among it."""

    def __init__(self, page, messages):
        self.page = page
        self.messages = messages

    @property
    def findings(self):
        """What the test's script returned."""
        reader = _PreReader()
        reader.feed(self.page)
        found = json.loads(reader.text)
        assert "error" not in found, found["error"]
        return found["found"]


def visit(page, profile, script=None, address="", width=1180, flags=()):
    """Open a page and return what it came to.

    A script is the body of an async function that runs in a variant of the page, which is written beside it; it can use
    `until`, `all`, `text`, `pick` and `press`; a page that is the address of a server takes none. The profile is an
    empty folder for the browser's own files, the address what stands behind the page's path ("#episode-3"), the width
    that of the window in pixels.
    """
    if script is not None:
        page = _with_script(page, _PROBE % (FINDINGS, script))
    done = subprocess.run(
        [
            str(find_chromium()),
            *FLAGS,
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
            f"--window-size={width},900",
            "--virtual-time-budget=20000",
            *flags,
            *([] if any(flag.startswith(("--print", "--screenshot")) for flag in flags) else ["--dump-dom"]),
            (page if isinstance(page, str) else page.as_uri()) + address,
        ],
        capture_output=True,
        encoding="utf-8",
        timeout=180,
        check=True,
    )
    return Visit(done.stdout, re.findall(r"^.*:CONSOLE[:(].*$", done.stderr, re.MULTILINE))


def _with_script(page, script):
    """Write a variant of a page that runs one script more; its security policy, if it has one, is told of it."""
    text = page.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert text.count("script-src &#39;sha256-") <= 1
    text = text.replace("script-src &#39;sha256-", f"script-src &#39;sha256-{digest}&#39; &#39;sha256-")
    head, end = text.rsplit("</body>", 1)
    variant = page.with_name(f"probed-{page.name}")
    variant.write_text(f"{head}<script>{script}</script></body>{end}", encoding="utf-8")
    return variant


class _PreReader(HTMLParser):
    """Finds the text that the test's script left in the page."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.text = ""
        self._inside = False

    def handle_starttag(self, tag, attributes):
        self._inside = ("id", FINDINGS) in attributes

    def handle_data(self, data):
        if self._inside:
            self.text += data
