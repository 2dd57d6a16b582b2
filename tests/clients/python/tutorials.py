"""The patterns of the seven RabbitMQ tutorials, each checked from both ends with pika.

Usage: tutorials.py PORT. The last line is `N passed, N failed`.
"""

import functools
import sys
import threading
import uuid

import pika

import checks

PORT = int(sys.argv[1])


def connect():
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", PORT))


def take(channel, queue, count, ack=True):
    """The next `count` messages of a queue, waiting for each."""
    got = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=10):
        if method is None:
            raise AssertionError(f"{len(got)} of {count} messages came: {got}")
        got.append((method, properties, body))
        if ack:
            channel.basic_ack(method.delivery_tag)
        if len(got) == count:
            break
    channel.cancel()
    return got


def hello_world():
    """1: one queue, one message."""
    with connect() as c:
        ch = c.channel()
        ch.queue_declare("tutorial.hello", auto_delete=True)
        ch.basic_publish("", "tutorial.hello", b"Hello World!")
        assert take(ch, "tutorial.hello", 1)[0][2] == b"Hello World!"


def work_queues():
    """2: durable tasks, shared by two workers, each one at a time; a lost worker's task returns."""
    with connect() as c, connect() as lost, connect() as other:
        ch = c.channel()
        ch.queue_declare("tutorial.tasks", durable=True)
        ch.queue_purge("tutorial.tasks")
        for i in range(4):
            ch.basic_publish("", "tutorial.tasks", b"task %d" % i,
                             pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent))
        one = lost.channel()
        one.basic_qos(prefetch_count=1)
        (method, _, first), = take_without_cancel(one, "tutorial.tasks", 1)
        assert not method.redelivered
        two = other.channel()
        two.basic_qos(prefetch_count=1)
        rest = [body for _, _, body in take(two, "tutorial.tasks", 3)]
        assert first not in rest, rest
        lost.close()
        (method, _, again), = take(two, "tutorial.tasks", 1)
        assert again == first and method.redelivered
        ch.queue_delete("tutorial.tasks")


def take_without_cancel(channel, queue, count):
    got = []
    for method, properties, body in channel.consume(queue, inactivity_timeout=10):
        assert method is not None
        got.append((method, properties, body))
        if len(got) == count:
            return got


def publish_subscribe():
    """3: a fanout exchange copies to every subscriber's own queue."""
    with connect() as c:
        ch = c.channel()
        ch.exchange_declare("tutorial.logs", "fanout", auto_delete=True)
        queues = []
        for _ in range(3):
            queue = ch.queue_declare("", exclusive=True).method.queue
            ch.queue_bind(queue, "tutorial.logs")
            queues.append(queue)
        ch.basic_publish("tutorial.logs", "", b"log line")
        for queue in queues:
            assert take(ch, queue, 1)[0][2] == b"log line"


def routing():
    """4: a direct exchange sends by severity."""
    with connect() as c:
        ch = c.channel()
        ch.exchange_declare("tutorial.direct", "direct", auto_delete=True)
        errors = ch.queue_declare("", exclusive=True).method.queue
        everything = ch.queue_declare("", exclusive=True).method.queue
        ch.queue_bind(errors, "tutorial.direct", "error")
        for severity in ("info", "warning", "error"):
            ch.queue_bind(everything, "tutorial.direct", severity)
        for severity in ("info", "warning", "error", "debug"):
            ch.basic_publish("tutorial.direct", severity, severity.encode())
        assert [m[2] for m in take(ch, errors, 1)] == [b"error"]
        assert [m[2] for m in take(ch, everything, 3)] == [b"info", b"warning", b"error"]
        assert ch.basic_get(errors)[0] is None


