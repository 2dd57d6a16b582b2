"""Users kept by a directory: who comes in, and what each may do.

Usage: ldap.py ALICE PORT HTTP_PORT, where ALICE is what she is called here. The last line is `N passed, N failed`.
"""

import base64
import json
import sys
import urllib.error
import urllib.request

import pika

import checks

ALICE, PORT, HTTP_PORT = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def connect(user, password):
    credentials = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", PORT, credentials=credentials))


def whoami(user, password):
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {pair}"}
    request = urllib.request.Request(f"http://127.0.0.1:{HTTP_PORT}/api/whoami", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, None


def right_passwords():
    connect(ALICE, "alices").close()
    connect("bob", "bobs").close()


def wrong_passwords():
    names = [ALICE, "bob", "nobody", "", "*", "b*", "bob)(cn=*", "bob,ou=people,dc=example", "asks", "\0"]
    for name in names:
        for password in ["", "wrong", "asking"]:
            try:
                connect(name, password).close()
            except (pika.exceptions.ProbableAuthenticationError, pika.exceptions.ConnectionClosedByBroker):
                continue
            raise AssertionError(f"{name!r} was let in")


def refused(ch, action):
    try:
        action(ch)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 403, error
        return
    raise AssertionError("was allowed")


def rights_by_name_and_by_group():
    with connect("bob", "bobs") as c:
        c.channel().queue_declare("bob-1", auto_delete=True)
        refused(c.channel(), lambda ch: ch.queue_declare("x"))
    with connect(ALICE, "alices") as c:
        c.channel().queue_declare("x", auto_delete=True)


def rights_to_routing_keys():
    with connect("bob", "bobs") as c:
        ch = c.channel()
        ch.exchange_declare("bob-x", "topic", auto_delete=True)
        queue = ch.queue_declare("bob-2", exclusive=True).method.queue
        ch.queue_bind(queue, "bob-x", "Bob.#")
        ch.confirm_delivery()
        ch.basic_publish("bob-x", "Bob.1", b"x", mandatory=True)
        refused(ch, lambda ch: ch.basic_publish("bob-x", "Alice.1", b"x"))


def tags_by_groups_in_groups():
    status, answer = whoami(ALICE, "alices")
    assert (status, answer and answer["tags"]) == (200, ["administrator"]), (status, answer)
    assert whoami("bob", "bobs")[0] == 401
    assert whoami(ALICE, "bobs")[0] == 401


checks.run(
    [
        right_passwords,
        wrong_passwords,
        rights_by_name_and_by_group,
        rights_to_routing_keys,
        tags_by_groups_in_groups,
    ]
)
