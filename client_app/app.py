"""The ClientApp: reads flwr's messages and returns the replies of clients.

A message names the clients that this node runs, so a model travels once a node however many clients there are.
"""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from client_app.handlers import ClientFailure, ClientReply, ClientRequest, ExpectedState, answers
from client_app.messages import pack, unpack
from client_app.state import State

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train every client that the message names for one round."""
    return reply(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Measure every deployed model of the message on the test set of every client that it names."""
    return reply(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer a question about every client that the message names."""
    return reply(message, context)


def reply(message: Message, context: Context) -> Message:
    """Play every client of the message and return their records, named `CLIENT/RECORD`; an error where one failed."""
    task, content = message.content.config_records["task"], RecordDict()
    request = ClientRequest(
        message.metadata.message_type,
        task,
        states(message),
        str(task["assignment"]),
        context.node_config,
    )
    for number, answer in answers(request, known_of(task)):
        if isinstance(answer, ClientFailure):
            content[f"{number}/error"] = ConfigRecord(
                {
                    "reason": answer.reason,
                    "kind": answer.kind,
                    "permission": answer.permission,
                    "number": answer.number,
                }
            )
        else:
            for name, record in records_of(answer).items():
                content[f"{number}/{name}"] = record
    return Message(content, reply_to=message)


def states(message: Message) -> dict[str, State]:
    """Return the message's states."""
    return {name: unpack(record) for name, record in message.content.array_records.items()}


def known_of(task: ConfigRecord) -> dict[int, ExpectedState]:
    """Return the message's clients, each with what the server knows of it."""
    columns = [task[key] for key in ("clients", "memory", "memory-digests", "data-digests")]
    assert all(isinstance(column, list) for column in columns)
    return {
        int(n): ExpectedState(int(round), str(m), str(d))
        for n, round, m, d in zip(*columns, strict=True)
    }


def records_of(answer: ClientReply) -> dict[str, ArrayRecord | ConfigRecord | MetricRecord]:
    """Return an answer as flwr's records."""
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
