"""Between three sites with real SuperLink, gateway and TLS: the rehearsal's bits, whatever is asked or lost."""

from running_federation import RUNNING_FEDERATION, TRAINED, rehearsed

from deploy.local_federation import LocalFederation

pytestmark = RUNNING_FEDERATION


def test_a_run_has_the_rehearsals_hash(federation: LocalFederation) -> None:
    words = [*TRAINED, "method=fedshift+fedbn", "rounds=2"]
    trained = federation.run(words, "trained")
    assert trained["hash"] == rehearsed(federation, words, "trained-rehearsal")
