"""A RabbitMQ is moved to Leveret by `leveret migrate`, and back; what is there is compared with what was.

Usage: migrate.py PROGRAM DATA_DIR RABBIT_PORT RABBIT_HTTP NODE_PORT NODE_HTTP. The last line is `N passed, N failed`.
"""

import base64
import json
import os
import pty
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from decimal import Decimal
from urllib.parse import quote

import pika

import checks

PROGRAM, DATA_DIR = sys.argv[1:3]
RABBIT_PORT, RABBIT_HTTP, NODE_PORT, NODE_HTTP = map(int, sys.argv[3:7])
USER, PASSWORD = "mover", "p@ss/w%rd:?#"
VHOSTS = ["/", "v w"]
LISTS = [
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "global_parameters",
    "policies",
    "parameters",
    "exchanges",
    "queues",
    "bindings",
]
BIG = bytes(range(256)) * 4096
SMALL = 3000
HEADERS = {
    "text": "\u00e4",
    "int": -5,
    "big": 1 << 40,
    "bool": True,
    "none": None,
    "list": [1, "x", [True]],
    "table": {"inside": {"deeper": Decimal("1.5")}},
    "bytes": b"\x00\xff",
    "CC": ["small", "nowhere"],
}

# What messages of many have in turn, beside a header of each type; a priority would change their order.
KINDS = [(name, value) for name, value in HEADERS.items() if name != "CC"]
PROPERTIES = {
    "content_type": "text/plain",
    "content_encoding": "gzip",
    "correlation_id": "c",
    "reply_to": "r",
    "expiration": "86400000",
    "message_id": "m",
    "timestamp": 77,
    "type": "k",
    "user_id": USER,
    "app_id": "a",
    "cluster_id": "l",
}
ALONE = list(PROPERTIES.items())


def numbered(at):
    """The properties of message `at` of many."""
    (name, value), alone = KINDS[at % len(KINDS)], ALONE[at % len(ALONE)]
    chosen = PROPERTIES if at % 50 == 0 else dict([alone])
    return pika.BasicProperties(delivery_mode=2, headers={"n": at, name: value}, **chosen)


