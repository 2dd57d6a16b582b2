"""A Celery worker against the broker: results, retry, ETA, countdown, chain, group, chord, revoke.

Usage: celery_check.py PORT. The last line is `N passed, N failed`.
"""

import os
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

PORT = sys.argv[1]
HERE = Path(__file__).parent / "celery_app"
BROKER = f"amqp://guest:guest@127.0.0.1:{PORT}//"
os.environ["BROKER"] = BROKER
os.environ["RESULTS"] = sys.argv[2] if len(sys.argv) > 2 else "rpc://"
sys.path.insert(0, str(HERE))

import checks  # noqa: E402
import tasks  # noqa: E402
from celery import chain, group  # noqa: E402

WAIT = 60


def result():
    assert tasks.add.delay(2, 3).get(timeout=WAIT) == 5


def many():
    pending = [tasks.add.delay(i, i) for i in range(100)]
    assert [p.get(timeout=WAIT) for p in pending] == [2 * i for i in range(100)]


def retry():
    assert tasks.third_time_lucky.delay().get(timeout=WAIT) == 2


def eta():
    start = time.monotonic()
    when = datetime.now(timezone.utc) + timedelta(seconds=2)
    assert tasks.add.apply_async((1, 1), eta=when).get(timeout=WAIT) == 2
    assert time.monotonic() - start >= 1.5


def countdown():
    start = time.monotonic()
    assert tasks.add.apply_async((1, 2), countdown=1).get(timeout=WAIT) == 3
    assert time.monotonic() - start >= 0.9


def failure():
    try:
        tasks.fails.delay().get(timeout=WAIT)
    except ValueError as error:
        assert str(error) == "on purpose"
    else:
        raise AssertionError("no error came")


def chained():
    assert chain(tasks.add.s(1, 2), tasks.add.s(10)).apply_async().get(timeout=WAIT) == 13


def grouped():
    answer = group(tasks.add.s(i, 1) for i in range(10)).apply_async().get(timeout=WAIT)
    assert sorted(answer) == list(range(1, 11))


def expires():
    late = tasks.add.apply_async((1, 1), expires=-1)
    assert tasks.add.delay(4, 4).get(timeout=WAIT) == 8
    assert late.state in ("PENDING", "REVOKED")


def control():
    assert tasks.app.control.ping(timeout=10), "no worker answered a broadcast"
    assert tasks.app.control.inspect(timeout=10).registered()


def chord_of_tasks():
    from celery import chord
    answer = chord((tasks.add.s(i, i) for i in range(5)), tasks.total.s()).apply_async()
    assert answer.get(timeout=WAIT) == 20


def main():
    log = open(Path(os.environ.get("LOGS", ".")) / "celery-worker.log", "w")
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency=2",
         "--loglevel=INFO", "--hostname=check@localhost"],
        cwd=HERE, stdout=log, stderr=subprocess.STDOUT)
    all_checks = [result, many, retry, eta, countdown, failure, chained, grouped, expires, control]
    # The rpc:// backend has no chords; one that stores results does.
    if not os.environ["RESULTS"].startswith("rpc"):
        all_checks.append(chord_of_tasks)
    try:
        failed = checks.run(all_checks)
    finally:
        worker.terminate()
        worker.wait(30)
    os._exit(1 if failed else 0)


main()
