"""The exact request for each service."""

from __future__ import annotations

import json
from dataclasses import replace

from node.notices.destination import Destination, Shape
from node.notices.notice import MAX_TEXT_CHARS, MAX_TITLE_CHARS, Notice
from node.notices.shapes import MAX_BODY_BYTES, request_of

NOTICE = Notice(
    kind="alarm",
    event="alarm_raised",
    source="words",
    title="words: ALARM clipped",
    text="At step 5: a bound acts on half of the tokens.",
    at_ms=1_764_547_200_250,
    is_urgent=True,
    fields={"alarm": "clipped", "step": 5, "measured": 0.5},
)
HOSTILE = replace(NOTICE, title="s: <!channel> @everyone", text="#1 & [a](https://x.example) *b* _c_ `d` <@1> | \\")
DISCORD_CHARS, NTFY_BYTES = 2000, 4096


def sent(notice: Notice, shape: Shape, url: str = "https://example.org/hook") -> tuple[str, object]:
    request = request_of(notice, Destination(url=url, shape=shape))
    return request.url, json.loads(request.body)


def test_json() -> None:
    assert sent(NOTICE, "json") == (
        "https://example.org/hook",
        {
            "source": "words",
            "kind": "alarm",
            "event": "alarm_raised",
            "title": "words: ALARM clipped",
            "text": "At step 5: a bound acts on half of the tokens.",
            "urgent": True,
            "at": "2025-12-01T00:00:00.250+00:00",
            "fields": {"alarm": "clipped", "step": 5, "measured": 0.5},
        },
    )


def test_ntfy() -> None:
    """The topic moves from the path into the body, which is how ntfy takes JSON."""
    url, value = sent(NOTICE, "ntfy", "https://ntfy.sh/my-topic")
    assert url == "https://ntfy.sh/"
    assert value == {
        "topic": "my-topic",
        "title": "words: ALARM clipped",
        "message": "At step 5: a bound acts on half of the tokens.",
        "priority": 4,
        "tags": ["warning"],
    }
    url, value = sent(replace(NOTICE, is_urgent=False, text=""), "ntfy", "https://u:p@ntfy.sh:444/my-topic/?auth=x")
    assert url == "https://u:p@ntfy.sh:444/?auth=x"
    assert value == {
        "topic": "my-topic",
        "title": "words: ALARM clipped",
        "message": "words: ALARM clipped",
        "priority": 3,
        "tags": [],
    }


def test_slack() -> None:
    assert sent(HOSTILE, "slack")[1] == {
        "text": "s: &lt;!channel&gt; @everyone\n#1 &amp; [a](https://x.example) *b* _c_ `d` &lt;@1&gt; | \\",
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def test_discord() -> None:
    assert sent(HOSTILE, "discord")[1] == {
        "content": "**s: \\<!channel\\> \\@everyone**\n"
        "\\#1 & \\[a\\](https://x.example) \\*b\\* \\_c\\_ \\`d\\` \\<\\@1\\> \\| \\\\",
        "flags": 4,
        "allowed_mentions": {"parse": []},
    }


def test_the_longest_notice_fits_everywhere() -> None:
    for character in ("*", "\N{GRINNING FACE}"):
        longest = replace(NOTICE, title=character * MAX_TITLE_CHARS, text=character * MAX_TEXT_CHARS)
        discord, ntfy = sent(longest, "discord")[1], sent(longest, "ntfy", "https://ntfy.sh/t")[1]
        assert isinstance(discord, dict)
        assert isinstance(ntfy, dict)
        assert len(discord["content"]) <= DISCORD_CHARS
        assert len(ntfy["message"].encode()) <= NTFY_BYTES


def test_too_many_fields_are_left_out() -> None:
    many = replace(NOTICE, fields={f"field_{number}": "x" * MAX_TEXT_CHARS for number in range(100)})
    request = request_of(many, Destination(url="https://example.org", shape="json"))
    assert len(request.body) <= MAX_BODY_BYTES
    assert json.loads(request.body)["fields"] == {}
    assert json.loads(request.body)["title"] == NOTICE.title


def test_text_without_an_encoding_is_still_sent() -> None:
    assert b"?" in request_of(replace(NOTICE, text="\udcff"), Destination(url="https://e.org", shape="json")).body
