"""The row's schema, and what a row refuses to carry."""

import json
from pathlib import Path

import pytest

from dgemma.bench.row import CONVERGENCE, Row, columns, read_rows
from dgemma.bench.schema import FILE, schema, text
from dgemma.errors import UsageError
from tests.bench.rows import make_row

jsonschema = pytest.importorskip("jsonschema")


def valid(value: dict) -> bool:
    return jsonschema.Draft202012Validator(schema()).is_valid(json.loads(json.dumps(value)))


def test_the_file_is_the_schema_of_the_dataclass() -> None:
    assert FILE.read_text() == text(), "run: python -m dgemma.bench.schema"
    jsonschema.Draft202012Validator.check_schema(schema())


@pytest.mark.parametrize("weights", ["trained", "random"])
def test_rows_are_valid(weights: str) -> None:
    row = make_row(weights=weights)
    assert valid(row.as_dict())
    assert Row.from_dict(json.loads(row.dump())) == row


@pytest.mark.parametrize("change", [{"e2e_tok_s": "fast"}, {"label": "published"}, {"samples": [{}]}, {"extra": 1}])
def test_the_schema_refuses(change: dict) -> None:
    assert not valid(make_row().as_dict() | change)


@pytest.mark.parametrize("name", CONVERGENCE)
def test_random_weights_never_carry_what_depends_on_convergence(name: str) -> None:
    with pytest.raises(UsageError, match="random weights"):
        make_row(weights="random", **{name: 1})
    assert not valid(make_row(weights="random").as_dict() | {name: 1})
    assert getattr(make_row(weights="random"), name) is None


def test_column_order_is_field_order() -> None:
    assert columns()[:5] == ["schema", "label", "weights", "standard", "engine"]
    assert not {"samples", "environment"} & set(columns())


@pytest.mark.parametrize("raw", ['{"schema": 2}', '{"schema": 1, "engine": "x"}', "nonsense", '[{"schema": 1}]'])
def test_foreign_files(tmp_path: Path, raw: str) -> None:
    (tmp_path / "rows.jsonl").write_text(raw)
    with pytest.raises(UsageError):
        read_rows(tmp_path / "rows.jsonl")
