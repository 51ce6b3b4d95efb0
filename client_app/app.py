"""The ClientApp: reads flwr's messages and returns the replies of clients.

Messages are for the action `clients` (`train.clients`). Each names the clients that this node runs, so a model travels
once a node however many clients there are.
"""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_app.handlers import ClientFailure, ClientReply, ClientRequest, ExpectedState, answers
from client_app.local_site import OWN_DATA, QUESTION, RUN_SIGNATURE, installed
from client_app.messages import ACTION, kind_of, pack, unpack
from client_app.state import State
from data import DataError, SettingError

app = ClientApp()


@app.train(ACTION)
@app.evaluate(ACTION)
@app.query(ACTION)
def reply(message: Message, context: Context) -> Message:
    """Train, measure or ask every client that the message names, and return their records, named `CLIENT/RECORD`.

    A client that failed has the record error.

    Raises SettingError where the node has data of its own, which these messages would leave aside.
    """
    if OWN_DATA in context.node_config and not installed():
        rule = "is in this node's configuration, and FedSkew's own app does not read it"
        remedy = "run examples/stock_supernodes, or an app of your own with fedskew.flower"
        raise SettingError(OWN_DATA, context.node_config[OWN_DATA], rule, remedy=remedy)
    task = message.content.config_records["task"]
    request = ClientRequest(
        kind=kind_of(message),
        task=task,
        states=states(message),
        run_spec=str(task["assignment"]),
        signature=str(context.run_config.get(RUN_SIGNATURE, "")),
        readiness_only=bool(context.run_config.get(QUESTION)),
    )
    content = RecordDict()
    for number, answer in answers(request, expected_states(task)):
        for name, record in records_of(answer).items():
            content[f"{number}/{name}"] = record
    return Message(content, reply_to=message)


def states(message: Message) -> dict[str, State]:
    """Return the message's states."""
    return {name: unpack(record) for name, record in message.content.array_records.items()}


def expected_states(task: ConfigRecord) -> dict[int, ExpectedState]:
    """Return the message's clients, each with the state in which the server expects it.

    Raises DataError for fields that are no lists of one length.
    """
    # One list per field, in the same order of clients.
    keys = ("clients", "memory", "memory-digests", "data-digests")
    columns = [column for column in map(task.get, keys) if isinstance(column, list)]
    if len(columns) != len(keys) or len({len(column) for column in columns}) != 1:
        rule = "must be lists with an entry for each client"
        raise DataError(rule, where=f"{', '.join(keys)} of a message")
    expected = {}
    for client, round, memory_digest, data_digest in zip(*columns, strict=True):
        expected[int(client)] = ExpectedState(
            round=int(round),
            memory=str(memory_digest),
            data=str(data_digest),
        )
    return expected


def records_of(
    answer: ClientReply | ClientFailure,
) -> dict[str, ArrayRecord | ConfigRecord | MetricRecord]:
    """Return an answer as flwr's records."""
    if isinstance(answer, ClientFailure):
        error = ConfigRecord(
            {
                "reason": answer.reason,
                "kind": answer.kind,
                "permission": answer.permission,
                "number": answer.number,
            }
        )
        return {"error": error}
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {}
    for name, state in answer.states.items():
        records[name] = pack(state)
    if answer.metrics:
        records["metrics"] = MetricRecord(dict(answer.metrics))
    if answer.digests:
        records["digests"] = ConfigRecord(dict(answer.digests))
    if answer.worker:
        records["worker"] = ConfigRecord(dict(answer.worker))
    return records
