"""docs/guides/flower.md: its tables are what comes of every pair of a method and a wrapper, a mod or a strategy."""

import runpy
from pathlib import Path

import pytest
from flower_grid import PlainNet
from flwr.serverapp.strategy import FedAvg

from client_app.variants import VARIANTS
from data import SettingError
from fedskew.flower.variants import WITHOUT_STRATEGY, variants_of
from server_app.methods import METHODS

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "flower_table.py"))
PAGE = (ROOT / "docs" / "guides" / "flower.md").read_text()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")


@pytest.mark.slow  # about 200 runs
@pytest.mark.parametrize("name", SCRIPT["TABLES"])
def test_the_table_is_what_comes_of_every_pair(name: str) -> None:
    table = SCRIPT["TABLES"][name]()
    assert SCRIPT["written"](PAGE, name, table) == PAGE, "scripts/flower_table.py writes it"
    assert table in PAGE


def test_an_update_that_nobody_clips_is_not_said_to_be_protected() -> None:
    arguments = (FedAvg(fraction_evaluate=0.0), ["iwds"], [], PlainNet)
    assert SCRIPT["outcome"](*arguments, False) == "works"
    with pytest.raises(AssertionError, match="moved further than a client may"):
        SCRIPT["outcome"](*arguments, True)


def test_a_reason_without_a_remedy_is_not_called_a_refusal() -> None:
    failed = SCRIPT["failed"]
    assert failed("leave out the method or the mod").startswith("refused")
    assert failed("float division by zero").startswith("flwr fails")
    with pytest.raises(AssertionError):
        failed("'NoneType' object is not callable")


def test_every_variant_is_in_the_tables() -> None:
    """Of each variant some method is tried under every wrapper and mod; scripts/flower_table.py lists them."""
    tried = {variant for name in SCRIPT["VARIANTS"] for variant in METHODS[name].variants}
    assert tried | set(WITHOUT_STRATEGY) == set(VARIANTS), (
        "add a method to VARIANTS in scripts/flower_table.py and run it"
    )


@pytest.mark.parametrize("name", ["feddyn", "feddisco", *WITHOUT_STRATEGY])
def test_a_client_half_without_its_server_half_is_refused(name: str) -> None:
    with pytest.raises(SettingError) as refused:
        variants_of([name])
    assert refused.value.key == "variants"
    assert "needs a server half" in refused.value.rule
    assert [variant.name for variant in variants_of(["moon"])] == ["model-contrast"]
