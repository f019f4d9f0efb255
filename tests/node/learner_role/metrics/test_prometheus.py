"""Read the metrics of a learner as a scrape does."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node.learner_role.metrics.board import Board
from node.learner_role.metrics.prometheus import serve, split_address
from node.runtime.errors import RunError


def scraped(port: int) -> dict[str, float]:
    """Samples by name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
        text = answer.read().decode()
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_reads_what_is_on_the_board_now() -> None:
    board = Board()
    with serve("127.0.0.1:0", board) as port:
        board.set("entropy", 0.5)
        board.set("kl_at_lag", 0.1, lag=3)
        board.add("rollouts_refused", 2, rule="stale")
        for seconds in (0.5, 2.0, 5000.0):
            board.observe("train_seconds", seconds)
        found = scraped(port)
        board.set("entropy", 0.25)
        again = scraped(port)
    assert found["volery_entropy[]"] == 0.5
    assert again["volery_entropy[]"] == 0.25
    assert found["volery_kl_at_lag[('lag', '3')]"] == 0.1
    assert found["volery_rollouts_refused_total[('rule', 'stale')]"] == 2
    buckets = {name: value for name, value in found.items() if name.startswith("volery_train_seconds_bucket")}
    assert buckets["volery_train_seconds_bucket[('le', '1.0')]"] == 1
    assert buckets["volery_train_seconds_bucket[('le', '3.0')]"] == 2
    assert buckets["volery_train_seconds_bucket[('le', '+Inf')]"] == 3
    assert found["volery_train_seconds_sum[]"] == 5002.5


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(RunError, match=f"cannot listen on {address}.*choose another port"),
            serve(address, Board()),
        ):
            pass


def test_it_listens_on_this_machine_unless_told_otherwise() -> None:
    assert split_address("9464") == split_address(":9464") == ("127.0.0.1", 9464)
    assert split_address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert split_address("[::1]:80") == ("::1", 80)


@pytest.mark.parametrize("address", ["", "host", "host:", "host:http", "host:65536", "::1:80", "host:-1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(address)
