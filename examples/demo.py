"""Parcels packed, weighed slowly, or lost: something to look at without a database of yours.

scheduler dev examples.demo:app
"""

import asyncio
import random
import time
from datetime import timedelta

from psycopg import Connection

from scheduler import Attempt, Cron, Every, Registry, RetryPolicy, enqueue, enqueue_many

app = Registry(application="demo")


@app.kind("pack", int)
def pack(attempt: Attempt, parcel: int) -> None:
    """A moment's work."""
    time.sleep(random.random() / 10)


@app.kind("weigh", int, lease=timedelta(seconds=20), limit=3)
async def weigh(attempt: Attempt, parcel: int) -> None:
    """Takes its time, three at once; its lease is renewed meanwhile."""
    await asyncio.sleep(random.uniform(2, 20))


@app.kind("deliver", int, retry=RetryPolicy(max_attempts=3, base=timedelta(seconds=5)))
def deliver(attempt: Attempt, parcel: int) -> None:
    """Fails now and then; every thirteenth parcel is never delivered and ends as a dead letter."""
    if parcel % 13 == 0 or random.random() < 0.1:
        raise ConnectionError(f"nobody opens the door for parcel {parcel}")


@app.transactional("take-orders", int)
def take_orders(attempt: Attempt, most: int, connection: Connection) -> None:
    """New parcels: they exist if and only if this task is completed."""
    parcels = range(attempt.task * 10, attempt.task * 10 + random.randint(1, most))
    enqueue_many(connection, pack, parcels)
    enqueue_many(connection, deliver, parcels, delay=timedelta(seconds=2))
    enqueue(connection, weigh, parcels[0])


app.schedule("orders", take_orders, 6, Every(timedelta(seconds=5)), missed="skip")
app.schedule("night-shift", pack, 0, Cron("0 3 * * *", "Europe/Berlin"))
