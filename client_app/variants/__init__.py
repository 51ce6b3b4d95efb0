"""Local variants: one file each, known by being here."""

import sys

from client_app.client import Variant, parts_in

VARIANTS: dict[str, type[Variant]] = parts_in(sys.modules[__name__], Variant)
