"""A small shop: an order and the tasks that follow from it are committed together, or not at all.

export SCHEDULER_DATABASE=postgresql://localhost/shop
scheduler migrate
python -m examples.shop
scheduler worker examples.shop:app
"""

import os
from datetime import timedelta
from pathlib import Path

from psycopg import AsyncConnection, Connection
from pydantic import BaseModel, PositiveInt

from scheduler import Attempt, Registry, RetryPolicy, Snooze, enqueue

app = Registry()


class Payment(BaseModel):
    order: int
    cents: PositiveInt


class Receipt(BaseModel):
    order: int
    email: str


class Parcel(BaseModel):
    order: int


@app.transactional("book-payment", Payment)
def book_payment(attempt: Attempt, payment: Payment, connection: Connection) -> None:
    """The row and the task's completion commit together: it is booked exactly once."""
    booking = "insert into shop.payments (order_id, cents) values (%s, %s)"
    connection.execute(booking, [payment.order, payment.cents])


@app.kind("send-receipt", Receipt, retry=RetryPolicy(max_attempts=5, cap=timedelta(hours=1)))
def send_receipt(attempt: Attempt, receipt: Receipt) -> None:
    """A file is outside the database: at least once, so the line says which task it is from."""
    with Path(os.environ.get("SHOP_RECEIPTS", "receipts.txt")).open("a") as file:
        file.write(f"task {attempt.task}: order {receipt.order}, to {receipt.email}\n")


@app.kind("ship-parcel", Parcel, lease=timedelta(seconds=30))
async def ship_parcel(attempt: Attempt, parcel: Parcel) -> None:
    """The task's id makes a repeated shipment the same one; its token lets only newer ones in."""
    async with await AsyncConnection.connect(os.environ["SCHEDULER_DATABASE"]) as connection:
        payments = "select from shop.payments where order_id = %s"
        if (await connection.execute(payments, [parcel.order])).rowcount == 0:
            raise Snooze(timedelta(seconds=1))  # look again later: no attempt is lost
        await connection.execute(
            "insert into shop.parcels (task, token, order_id) values (%s, %s, %s)"
            " on conflict (task) do update set token = excluded.token"
            " where parcels.token < excluded.token",
            [attempt.task, attempt.token, parcel.order],
        )


def place_order(connection: Connection, email: str, cents: int) -> int:
    """The order and its tasks: committed together, or with the caller's own transaction."""
    with connection.transaction():
        new_order = "insert into shop.orders default values returning id"
        [(order,)] = connection.execute(new_order).fetchall()
        enqueue(connection, book_payment, Payment(order=order, cents=cents))
        enqueue(connection, send_receipt, Receipt(order=order, email=email))
        enqueue(connection, ship_parcel, Parcel(order=order))
    return int(order)


def create_schema(connection: Connection) -> None:
    """The shop's own tables. `payments` has no unique key: nothing but the scheduler guards it."""
    connection.execute("""
        create schema if not exists shop;
        create table if not exists shop.orders (id bigint generated always as identity primary key);
        create table if not exists shop.payments (order_id bigint, cents bigint);
        create table if not exists shop.parcels (
            task bigint primary key, token bigint, order_id bigint);
    """)


if __name__ == "__main__":
    with Connection.connect(os.environ["SCHEDULER_DATABASE"], autocommit=True) as connection:
        create_schema(connection)
        place_order(connection, "ada@example.org", 1999)
