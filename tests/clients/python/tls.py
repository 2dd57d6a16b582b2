"""A client over TLS with pika: by password and by certificate, and two that must be turned away.

Usage: tls.py PORT DIR, where DIR holds ca.pem, other.pem, client.pem and client.key. The last line is
`N passed, N failed`.
"""

import pathlib
import ssl
import sys

import pika

import checks

PORT, DIR = int(sys.argv[1]), pathlib.Path(sys.argv[2])


def context(authority="ca.pem", with_certificate=False):
    made = ssl.create_default_context(cafile=DIR / authority)
    if with_certificate:
        made.load_cert_chain(DIR / "client.pem", DIR / "client.key")
    return made


def connect(made, credentials=pika.ConnectionParameters.DEFAULT_CREDENTIALS):
    options = pika.SSLOptions(made, "localhost")
    parameters = pika.ConnectionParameters("127.0.0.1", PORT, ssl_options=options, credentials=credentials)
    return pika.BlockingConnection(parameters)


def exchange(connection):
    """Sends messages of several sizes to a queue and takes them back."""
    with connection as c:
        ch = c.channel()
        queue = ch.queue_declare("", exclusive=True).method.queue
        for size in [0, 1, 16384, 1 << 20]:
            ch.basic_publish("", queue, b"x" * size)
            _, _, body = next(ch.consume(queue, auto_ack=True, inactivity_timeout=10))
            assert body == b"x" * size, size


def by_password():
    for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
        made = context()
        made.minimum_version = made.maximum_version = version
        exchange(connect(made))


def by_certificate():
    exchange(connect(context(with_certificate=True), pika.credentials.ExternalCredentials()))


def external_without_a_certificate():
    try:
        connect(context(), pika.credentials.ExternalCredentials()).close()
    except pika.exceptions.ProbableAuthenticationError:
        return
    raise AssertionError("was let in")


def another_authority():
    try:
        connect(context("other.pem")).close()
    except ssl.SSLCertVerificationError:
        return
    raise AssertionError("the server was believed")


checks.run(
    [
        by_password,
        by_certificate,
        external_without_a_certificate,
        another_authority,
    ]
)
