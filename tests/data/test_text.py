"""Text from elsewhere."""

from data.text import printable


def test_a_text_from_elsewhere_is_one_line_bounded_and_harmless() -> None:
    assert printable("é: 0.5 µm") == "é: 0.5 µm"
    assert printable("a\nb\x1b[31m\x00\ud800") == "a\\nb\\x1b[31m\\x00\\ud800"
    assert printable("x" * 10**7) == "x" * 1000 + "... (10000000 characters)"
