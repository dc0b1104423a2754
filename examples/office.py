"""A company's scheduled work: recurring tasks, a limit, a key, a secret, a process of its own.

export SCHEDULER_DATABASE=postgresql://localhost/office OFFICE_MAIL_TOKEN=...
scheduler migrate
scheduler worker examples.office:app
"""

import os
import re
from datetime import timedelta
from pathlib import Path

from psycopg import Connection
from pydantic import BaseModel

from scheduler import (
    Attempt,
    Cron,
    Every,
    Priority,
    Registry,
    Unique,
    cancel,
    enqueue,
    enqueue_unique,
)
from scheduler.access import limit_source, restrict_kind

app = Registry(application="office")


class Report(BaseModel):
    title: str


class Letter(BaseModel):
    invoice: int


class Search(BaseModel):
    pattern: str
    file: Path


@app.transactional("write-report", Report)
def write_report(attempt: Attempt, report: Report, connection: Connection) -> None:
    """One row for each occurrence: its own time, however late it runs and however often."""
    connection.execute(
        "insert into office.reports (title, at) values (%s, %s)", [report.title, attempt.occurrence]
    )


# Workers declare what stands here when they start. What is gone from here plans nothing any more.
app.schedule("nightly", write_report, Report(title="night"), Cron("0 3 * * *", "Europe/Berlin"))
app.schedule(
    "pulse", write_report, Report(title="pulse"), Every(timedelta(seconds=1)), missed="skip"
)


@app.kind("post-letter", Letter, limit=2, secrets={"mail": "env:OFFICE_MAIL_TOKEN"})
def post_letter(attempt: Attempt, letter: Letter) -> None:
    """At most two at once, in all workers together: the mail service allows no more."""
    token = attempt.secret("mail")
    with Path(os.environ.get("OFFICE_LETTERS", "letters.txt")).open("a") as file:
        file.write(f"invoice {letter.invoice}, {'stamped' if token else 'without a stamp'}\n")


@app.kind("search-file", Search, isolated=True)
def search_file(attempt: Attempt, search: Search) -> None:
    """A regular expression keeps the interpreter to itself: here, that of a process of its own."""
    found = re.findall(search.pattern, search.file.read_text())
    search.file.with_suffix(".found").write_text(f"{len(found)}\n")


def invoice(connection: Connection, number: int) -> bool:
    """Post an invoice unless that is under way already; whether it was not."""
    return enqueue_unique(
        connection, post_letter, Letter(invoice=number), Unique(f"invoice-{number}")
    ).created


def urgent(connection: Connection, number: int) -> int:
    """Post an invoice before what was due up to a minute earlier; returns its task."""
    letter = Letter(invoice=number)
    return enqueue(connection, post_letter, letter, priority=Priority.HIGH)


def withdraw(connection: Connection, task: int) -> bool:
    """Cancel a letter that is not posted yet; whether there was still something to cancel."""
    return task in cancel(connection, [task])


def set_rules(connection: Connection) -> None:
    """The web shop may have a thousand tasks outstanding; letters come from the office alone."""
    limit_source(connection, "web", 1000)
    restrict_kind(connection, post_letter.name, ["office"])


def create_schema(connection: Connection) -> None:
    """The office's own table."""
    connection.execute("""
        create schema if not exists office;
        create table if not exists office.reports (title text, at timestamptz);
    """)
