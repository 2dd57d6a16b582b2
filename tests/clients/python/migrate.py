"""A RabbitMQ is moved to Leveret by `leveret migrate`, and back; what is there is compared with what was.

Usage: migrate.py PROGRAM DATA_DIR RABBIT_PORT RABBIT_HTTP NODE_PORT NODE_HTTP. The last line is `N passed, N failed`.
"""

import base64
import json
import subprocess
import sys
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
    put("topic-permissions/%2F/bob", {"exchange": "orders", "write": "^eu", "read": ".*"})
    put("user-limits/bob/max-channels", {"value": 7})
    put("vhost-limits/v%20w/max-queues", {"value": 50})
    put("policies/%2F/p", {"pattern": "^limited", "definition": {"max-length": 1000}, "priority": 3, "apply-to": "queues"})
    put("operator-policies/%2F/o", {"pattern": "^limited", "definition": {"expires": 3600000}, "apply-to": "queues"})
    put("global-parameters/own", {"value": {"a": [1]}})
    put("exchanges/%2F/orders", {"type": "topic", "durable": True})
    put("exchanges/%2F/inner", {"type": "headers", "durable": True, "internal": True, "arguments": {"alternate-exchange": "amq.fanout"}})
    queue = lambda vhost, name, **arguments: put(
        f"queues/{quote(vhost, safe='')}/{quote(name, safe='')}", {"durable": True, "arguments": arguments}
    )
    queue("/", "small")
    queue("/", "by priority", **{"x-max-priority": 5})
    queue("/", "limited", **{"x-message-ttl": 3600000})
    queue("/", "quorum", **{"x-queue-type": "quorum", "x-delivery-limit": 5})
    queue("/", "stream", **{"x-queue-type": "stream"})
    queue("/", "dead")
    queue("/", "short", **{"x-dead-letter-exchange": "orders", "x-max-length": 1})
    queue("/", "kinds")
    queue("v w", "\u00e4 b")
    put("queues/%2F/going", {"durable": False, "auto_delete": True})
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
    SEEN["messages"] = messages(RABBIT, but=["quorum"])
    properties = plain(pika.BasicProperties(delivery_mode=2))
    quorum = [("quorum", properties, str(at).encode()) for at in range(20)]
    SEEN["messages"]["/", "quorum"] = quorum
    counts = [len(them) for them in SEEN["messages"].values()]
    assert sum(counts) == SMALL + 3 + 2 + 2 + 60 + 1, counts
    told, errors = migrate(RABBIT, None)
    assert "a stream, whose messages cannot be taken out" in errors
    assert "queue 'stream' in vhost '/': a stream" in errors
    assert f"{sum(counts)} messages moved" in told


def definitions_are_the_same():
    same(definitions(NODE_HTTP), SEEN["definitions"])


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


checks.run(
    [
        it_comes_along,
        definitions_are_the_same,
        messages_are_the_same,
        users_log_in,
        nothing_is_left,
        it_goes_back,
        definitions_are_there_again,
        messages_are_there_again,
        users_log_in_there,
        a_file_goes_back_too,
    ]
)
