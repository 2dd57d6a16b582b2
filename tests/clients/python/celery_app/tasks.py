"""Tasks of the Celery check. BROKER and RESULTS come from the environment."""

import os

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["RESULTS"])
app.conf.update(
    task_default_queue="celery-check",
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    result_expires=300,
)
attempts = {}


@app.task
def add(a, b):
    return a + b


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3, default_retry_delay=0.2)
def third_time_lucky(self):
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries


@app.task
def fails():
    raise ValueError("on purpose")
