"""The README names flags and exit codes that exist."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dgemma import errors
from dgemma.cli import app

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
REFERENCE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
HELP = CliRunner().invoke(app, ["generate", "--help"]).stdout
REFERENCE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`[^`]*?(--[a-z][a-z-]+)", README))))
def test_flag_exists(flag: str) -> None:
    assert flag in REFERENCE


def test_every_flag_is_documented() -> None:
    own = set(re.findall(r"--[a-z][a-z-]+", HELP)) - {
        "--help",
        "--prompt",
        "--file",
        "--system",
        "--model",
        "--max-tokens",
    }
    undocumented = own - set(re.findall(r"--[a-z][a-z-]+", README))
    assert undocumented <= {"--no-think", "--quiet", "--verbose"}


def test_exit_codes() -> None:
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)}
    assert all(f"| {code} | " in README for code in codes)