def topics():
    """5: a topic exchange sends by pattern."""
    with connect() as c:
        ch = c.channel()
        ch.exchange_declare("tutorial.topic", "topic", auto_delete=True)
        q1 = ch.queue_declare("", exclusive=True).method.queue
        q2 = ch.queue_declare("", exclusive=True).method.queue
        ch.queue_bind(q1, "tutorial.topic", "*.orange.*")
        ch.queue_bind(q2, "tutorial.topic", "*.*.rabbit")
        ch.queue_bind(q2, "tutorial.topic", "lazy.#")
        keys = ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox",
                "lazy.brown.fox", "lazy.pink.rabbit", "quick.brown.fox", "orange",
                "quick.orange.new.rabbit", "lazy.orange.new.rabbit"]
        for key in keys:
            ch.basic_publish("tutorial.topic", key, key.encode())
        got1 = [m[2].decode() for m in take(ch, q1, 3)]
        got2 = [m[2].decode() for m in take(ch, q2, 5)]
        assert got1 == ["quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox"]
        assert got2 == ["quick.orange.rabbit", "lazy.orange.elephant", "lazy.brown.fox",
                        "lazy.pink.rabbit", "lazy.orange.new.rabbit"]
        assert ch.basic_get(q1)[0] is None and ch.basic_get(q2)[0] is None


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def rpc():
    """6: a request with reply_to and correlation_id, answered by a server in another thread."""
    ready = threading.Event()
    server_connection = connect()

    def serve():
        ch = server_connection.channel()
        ch.queue_declare("tutorial.rpc", auto_delete=True)
        ch.basic_qos(prefetch_count=1)

        def on_request(ch, method, properties, body):
            answer = str(fib(int(body))).encode()
            ch.basic_publish("", properties.reply_to, answer,
                             pika.BasicProperties(correlation_id=properties.correlation_id))
            ch.basic_ack(method.delivery_tag)
            ch.stop_consuming()

        ch.basic_consume("tutorial.rpc", on_request)
        ready.set()
        ch.start_consuming()
        server_connection.close()

    server = threading.Thread(target=serve)
    server.start()
    assert ready.wait(10)
    with connect() as c:
        ch = c.channel()
        callback = ch.queue_declare("", exclusive=True).method.queue
        correlation = str(uuid.uuid4())
        ch.basic_publish("", "tutorial.rpc", b"15", pika.BasicProperties(
            reply_to=callback, correlation_id=correlation))
        (_, properties, body), = take(ch, callback, 1)
        assert properties.correlation_id == correlation and body == b"610"
    server.join(10)


def publisher_confirms():
    """7: individually, in batches, and for a message nobody can get."""
    with connect() as c:
        ch = c.channel()
        ch.confirm_delivery()
        ch.queue_declare("tutorial.confirms", auto_delete=True)
        for i in range(100):
            ch.basic_publish("", "tutorial.confirms", str(i).encode(), mandatory=True)
        assert ch.queue_declare("tutorial.confirms", passive=True).method.message_count == 100
        try:
            ch.basic_publish("", "tutorial.nowhere", b"lost", mandatory=True)
        except pika.exceptions.UnroutableError:
            pass
        else:
            raise AssertionError("an unroutable message was taken")
        bodies = [int(m[2]) for m in take(ch, "tutorial.confirms", 100)]
        assert bodies == list(range(100))


def confirms_asynchronously():
    """7 again: many in flight, acks with `multiple`."""
    count = 2000
    seen = {"published": 0, "confirmed": set(), "highest": 0}
    problems = []

    def on_open(connection):
        connection.channel(on_open_callback=functools.partial(on_channel, connection))

    def on_channel(connection, ch):
        def on_confirm(frame):
            method = frame.method
            if isinstance(method, pika.spec.Basic.Nack):
                problems.append(method)
            first = seen["highest"] + 1 if method.multiple else method.delivery_tag
            for tag in range(first, method.delivery_tag + 1):
                seen["confirmed"].add(tag)
            while seen["highest"] + 1 in seen["confirmed"]:
                seen["highest"] += 1
            if len(seen["confirmed"]) == count:
                connection.close()

        def on_declared(_):
            ch.confirm_delivery(on_confirm)
            for i in range(count):
                ch.basic_publish("", "tutorial.async", b"x" * 100)

        ch.queue_declare("tutorial.async", auto_delete=True, exclusive=True, callback=on_declared)

    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", PORT), on_open_callback=on_open,
        on_close_callback=lambda c, _: c.ioloop.stop())
    connection.ioloop.call_later(30, connection.ioloop.stop)
    connection.ioloop.start()
    assert not problems and len(seen["confirmed"]) == count, (len(seen["confirmed"]), problems)


sys.exit(
    checks.run(
        [
            hello_world,
            work_queues,
            publish_subscribe,
            routing,
            topics,
            rpc,
            publisher_confirms,
            confirms_asynchronously,
        ]
    )
)
