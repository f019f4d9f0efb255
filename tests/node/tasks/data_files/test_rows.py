"""Find fields by name, also inside others; name the existing fields when one is missing."""

from __future__ import annotations

from typing import Any

import pytest

from node.tasks.data_files.rows import MAX_NAMES_TOLD, MISSING, BadRow, Row, kind_of, names_text, prefixes


def row(fields: dict[str, Any], *more: str) -> Row:
    return Row(number=1, fields=fields, names=(*fields, *more))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", {"b": {"c": 1}}),
        ("a.b", "the field of that name comes first"),
        ("a.b.c", 1),
        ("d.e", 2),
        ("d.e.f", MISSING),
        ("a.x", MISSING),
        ("x", MISSING),
        ("none", None),
    ],
)
def test_a_name_is_a_field_or_a_way_into_one(name: str, value: object) -> None:
    fields = {"a": {"b": {"c": 1}}, "a.b": "the field of that name comes first", "d": {"e": 2}, "none": None}
    assert row(fields).get(name) == value


def test_a_name_is_looked_for_in_few_fields() -> None:
    assert prefixes("a.b.c") == ["a.b.c", "a.b", "a"]


@pytest.mark.parametrize(
    ("name", "says", "fix"),
    [
        ("anwser", "has no field `anwser` (did you mean `answer`?); its fields are `answer`, `extra`, `note`", "as in"),
        ("extra.final", "has no field `extra.final`, because `extra` is text, not an object", ""),
        ("zzz", "has no field `zzz`; its fields are `answer`, `extra`, `note`", "with answer="),
        ("note", "`note` is empty", ""),
    ],
)
def test_a_missing_field_is_told_with_what_is_there(name: str, says: str, fix: str) -> None:
    with pytest.raises(BadRow) as caught:
        row({"answer": 1, "extra": "{}"}, "note").require(name, "answer")
    assert str(caught.value) == says
    assert fix in caught.value.fix


def test_of_many_fields_the_first_are_told() -> None:
    told = names_text([f"column{number}" for number in range(MAX_NAMES_TOLD + 7)])
    assert told.endswith("`column19` and 7 more")


def test_kinds_of_values_have_names() -> None:
    values = [None, True, "a", 1, 1.5, {}, []]
    words = ["null", "true or false", "text", "a number", "a number", "an object", "a list"]
    assert [kind_of(value) for value in values] == words


@pytest.mark.parametrize(
    ("names", "key", "hint"),
    [
        (("id", "problem", "x"), "prompt", "problem"),
        (("id", "reward_model.ground_truth"), "answer", "reward_model.ground_truth"),
        (("question", "prompts"), "prompt", "prompts"),
    ],
)
def test_what_a_field_is_usually_called_is_a_hint(names: tuple[str, ...], key: str, hint: str) -> None:
    with pytest.raises(BadRow) as caught:
        row({}, *names).require(key, key)
    assert f"has no field `{key}` (did you mean `{hint}`?)" in str(caught.value)
    assert caught.value.fix == f"Name the field in the spec, as in {key}={hint}, or correct the row"
