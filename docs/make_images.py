"""Draws docs/images: python docs/make_images.py [MODEL]

The command line runs on an emulated terminal; its screen is drawn cell by cell. Needs pyte and Pillow.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyte
import pyte.graphics
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "common")]

from tests.cli.screen import Screen, environment  # noqa: E402

IMAGES = Path(__file__).with_name("images")
COLUMNS, ROWS, SIZE, MARGIN = 100, 26, 17, 18
INK, MUTED, PAPER, FRAME = "#d8dee9", "#7b8496", "#1c2028", "#2b313c"
EVERY_STEP = "import dgemma.cli.live as l; l._INTERVAL = l._SHARE = 0; from dgemma.cli import main; main()"
FONTS = "/usr/share/fonts/truetype/dejavu/DejaVuSansMono"


def main() -> None:
    """Write the pictures."""
    pyte.graphics.TEXT[2] = "+blink"  # pyte knows no dim text
    model = sys.argv[1] if len(sys.argv) > 1 else "demo"
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        animation(list(canvas(model, Path(home))))
        for name, picture in conversation(model, Path(home)):
            picture.save(IMAGES / name, optimize=True)


def canvas(model: str, home: Path) -> Iterator[Image.Image]:
    """The pictures of one answer being denoised: every step, where a terminal would skip some."""
    prompt = "json Ana 31 Rome"
    words = [
        sys.executable,
        "-c",
        EVERY_STEP,
        "generate",
        prompt,
        "-m",
        model,
        "--seed",
        "3",
        "--entropy-bound",
        "0.001",
    ]
    with Screen(words, environment(home), COLUMNS, 6) as screen:
        screen.finish()
    replayed = pyte.Screen(COLUMNS, 6)
    stream = pyte.ByteStream(replayed)
    for written in re.split(rb"(?<=\x1b\[\?2026l)", screen.raw):
        stream.feed(written)
        if any("settled" in line for line in replayed.display):
            yield picture(replayed, f'$ dgemma generate "{prompt}" --entropy-bound 0.001')
    yield picture(replayed, f'$ dgemma generate "{prompt}" --entropy-bound 0.001')


def animation(pictures: list[Image.Image]) -> None:
    """A GIF of the canvas, and its most telling frame."""
    pace = [250] * (len(pictures) - 1) + [2500]
    small = [one.quantize(32) for one in pictures]
    small[0].save(IMAGES / "canvas.gif", save_all=True, append_images=small[1:], duration=pace, loop=0, optimize=True)
    pictures[len(pictures) // 4].save(IMAGES / "canvas.png", optimize=True)


def conversation(model: str, home: Path) -> Iterator[tuple[str, Image.Image]]:
    """The chat after a few turns."""
    with Screen(
        [sys.executable, "-m", "dgemma", "chat", "-m", model, "--seed", "3"], environment(home), COLUMNS, ROWS
    ) as screen:
        screen.until(">>>")
        for line in ("add 482+1977", "json Tom 45 Oslo", "/regen 4", "/undo", "reverse stream", "/stats"):
            before = screen.raw
            screen.send(line + "\n")
            screen.until(lambda s, before=before: len(s.raw) > len(before) + 20 and s.text.endswith(">>>"))
            time.sleep(0.2)
        yield "chat.png", picture(screen.screen, "$ dgemma chat")
        screen.send("/exit\n")
        screen.finish()


def picture(screen: pyte.Screen, title: str) -> Image.Image:
    """The screen as an image, under a line that names the command."""
    fonts = {False: ImageFont.truetype(f"{FONTS}.ttf", SIZE), True: ImageFont.truetype(f"{FONTS}-Bold.ttf", SIZE)}
    wide, high = int(fonts[False].getlength("M")), SIZE + 6
    image = Image.new("RGB", (screen.columns * wide + 2 * MARGIN, (screen.lines + 1) * high + 3 * MARGIN), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, image.width, high + MARGIN), fill=FRAME)
    draw.text((MARGIN, MARGIN // 2), title, font=fonts[True], fill=INK)
    for row in range(screen.lines):
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            place = (MARGIN + column * wide, 2 * MARGIN + (row + 1) * high)
            draw.text(place, cell.data, font=fonts[cell.bold], fill=MUTED if cell.blink else INK)
            if cell.underscore:
                draw.line((place[0], place[1] + SIZE + 3, place[0] + wide, place[1] + SIZE + 3), fill=INK)
    return image


if __name__ == "__main__":
    main()
