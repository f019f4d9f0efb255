"""Chat templates that fail, hide what they should show, or need more than they get."""

from __future__ import annotations

import pytest

from node.tasks.api.interface import ChatMessage, TaskError
from node.tasks.ways.chat_template import SAID, ChatTemplate
from tests.support.chat_templates import ADD, MISTRAL

ASK = ChatMessage(role="user", content="Hi")
SYSTEM = ChatMessage(role="system", content="Be kind.")

WANTS_A_CALL = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('no call') }}{% endif %}"
    "{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %};"
    "{% endfor %}"
)


def template(text: str, **variables: object) -> ChatTemplate:
    return ChatTemplate(text=text, where="model", variables=variables)


def test_the_operators_variables_reach_the_template() -> None:
    shown = template("{{ messages[0].content }}{{ enable_thinking }}{{ style.tone }}",
                     enable_thinking=False, style={"tone": "dry"})  # fmt: skip
    shown.require_variables()
    assert shown.render([ASK]) == "HiFalsedry"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ enable_thinking }}", r"does not read 'enable_thinkin' \(did you mean 'enable_thinking'\?\)"),
        ("{{ messages }}", r"does not read 'enable_thinkin'\. Correct \[model\]"),
        ("{% for", "its chat template is invalid"),
    ],
)
def test_a_variable_that_no_template_reads_is_a_mistake(text: str, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        template(text, enable_thinkin=False).require_variables()


def test_json_as_transformers_writes_it() -> None:
    text = "{{ {'b': 'ß<', 'a': 1} | tojson(sort_keys=true, separators=(',', ':')) }}{{ 'ß' | tojson(true) }}"
    assert template(text).render([ASK]) == '{"a":1,"b":"ß<"}"\\u00df"'


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_message_that_is_not_shown_is_refused(role: str) -> None:
    hides = template("{% for m in messages if m.role != '" + role + "' %}{{ m.content }}{% endfor %}")
    with pytest.raises(TaskError, match=f"does not show messages of role {role}"):
        hides.prompt([SYSTEM, ASK])


def test_a_message_that_is_written_otherwise_is_shown() -> None:
    shown = template("{% for m in messages %}{{ m.content | tojson }}{% endfor %}")
    assert shown.prompt([ChatMessage(role="user", content='say "hi"')]) == '"say \\"hi\\""'


def test_tools_that_are_not_shown_are_refused() -> None:
    with pytest.raises(TaskError, match=r"does not show tools \(add\)"):
        template("{% for m in messages %}{{ m.content }}{% endfor %}").prompt([ASK], [ADD])


def test_only_a_template_that_takes_the_rest_is_said_to_refuse_the_system_role() -> None:
    with pytest.raises(TaskError, match="fails on messages of role system"):
        template(MISTRAL).render([SYSTEM, ASK])
    with pytest.raises(TaskError, match="fails on a prompt: ZeroDivisionError"):
        template("{{ 1 / 0 }}").render([SYSTEM, ASK])


def test_what_follows_a_call_begins_inside_it() -> None:
    wants, answer = template(WANTS_A_CALL), ChatMessage(role="tool", content="5", name="add")
    with pytest.raises(TaskError, match="no call"):
        wants.after_said([ASK], [answer], [ADD])
    after = wants.after_call([ASK], [answer], [ADD])
    assert after == '"}};tool:5;'
    assert SAID not in after


def test_an_answer_may_repeat_what_stands_for_the_policys_words() -> None:
    shown = template("{% for m in messages %}{{ m.content }};{% endfor %}")
    answers = [ChatMessage(role="user", content=f"so {SAID}, {SAID}_"), ChatMessage(role="user", content="?")]
    assert shown.after_said([ASK], answers, []) == f";so {SAID}, {SAID}_;?;"


def test_a_parameter_schema_may_be_text() -> None:
    shown = template("{{ tools | tojson }}")
    as_text = type(ADD)(name="add", description="", parameters='{"type": "object"}')
    assert '"parameters": {"type": "object"}' in shown.render([ASK], [as_text])
