"""Pictures of an episode (`render_mode="rgb_array"`): its tools with their status, the required list, the last call.

Environments say what there is to see as a `Scene`; every picture has the same size, as a film needs it.

    >>> from resilisim.envs.rendering import Scene, ToolState, draw
    >>> tools = (ToolState("reader", "success", 2), ToolState("writer", "not attempted"))
    >>> draw(Scene("A task", 2, 10, tools, ("reader", "writer"), "call reader", "it succeeded", "success")).shape
    (600, 960, 3)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import count_of, import_extra

WIDTH, HEIGHT = 960, 600  # pixels; even, as film formats want them
_MARGIN = 20

# Statuses of tools, with what stands for them beside their colour.
STATUS_COLOURS = {
    "not attempted": (203, 210, 219),
    "queued": (150, 182, 224),
    "running": (58, 124, 209),
    "success": (38, 142, 86),
    "failed": (201, 62, 54),
    "timeout": (214, 112, 28),
    "dependency failed": (158, 66, 138),
}
_INK, _FAINT, _PAPER, _PANEL = (29, 36, 46), (104, 115, 130), (255, 255, 255), (243, 245, 248)
_WHITE_ON = ("running", "success", "failed", "timeout", "dependency failed")

_ROW = 23  # height of a tool with its name
_NARROWEST = 150  # of a column of tools, so that names can be read; with more tools each is a square without one
_MOST_REQUIRED_ROWS = 4
_LONGEST_TEXT = 2000  # characters that are looked at before a text is cut to its lines

Colour = tuple[int, int, int]
Pixels = NDArray[np.uint8]  # (HEIGHT, WIDTH, 3)


@dataclass(frozen=True, slots=True)
class ToolState:
    """A tool as a picture shows it: its status is one of STATUS_COLOURS."""

    name: str
    status: str
    executions: int = 0


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to see of an episode.

    Attributes:
        title: Which episode it is.
        turn: Messages or steps so far.
        turns: How many there can be.
        tools: Every tool of the library.
        required: Names of the required tools, in their order.
        call: The last message or action; empty before the first one.
        answer: What came of it, or the task before the first one.
        status: How it came out, one of STATUS_COLOURS.
        ending: How the episode has ended; empty while it runs.
        is_success: Whether it has ended in full success.
    """

    title: str
    turn: int
    turns: int
    tools: tuple[ToolState, ...]
    required: tuple[str, ...]
    call: str
    answer: str
    status: str = "not attempted"
    ending: str = ""
    is_success: bool = False


