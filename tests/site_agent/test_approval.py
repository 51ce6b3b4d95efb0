"""What a site is shown before it approves a federation, line by line."""

from data.agreement import Member
from site_agent.approval import agreed_samples


def test_the_samples_of_a_site_are_the_agreed_ones_or_any() -> None:
    assert agreed_samples(Member("north", "key", 300)) == "north at most 300"
    assert agreed_samples(Member("north", "key")) == "north any"
