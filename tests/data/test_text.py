"""Text from elsewhere."""

import pytest

from data import SettingError
from data.text import is_whole, printable, sentence
from strategies.core.server import Diverged


def test_a_text_from_elsewhere_is_one_line_bounded_and_harmless():
    assert printable("é: 0.5 µm") == "é: 0.5 µm"
    assert printable("a\nb\x1b[31m\x00\ud800") == "a\\nb\\x1b[31m\\x00\\ud800"
    assert printable("x" * 10**7) == "x" * 1000 + "... (10000000 characters)"


def test_digits_of_other_scripts_are_no_whole_number():
    assert is_whole("10")
    for text in ("\uff11\uff10", "\u0661", "1\uff10"):
        assert not is_whole(text) and text.isdecimal()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SettingError("alpha", 0, "must be\npositive"), "alpha = 0: must be positive"),
        (Diverged(2, "no luck"), "diverged in round 2: no luck (a lower learning-rate may help)"),
        (RuntimeError("no luck"), "no luck"),
        (RuntimeError(), "RuntimeError: "),
        (KeyError("x"), "KeyError: 'x'"),
    ],
    ids=repr,
)
def test_an_error_s_class_is_named_where_its_words_are_no_sentence(error, words):
    assert sentence(error) == words
