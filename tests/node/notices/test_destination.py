"""Where notices go, and that the secret in the URL is shown nowhere."""

from __future__ import annotations

import pytest

from node.config.common import NoticeShape
from node.config.swarm_config import LearnerNotifySection
from node.notices.destination import Destination, destination_of
from node.runtime.errors import UsageError

DISCORD = "https://discord.com/api/webhooks/123456/Sec-ret_token"


def to(url: str, shape: NoticeShape = "auto") -> Destination:
    found = destination_of(LearnerNotifySection(url=url, shape=shape), {})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("url", "shape"),
    [
        ("https://ntfy.sh/my-topic", "ntfy"),
        ("https://ntfy.example.org/my-topic", "ntfy"),
        ("https://user:word@ntfy.sh/my-topic?x=1", "ntfy"),
        ("https://hooks.slack.com/services/T0/B0/xyz", "slack"),
        ("https://hooks.slack-gov.com/services/T0/B0/xyz", "slack"),
        (DISCORD, "discord"),
        ("https://canary.discord.com/api/webhooks/1/x", "discord"),
        (DISCORD + "/slack", "slack"),
        ("https://notdiscord.com/api/webhooks/1/x", "json"),
        ("http://127.0.0.1:8000/", "json"),
        ("http://[::1]:8000/hook", "json"),
    ],
)
def test_the_form_is_guessed_by_the_host(url: str, shape: str) -> None:
    assert to(url).shape == shape


def test_the_form_can_be_named() -> None:
    assert to("https://chat.example.org/hooks/x", "slack").shape == "slack"
    assert to("https://ntfy.sh/my-topic", "json").shape == "json"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (DISCORD, "https://discord.com/***"),
        ("https://user:pass-word@example.org:8443/a?key=b#c", "https://example.org:8443/***"),
        ("http://[::1]:80/x", "http://[::1]:80/***"),
    ],
)
def test_no_secret_is_shown(url: str, shown: str) -> None:
    assert to(url).shown == shown


def test_no_secret_stays_in_the_words_of_others() -> None:
    one = to("https://someone:pass%20word@example.org/api/webhooks/123456/Sec-ret_token?key=another-one")
    said = "no such hook: /api/webhooks/123456/Sec-ret_token (pass word, another-one), asked by someone"
    assert one.without_secret(said) == "no such hook: /api/***/***/*** (***, ***), asked by ***"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ntfy.sh/my-topic", "not the URL of a web server"),
        ("ftp://example.org/x", "not the URL of a web server"),
        ("https:///secret-path", "not the URL of a web server"),
        ("https://example.org:99999/secret", "not a URL"),
        ("https://[::1/secret", "not a URL"),
        ("https://example.org/sec ret", "characters that no URL has"),
        ("https://example.org/\N{SNOWMAN}secret", "characters that no URL has"),
        ("https://discord.com/***", "in place of its secret"),
        ("https://ntfy.sh/", "has no topic"),
        ("https://ntfy.sh/one/secret", "has no topic"),
    ],
)
def test_a_wrong_url_is_refused_and_not_repeated(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        to(url)
    assert str(refused.value).startswith("[notify] url ")
    assert "secret" not in str(refused.value).replace("its secret", "")


def test_the_url_may_come_from_the_environment() -> None:
    section = LearnerNotifySection(url_env="HOOK")
    found = destination_of(section, {"HOOK": f" {DISCORD}\n"})
    assert found is not None
    assert found.url == DISCORD
    with pytest.raises(UsageError, match="HOOK is not set"):
        destination_of(section, {})
    with pytest.raises(UsageError, match=r"\[notify\] url_env is not the URL"):
        destination_of(section, {"HOOK": "secret"})
    with pytest.raises(UsageError, match="both name the URL"):
        destination_of(LearnerNotifySection(url=DISCORD, url_env="HOOK"), {"HOOK": DISCORD})


def test_without_a_url_there_is_no_destination() -> None:
    assert destination_of(LearnerNotifySection(), {}) is None