def draw(scene: Scene) -> Pixels:
    """Return the picture of a scene, uint8 (600, 960, 3).

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    page = _Page()
    top = _draw_head(page, scene)
    states = {tool.name: tool for tool in scene.tools}
    top = _draw_required(page, [states[name] for name in scene.required], top)
    bottom = _draw_last(page, scene)
    _draw_tools(page, scene, top, bottom)
    return page.pixels()


class _Page:
    """An image to draw on, with the texts and marks that the parts of a picture have in common."""

    def __init__(self) -> None:
        image = import_extra("PIL.Image", "a picture needs", "video")
        self._image = image.new("RGB", (WIDTH, HEIGHT), _PAPER)
        self._pen = import_extra("PIL.ImageDraw", "a picture needs", "video").Draw(self._image)
        self._fonts: Any = import_extra("PIL.ImageFont", "a picture needs", "video")
        self._sizes: dict[int, Any] = {}

    def pixels(self) -> Pixels:
        return np.array(self._image)

    def font(self, size: int) -> Any:
        if size not in self._sizes:
            self._sizes[size] = self._fonts.load_default(size)
        return self._sizes[size]

    def box(self, left: float, top: float, right: float, bottom: float, fill: Colour, radius: int = 4) -> None:
        self._pen.rounded_rectangle((left, top, right, bottom), radius, fill)

    def outline(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        self._pen.rectangle((left, top, right, bottom), outline=colour, width=2)

    def width(self, text: str, size: int) -> float:
        return float(self.font(size).getlength(text))

    def text(self, left: float, middle: float, text: str, size: int = 14, colour: Colour = _INK) -> None:
        self._pen.text((left, middle), text, colour, self.font(size), anchor="lm")

    def fitted(self, text: str, room: float, size: int = 14) -> str:
        """Return a text on one line, cut with dots if it is wider than there is room."""
        line = " ".join(text[:_LONGEST_TEXT].split())
        if self.width(line, size) <= room:
            return line
        least, most = 0, len(line)
        while least < most:  # the longest beginning that fits
            half = (least + most + 1) // 2
            least, most = (half, most) if self.width(line[:half] + "...", size) <= room else (least, half - 1)
        return line[:least] + "..."

    def lines(self, text: str, room: float, number: int, size: int = 14) -> list[str]:
        """Return a text in at most so many lines, broken at spaces; the last one says with dots that more follows."""
        lines: list[str] = []
        words = text[:_LONGEST_TEXT].split()
        while words and len(lines) < number - 1:
            taken = 1
            while taken < len(words) and self.width(" ".join(words[: taken + 1]), size) <= room:
                taken += 1
            lines.append(self.fitted(" ".join(words[:taken]), room, size))
            words = words[taken:]
        return [*lines, self.fitted(" ".join(words), room, size)] if words else lines

    def mark(self, left: float, middle: float, status: str, colour: Colour) -> None:
        """Draw a tick, a cross or a dot, which tells without its colour how something came out."""
        if status == "success":
            self._pen.line([(left, middle), (left + 4, middle + 4), (left + 10, middle - 5)], colour, 2, "curve")
        elif status in ("failed", "timeout", "dependency failed"):
            self._pen.line([(left + 1, middle - 4), (left + 9, middle + 4)], colour, 2)
            self._pen.line([(left + 1, middle + 4), (left + 9, middle - 4)], colour, 2)
        elif status in ("queued", "running"):
            self._pen.ellipse((left + 2, middle - 3, left + 8, middle + 3), fill=colour)


def _draw_head(page: _Page, scene: Scene) -> float:
    """Draw title, turns and ending; return where the rest begins."""
    page.box(0, 0, WIDTH, 52, _PANEL, 0)
    turns = f"turn {scene.turn} of {scene.turns}"
    if scene.ending:
        colour = STATUS_COLOURS["success" if scene.is_success else "failed"]
        ending = page.fitted(scene.ending, 300)
        left = WIDTH - _MARGIN - page.width(ending, 14) - 20
        page.box(left, 12, WIDTH - _MARGIN, 40, colour, 14)
        page.text(left + 10, 26, ending, 14, _PAPER)
    else:
        left = WIDTH - _MARGIN
    left -= 12 + page.width(turns, 14)
    page.text(left, 26, turns, 14, _FAINT)
    page.text(_MARGIN, 26, page.fitted(scene.title, left - _MARGIN - 12, 18), 18)
    share = min(1.0, scene.turn / max(1, scene.turns))
    page.box(0, 52, WIDTH, 55, STATUS_COLOURS["not attempted"], 0)
    page.box(0, 52, share * WIDTH, 55, STATUS_COLOURS["running"], 0)
    return 68


def _draw_required(page: _Page, required: Sequence[ToolState], top: float) -> float:
    """Draw the required list; return where the rest begins."""
    done = sum(tool.status == "success" for tool in required)
    page.text(_MARGIN, top + 8, f"Required, in this order: {done} of {len(required)} done", 14, _FAINT)
    left, top = float(_MARGIN), top + 24
    bottom_row = top + (_MOST_REQUIRED_ROWS - 1) * (_ROW + 5)
    for place, tool in enumerate(required):
        name = page.fitted(f"{place + 1}  {tool.name}", 300)
        width = page.width(name, 14) + 34
        rest = len(required) - place
        room = WIDTH - _MARGIN - (110 if top >= bottom_row and rest > 1 else 0)
        if left + width > room and left > _MARGIN:
            if top >= bottom_row:
                page.text(left, top + _ROW / 2, f"and {rest} more", 14, _FAINT)
                break
            left, top = float(_MARGIN), top + _ROW + 5
        _draw_chip(page, tool, name, left, top, width)
        left += width + 8
    return top + _ROW + 14


def _draw_chip(page: _Page, tool: ToolState, text: str, left: float, top: float, width: float) -> None:
    colour = _PAPER if tool.status in _WHITE_ON else _INK
    page.box(left, top, left + width, top + _ROW, STATUS_COLOURS[tool.status], 5)
    page.mark(left + 7, top + _ROW / 2, tool.status, colour)
    page.text(left + 23, top + _ROW / 2, text, 14, colour)


def _draw_last(page: _Page, scene: Scene) -> float:
    """Draw the last call and its answer at the foot; return where they begin."""
    top = HEIGHT - 136
    page.box(0, top, WIDTH, HEIGHT, _PANEL, 0)
    page.box(0, top, 8, HEIGHT, STATUS_COLOURS[scene.status], 0)
    room, middle = WIDTH - 2 * _MARGIN - 86, top + 20
    if scene.call:
        page.text(_MARGIN, middle, "Last call", 14, _FAINT)
        page.text(_MARGIN + 86, middle, page.fitted(scene.call, room, 15), 15)
        middle += 25
    page.text(_MARGIN, middle, "Answer" if scene.call else "Task", 14, _FAINT)
    for number, line in enumerate(page.lines(scene.answer, room, 5)):
        page.text(_MARGIN + 86, middle + 18 * number, line)
    return top


def _draw_tools(page: _Page, scene: Scene, top: float, bottom: float) -> None:
    """Draw every tool, with its name where there is room for names."""
    left = _MARGIN + page.width(count_of(len(scene.tools), "tool"), 14) + 24
    page.text(_MARGIN, top + 8, count_of(len(scene.tools), "tool"), 14, _FAINT)
    counted = Counter(tool.status for tool in scene.tools)
    for status in STATUS_COLOURS:
        if counted[status]:
            words = f"{counted[status]:,} {status}"
            page.box(left, top + 2, left + 12, top + 14, STATUS_COLOURS[status], 3)
            page.text(left + 18, top + 8, words, 13, _FAINT)
            left += page.width(words, 13) + 32
    top += 24
    room = bottom - top - 10
    rows = max(1, int(room // (_ROW + 3)))
    columns = math.ceil(len(scene.tools) / rows)
    wide = (WIDTH - 2 * _MARGIN + 8) / max(1, columns)
    if wide >= _NARROWEST:
        _draw_names(page, scene, top, math.ceil(len(scene.tools) / columns), min(wide, 300.0))
    else:
        _draw_squares(page, scene, top, room)


def _draw_names(page: _Page, scene: Scene, top: float, rows: int, wide: float) -> None:
    for number, tool in enumerate(scene.tools):
        left, middle = _MARGIN + wide * (number // rows), top + (_ROW + 3) * (number % rows) + _ROW / 2
        calls = f"x{tool.executions}" if tool.executions > 1 else ""
        page.box(left, middle - 8, left + 17, middle + 8, STATUS_COLOURS[tool.status])
        page.mark(left + 3, middle, tool.status, _PAPER if tool.status in _WHITE_ON else _INK)
        room = wide - 36 - (page.width(calls, 13) + 6 if calls else 0)
        name = page.fitted(tool.name, room)
        page.text(left + 24, middle, name, 14, _INK if tool.executions or tool.name in scene.required else _FAINT)
        if calls:
            page.text(left + 30 + page.width(name, 14), middle, calls, 13, _FAINT)


def _draw_squares(page: _Page, scene: Scene, top: float, room: float) -> None:
    width = WIDTH - 2 * _MARGIN
    size = min(24, int(math.sqrt(width * room / len(scene.tools))))
    while size > 1 and (width // size) * (room // size) < len(scene.tools):
        size -= 1
    size, gap = max(1, min(size, 16)), 2 if size > 4 else 0
    columns = max(1, width // size)
    for number, tool in enumerate(scene.tools):
        left, above = _MARGIN + size * (number % columns), top + size * (number // columns)
        if above + size > top + room:
            break
        page.box(left, above, left + size - 1 - gap, above + size - 1 - gap, STATUS_COLOURS[tool.status], 0)
        if tool.name in scene.required and size > 6:
            page.outline(left, above, left + size - 1 - gap, above + size - 1 - gap, _INK)
    left, above = _MARGIN, top + size * math.ceil(len(scene.tools) / columns) + 10
    for tool in scene.tools:  # those that were called, by name, as far as there is room
        name = page.fitted(f"{tool.name}  x{tool.executions}", 300)
        chip = page.width(name, 14) + 34
        if not tool.executions or tool.name in scene.required:
            continue
        if left + chip > WIDTH - _MARGIN:
            left, above = _MARGIN, above + _ROW + 5
        if above + _ROW > top + room:
            break
        _draw_chip(page, tool, name, left, above, chip)
        left += int(chip) + 8