def api(port, method, path, body=None, login=(USER, PASSWORD)):
    pair = base64.b64encode(":".join(login).encode()).decode()
    headers = {"Authorization": f"Basic {pair}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from error


def connect(port, vhost="/", user=USER, password=PASSWORD):
    credentials = pika.PlainCredentials(user, password)
    parameters = pika.ConnectionParameters("127.0.0.1", port, vhost, credentials, heartbeat=0)
    return pika.BlockingConnection(parameters)


def migrate(from_ports, to_ports, *words, status=0):
    login = f"{USER}:{quote(PASSWORD, safe='')}"
    command = [PROGRAM, "migrate", "--from-api", f"http://{login}@127.0.0.1:{from_ports[1]}"]
    command += ["--from", f"amqp://{login}@127.0.0.1:{from_ports[0]}"]
    if to_ports:
        command += ["--to-api", f"http://{login}@127.0.0.1:{to_ports[1]}"]
        command += ["--to", f"amqp://{login}@127.0.0.1:{to_ports[0]}"]
    command += words
    done = subprocess.run(command, env={"LEVERET_DATA_DIR": DATA_DIR}, capture_output=True, text=True, timeout=120)
    print(done.stdout, done.stderr, flush=True)
    assert done.returncode == status, f"status {done.returncode}"
    for secret in [PASSWORD, quote(PASSWORD, safe="")]:
        assert secret not in done.stdout + done.stderr
    return done.stdout, done.stderr


RABBIT, NODE = (RABBIT_PORT, RABBIT_HTTP), (NODE_PORT, NODE_HTTP)
VERSION = api(RABBIT_HTTP, "GET", "overview", login=("guest", "guest"))["rabbitmq_version"]
IS_4 = VERSION.startswith("4.")
MANY = 300_000 if IS_4 else 30_000


def declare():
    """Everything that definitions know, in RabbitMQ."""
    guest = ("guest", "guest")
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    user = {"password": PASSWORD, "tags": "administrator,impersonator"}
    api(RABBIT_HTTP, "PUT", f"users/{USER}", user, guest)
    api(RABBIT_HTTP, "PUT", "vhosts/v%20w", {"description": "second", "tags": "a,b"}, guest)
    for vhost in VHOSTS:
        api(RABBIT_HTTP, "PUT", f"permissions/{quote(vhost, safe='')}/{USER}", everything, guest)
    put = lambda path, body: api(RABBIT_HTTP, "PUT", path, body)
    put("users/bob", {"password": "bobs", "tags": "management"})
    put("users/hashed", {"password_hash": "", "tags": ""})
    put("permissions/%2F/bob", {"configure": "^bob", "write": "^(bob|orders)", "read": ".*"})
    put("user-limits/bob/max-channels", {"value": 7})
    put("vhost-limits/v%20w/max-queues", {"value": 50})
    put("policies/%2F/p", {"pattern": "^limited", "definition": {"max-length": 1000}, "priority": 3, "apply-to": "queues"})
    put("operator-policies/%2F/o", {"pattern": "^limited", "definition": {"expires": 3600000}, "apply-to": "queues"})
    put("global-parameters/own", {"value": {"a": [1]}})
    put("exchanges/%2F/orders", {"type": "topic", "durable": True})
    put("topic-permissions/%2F/bob", {"exchange": "orders", "write": "^eu", "read": ".*"})
    put("exchanges/%2F/inner", {"type": "headers", "durable": True, "internal": True, "arguments": {"alternate-exchange": "amq.fanout"}})
    queue = lambda vhost, name, **arguments: put(
        f"queues/{quote(vhost, safe='')}/{quote(name, safe='')}", {"durable": True, "arguments": arguments}
    )
    queue("/", "small")
    queue("/", "by priority", **{"x-max-priority": 5})
    queue("/", "limited", **{"x-message-ttl": 3600000})
    queue("/", "quorum", **{"x-queue-type": "quorum", "x-delivery-limit": 5})
    queue("/", "counted", **{"x-queue-type": "quorum"})
    queue("/", "stream", **{"x-queue-type": "stream"})
    queue("/", "dead")
    queue("/", "short", **{"x-dead-letter-exchange": "orders", "x-max-length": 1})
    queue("/", "kinds")
    queue("v w", "\u00e4 b")
    # RabbitMQ 4.3 has no transient queues.
    put("queues/%2F/going", {"durable": IS_4, "auto_delete": True})
    bind = lambda path, body: api(RABBIT_HTTP, "POST", f"bindings/%2F/e/{path}", body)
    bind("orders/q/kinds", {"routing_key": "eu.#", "arguments": {"x": 1}})
    bind("orders/q/dead", {"routing_key": "short"})
    bind("orders/e/inner", {"routing_key": "#"})
    bind("inner/q/kinds", {"arguments": {"x-match": "any", "region": "eu"}})
    bind("amq.topic/q/stream", {"routing_key": "log.#"})


def fill():
    with connect(RABBIT_PORT) as c:
        ch = c.channel()
        ch.confirm_delivery()
        send = lambda queue, body, **properties: ch.basic_publish(
            "", queue, body, pika.BasicProperties(**properties), mandatory=True
        )
        for priority in [1, 5, 3]:
            send("by priority", bytes([priority]), priority=priority, delivery_mode=2)
        every = pika.BasicProperties(
            "text/plain", "gzip", HEADERS, 2, 3, "c", "r", "86400000", "m", 77, "k", None, "a"
        )
        ch.basic_publish("orders", "eu.one", b"", every)
        send("kinds", BIG, user_id=USER)
        for body in [b"1", b"2"]:
            send("short", body)
        for at in range(20):
            send("going", str(at).encode())
            send("quorum", str(at).encode(), delivery_mode=2)
            send("limited", str(at).encode())
        send("counted", b"", delivery_mode=2, headers={"mine": 1})
        for _ in range(2):
            while not (method := ch.basic_get("counted")[0]):
                c.sleep(0.05)
            ch.basic_reject(method.delivery_tag, requeue=True)
        ch = c.channel()
        for at in range(SMALL):
            ch.basic_publish("", "small", str(at).encode(), pika.BasicProperties(delivery_mode=2))
    with connect(RABBIT_PORT, "v w") as c:
        c.channel().basic_publish("", "\u00e4 b", b"there")


def messages_of(port, vhost, queue):
    """Without taking them: routing key, properties, body. What is not acked goes back to its place."""
    messages = []
    with connect(port, vhost) as c:
        ch = c.channel()
        while True:
            method, properties, body = ch.basic_get(queue)
            if method is None:
                return messages
            # Of quorum queues, which count.
            if properties.headers and "x-delivery-count" in properties.headers:
                del properties.headers["x-delivery-count"]
                properties.headers = properties.headers or None
            messages.append((method.routing_key, plain(properties), body))


def plain(properties):
    return sorted(vars(properties).items(), key=str)


def messages(ports, but=()):
    """All messages, by vhost and queue."""
    port, http = ports
    queues = api(http, "GET", "queues?columns=vhost,name")
    wanted = [(it["vhost"], it["name"]) for it in queues if it["name"] not in ("stream", *but)]
    return {at: messages_of(port, *at) for at in sorted(wanted)}


def definitions(http):
    """Without what is a broker's own, and in one order and form."""
    every = api(http, "GET", "definitions")
    # RabbitMQ leaves internal exchanges out of its definitions; 4.3 does not say so of the others, and has one of its own.
    own = [one for one in every["exchanges"] if not one["name"].startswith("amq.")]
    every["exchanges"] = [{"internal": False, **one} for one in own]
    names = {(one["vhost"], one["name"]) for one in every["exchanges"]}
    for one in api(http, "GET", "exchanges?columns=vhost,name,type,durable,auto_delete,internal,arguments"):
        is_own = one["internal"] and not one["name"].startswith("amq.")
        if is_own and (one["vhost"], one["name"]) not in names:
            every["exchanges"].append(one)
    every["global_parameters"] = [one for one in every["global_parameters"] if one["name"] == "own"]
    return {name: sorted(map(simple, every[name]), key=str) for name in LISTS}


def simple(entry):
    """One form for what versions write in several: what is empty may be missing."""
    entry = {key: value for key, value in entry.items() if value not in ({}, [])}
    if "durable" in entry and "internal" not in entry:
        # A queue, which has its type in its arguments as well.
        entry.pop("type", None)
        kept = {key: value for key, value in entry.pop("arguments", {}).items() if value != "classic"}
        entry["arguments"] = kept
    if "metadata" in entry:
        # A vhost, whose description and tags RabbitMQ 3.10 does not write.
        entry = {"name": entry["name"]}
    return dict(sorted(entry.items()))


def without_stream(every):
    is_kept = lambda one: "stream" not in (one.get("name"), one.get("destination"))
    return {name: list(filter(is_kept, entries)) for name, entries in every.items()}


def same(got, want):
    assert got.keys() == want.keys(), f"{got.keys()}\n{want.keys()}"
    for name in want:
        assert got[name] == want[name], f"{name}:\n{got[name]}\n{want[name]}"


SEEN = {}


def it_comes_along():
    declare()
    fill()
    SEEN["definitions"] = without_stream(definitions(RABBIT_HTTP))
    # RabbitMQ would put those of the quorum queue back in another order than they had.
    SEEN["messages"] = messages(RABBIT, but=["quorum", "counted"])
    properties = plain(pika.BasicProperties(delivery_mode=2))
    quorum = [("quorum", properties, str(at).encode()) for at in range(20)]
    SEEN["messages"]["/", "quorum"] = quorum
    mine = plain(pika.BasicProperties(delivery_mode=2, headers={"mine": 1}))
    SEEN["messages"]["/", "counted"] = [("counted", mine, b"")]
    counts = [len(them) for them in SEEN["messages"].values()]
    assert sum(counts) == SMALL + 3 + 2 + 2 + 60 + 1 + 1, counts
    told, errors = migrate(RABBIT, None)
    assert "a stream, whose messages cannot be taken out" in errors
    assert "queue 'stream' in vhost '/': a stream" in errors
    assert f"{sum(counts)} messages moved" in told


def definitions_are_the_same():
    same(definitions(NODE_HTTP), SEEN["definitions"])


def counts_of_deliveries_stay_behind():
    """RabbitMQ adds `x-delivery-count`, and 4.x `x-acquired-count`, to what it delivers again."""
    with connect(NODE_PORT) as c:
        _, properties, _ = c.channel().basic_get("counted")
    assert properties.headers == {"mine": 1}, properties.headers


def messages_are_the_same():
    same(messages(NODE), SEEN["messages"])


def users_log_in():
    connect(NODE_PORT, user="bob", password="bobs").close()
    assert api(NODE_HTTP, "GET", "whoami", login=("bob", "bobs"))["tags"] == ["management"]


def nothing_is_left():
    for (vhost, name), found in messages(RABBIT).items():
        assert found == [], f"{vhost} {name}: {found}"
    names = [it["name"] for it in api(NODE_HTTP, "GET", "exchanges")]
    assert not [name for name in names if name.startswith("leveret.")], names


def it_goes_back():
    """Into a RabbitMQ that has nothing but the user who does it."""
    put = lambda path, body: api(NODE_HTTP, "PUT", path, body)
    put("policies/%2F/ours", {"pattern": "^quorum", "definition": {"confirm-on": "ack"}})
    put("user-limits/bob/max-publish-rate", {"value": 1000000})
    for vhost in VHOSTS:
        api(RABBIT_HTTP, "DELETE", f"vhosts/{quote(vhost, safe='')}")
    for user in ["bob", "hashed", "guest"]:
        api(RABBIT_HTTP, "DELETE", f"users/{user}")
    told, errors = migrate(NODE, RABBIT)
    assert "left out: policy 'ours' of vhost '/': it has nothing but confirm-on" in errors
    assert "left out: user 'bob': its limit max-publish-rate" in errors


def definitions_are_there_again():
    same(definitions(RABBIT_HTTP), SEEN["definitions"])


def messages_are_there_again():
    same(messages(RABBIT), SEEN["messages"])


def users_log_in_there():
    connect(RABBIT_PORT, user="bob", password="bobs").close()
    assert api(RABBIT_HTTP, "GET", "whoami", login=("bob", "bobs"))["name"] == "bob"


def a_file_goes_back_too():
    """`ctl export_definitions --for rabbitmq`, and RabbitMQ takes the file."""
    command = [PROGRAM, "ctl", "-q", "export_definitions", "--for", "rabbitmq", "-"]
    done = subprocess.run(command, env={"LEVERET_DATA_DIR": DATA_DIR}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "left out: policy 'ours'" in done.stderr, done.stderr
    api(RABBIT_HTTP, "DELETE", "vhosts/v%20w")
    api(RABBIT_HTTP, "DELETE", "users/bob")
    api(RABBIT_HTTP, "POST", "definitions", json.loads(done.stdout))
    same(definitions(RABBIT_HTTP), SEEN["definitions"])
    connect(RABBIT_PORT, user="bob", password="bobs").close()


def everything_of_its_own():
    """What only Leveret knows is left out of a file, with a line for each; RabbitMQ takes the rest."""
    put = lambda path, body: api(NODE_HTTP, "PUT", path, body)
    unpadded = lambda length: base64.b64encode(bytes(length)).decode().rstrip("=")
    hashed = f"$argon2id$v=19$m=19456,t=2,p=1${unpadded(16)}${unpadded(32)}"
    put("users/argon", {"password_hash": hashed, "hashing_algorithm": "leveret_password_hashing_argon2id", "tags": ""})
    put("user-limits/argon/max-deliver-rate", {"value": 1000000})
    put("topic-permissions/%2F/argon", {"exchange": "nowhere", "write": "", "read": ""})
    put("vhost-limits/v%20w/max-publish-bytes-rate", {"value": 1000000000})
    mixed = {"confirm-on": "ack", "confirm-timeout": 1000, "max-length": 9}
    put("policies/%2F/mixed", {"pattern": "^none", "definition": mixed})
    arguments = {"x-confirm-on": "ack", "x-confirm-timeout": 1000, "x-confirm-on-header": True}
    for kind in ["classic", "quorum"]:
        put(f"queues/%2F/own-{kind}", {"durable": True, "arguments": {"x-queue-type": kind, **arguments}})
    kinds = ["x-consistent-hash", "x-random", "x-recent-history", "x-modulus-hash"]
    for kind in kinds:
        put(f"exchanges/%2F/own-{kind}", {"type": kind, "durable": True})
    api(NODE_HTTP, "POST", "bindings/%2F/e/amq.rabbitmq.event/q/own-classic", {"routing_key": "queue.*"})
    api(NODE_HTTP, "POST", "bindings/%2F/e/own-x-consistent-hash/q/own-classic", {"routing_key": "1"})
    with connect(NODE_PORT) as c:
        ch = c.channel()
        unnamed = ch.queue_declare("", durable=True).method.queue
        ch.queue_bind(unnamed, "amq.topic", "#")
    command = [PROGRAM, "ctl", "-q", "export_definitions", "--for", "rabbitmq", "-"]
    done = subprocess.run(command, env={"LEVERET_DATA_DIR": DATA_DIR}, capture_output=True, text=True, timeout=60)
    lines = {line.removeprefix("left out: ") for line in done.stderr.splitlines()}
    # See the queue "going", which is transient where RabbitMQ has such queues.
    told = set() if IS_4 else {
        "nothing of queue 'going' in vhost '/', but RabbitMQ 4.3 refuses transient queues that are not exclusive, "
        "unless it has deprecated_features.permit.transient_nonexcl_queues = true; versions before take them"
    }
    assert lines == told | {
        "user 'argon' has no password: its hash is argon2id's. Set it anew with rabbitmqctl change_password",
        "user 'argon': its limit max-deliver-rate",
        "user 'bob': its limit max-publish-rate",
        "vhost 'v w': its limit max-publish-bytes-rate",
        "topic permissions of user 'argon' in vhost '/': there is no exchange 'nowhere'",
        "policy 'ours' of vhost '/': it has nothing but confirm-on",
        "policy 'mixed' of vhost '/': its confirm-on, confirm-timeout",
        "bindings of exchange 'amq.rabbitmq.event' in vhost '/': RabbitMQ has it with the plugin rabbitmq_event_exchange",
        f"queue '{unnamed}' in vhost '/': its name is the broker's",
    }, done.stderr
    api(RABBIT_HTTP, "POST", "definitions", json.loads(done.stdout))
    there = definitions(RABBIT_HTTP)
    names = {one["name"] for name in ["exchanges", "queues", "users"] for one in there[name]}
    assert {"argon", "own-classic", "own-quorum", *(f"own-{kind}" for kind in kinds)} <= names, names
    assert [one["definition"] for one in there["policies"] if one["name"] == "mixed"] == [{"max-length": 9}]
    assert any(one["destination"] == "own-classic" for one in there["bindings"])
    # What comes after this has none of it.
    api(NODE_HTTP, "DELETE", f"queues/%2F/{unnamed}")
    for http in [NODE_HTTP, RABBIT_HTTP]:
        for path in ["users/argon", "policies/%2F/mixed", "queues/%2F/own-classic", "queues/%2F/own-quorum"]:
            api(http, "DELETE", path)
        for kind in kinds:
            api(http, "DELETE", f"exchanges/%2F/own-{kind}")


def publish(port, numbers, stop=None):
    """Numbers to the queue `live`, each confirmed: those that were sent."""
    sent = []
    with connect(port) as c:
        ch = c.channel()
        ch.confirm_delivery()
        for number in numbers:
            if stop and stop.is_set():
                break
            ch.basic_publish("", "live", str(number).encode(), pika.BasicProperties(delivery_mode=2))
            sent.append(number)
    return sent


class Consumer(threading.Thread):
    """Takes and acks what is in the queue `live`, until it is told to stop."""

    def __init__(self, port):
        super().__init__()
        self.port, self.seen, self.stopped = port, [], threading.Event()
        self.start()

    def run(self):
        with connect(self.port) as c:
            ch = c.channel()
            ch.basic_qos(prefetch_count=10)
            for method, _, body in ch.consume("live", inactivity_timeout=0.2):
                if method:
                    self.seen.append(int(body))
                    ch.basic_ack(method.delivery_tag)
                if self.stopped.is_set():
                    break
            ch.cancel()

    def stop(self):
        self.stopped.set()
        self.join()
        return self.seen


def watched(from_ports, *words):
    """A run whose standard error is a terminal: what it tells there."""
    mine, its = pty.openpty()
    login = f"{USER}:{quote(PASSWORD, safe='')}"
    command = [PROGRAM, "migrate", "--from-api", f"http://{login}@127.0.0.1:{from_ports[1]}"]
    command += ["--from", f"amqp://{login}@127.0.0.1:{from_ports[0]}", *words]
    run = subprocess.Popen(command, env={"LEVERET_DATA_DIR": DATA_DIR}, stdout=subprocess.PIPE, stderr=its, text=True)
    os.close(its)
    told = b""
    while True:
        try:
            told += os.read(mine, 65536)
        except OSError:
            break
    out = run.communicate()[0]
    os.close(mine)
    assert run.returncode == 0, f"status {run.returncode}: {out} {told}"
    return out, told.decode()


def live_clients_move():
    """By the steps of docs/migration.md: definitions, publishers, messages, consumers; nothing stands still."""
    queue = {"durable": True, "arguments": {"x-queue-type": "quorum"}}
    for name in ["live", "many"]:
        api(RABBIT_HTTP, "PUT", f"queues/%2F/{name}", queue)
    with connect(RABBIT_PORT) as c:
        ch = c.channel()
        for at in range(MANY):
            ch.basic_publish("", "many", str(at).encode(), numbered(at))
    stop, sent = threading.Event(), []
    publisher = threading.Thread(target=lambda: sent.extend(publish(RABBIT_PORT, range(1_000_000), stop)))
    publisher.start()
    old = Consumer(RABBIT_PORT)
    try:
        migrate(RABBIT, None, "--definitions-only")
        # The publisher goes over, and leaves what nobody took.
        stop.set()
        publisher.join()
        first = len(sent)
        stop.clear()
        publisher = threading.Thread(target=lambda: sent.extend(publish(NODE_PORT, range(first, 2_000_000), stop)))
        publisher.start()
        new = Consumer(NODE_PORT)
        out, told = watched(RABBIT, "--messages-only", "--queue", "^(live|many)$")
    finally:
        stop.set()
        publisher.join()
        seen = old.stop()
    migrate(RABBIT, None, "--messages-only", "--queue", "^(live|many)$")
    with connect(NODE_PORT) as c:
        ch = c.channel()
        while ch.queue_declare("live", passive=True).method.message_count:
            c.sleep(0.1)
    seen += new.stop()
    assert sorted(seen) == list(range(len(sent))), f"{len(seen)} of {len(sent)}"
    # A queue of 30,000 may be through before its progress is told.
    if IS_4:
        assert re.search(rf"many: \d+ of {MANY}; \d+ to go, about \d+ (s|min)", told), told
    assert re.search(r"queues, \d+ messages moved", out), out


def all_of_many():
    """Each message with its properties and headers, in order."""
    look_at_many(NODE_PORT)


def look_at_many(port, is_taken=False):
    at = 0
    with connect(port) as c:
        ch = c.channel()
        # RabbitMQ sends 2000 of a quorum queue, unless some are acked.
        ch.basic_qos(prefetch_count=1000 if is_taken else 0)
        for method, properties, body in ch.consume("many", inactivity_timeout=5):
            if method is None:
                break
            assert (int(body), plain(properties)) == (at, plain(numbered(at))), f"{at}: {body} {properties}"
            at += 1
            if is_taken and (at % 500 == 0 or at == MANY):
                ch.basic_ack(method.delivery_tag, multiple=True)
            if at == MANY:
                break
    assert at == MANY, f"{at} of {MANY}"


def many_go_back():
    told, _ = migrate(NODE, RABBIT, "--messages-only", "--queue", "^many$")
    assert f"{MANY} messages moved" in told, told
    look_at_many(RABBIT_PORT, is_taken=True)


checks.run(
    [
        it_comes_along,
        definitions_are_the_same,
        counts_of_deliveries_stay_behind,
        messages_are_the_same,
        users_log_in,
        nothing_is_left,
        it_goes_back,
        definitions_are_there_again,
        messages_are_there_again,
        users_log_in_there,
        a_file_goes_back_too,
        everything_of_its_own,
        live_clients_move,
        all_of_many,
        many_go_back,
    ]
)
