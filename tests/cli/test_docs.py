"""The committed reference is the one that the command line gives."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_reference_is_current() -> None:
    page = runpy.run_path(str(DOCS / "make_cli.py"))["text"]()
    assert page == (DOCS / "cli.md").read_text(encoding="utf-8"), "run: python docs/make_cli.py"


def test_the_bug_report_asks_for_the_doctor() -> None:
    assert "dgemma doctor --json" in (DOCS.parent / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
