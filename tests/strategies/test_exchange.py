"""What clients say beside their numbers: bounded and escaped before it comes into a record."""

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from strategies.exchange import Exchange

LONG = "\x1b[2J" * 10**6


def test_nothing_that_a_client_says_takes_more_than_a_line() -> None:
    exchange = Exchange([0, 1, 2])
    exchange.sort(
        RecordDict(
            {
                "0/error": ConfigRecord({"reason": LONG}),
                "1/metrics": ConfigRecord({LONG: LONG}),
                "2/model": ArrayRecord(),
                "2/worker": ConfigRecord({"process": 3, "device": LONG, LONG: LONG}),
            }
        ),
        1,
        {0, 1, 2},
    )
    exchange.refuse(2, f"model: {LONG} is not expected")
    assert sorted(exchange.failures) == [0, 1, 2]
    for reason in exchange.failures.values():
        assert reason.isprintable() and len(reason) < 5000


def test_what_is_recorded_of_a_clients_process_is_bounded() -> None:
    exchange = Exchange([0])
    words = ConfigRecord({"process": 3, "device": LONG, LONG: LONG, "bytes": b"x"})
    exchange.sort(RecordDict({"0/worker": words}), 1, {0})
    worker = exchange.answers[0].worker
    assert set(worker) == {"process", "device"} and worker["process"] == 3
    assert len(str(worker["device"])) < 5000
