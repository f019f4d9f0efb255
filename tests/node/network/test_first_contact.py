"""Say that the learner was not reached, without a page of addresses."""

from __future__ import annotations

from node.network.first_contact import shown_addresses


def test_a_message_shows_the_first_addresses_and_counts_the_others() -> None:
    addresses = [f"/ip4/192.0.2.{number}/tcp/4001" for number in range(1, 9)]
    assert shown_addresses(addresses[:1]) == addresses[0]
    assert shown_addresses(addresses[:2]) == f"{addresses[0]}, {addresses[1]}"
    assert shown_addresses(addresses[:3]) == f"{addresses[0]}, {addresses[1]} and 1 other"
    assert shown_addresses(addresses) == f"{addresses[0]}, {addresses[1]} and 6 others"
