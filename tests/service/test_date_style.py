"""Times are read whatever `DateStyle` the database gives its sessions."""

from __future__ import annotations

import json

import pytest
from psycopg import Connection
from psycopg.conninfo import make_conninfo

from scheduler.cli import main
from scheduler.service import tokens
from scheduler.service.app import create_app
from tests.service.conftest import ALL, REGISTRY, Api, TestClient, put_dead

STYLE = "-c datestyle=SQL,DMY"


def test_every_list_with_times_is_answered_under_any_date_style(
    http_dsn: str, db: Connection
) -> None:
    task = put_dead(db, "work", "no")
    secret = tokens.create(db, "one", "shop", ALL)
    app = create_app(REGISTRY, make_conninfo(http_dsn, options=STYLE), connections=2)
    with TestClient(app, raise_server_exceptions=False) as client:
        shop = Api(client, secret)
        for path in (
            *(
                "/api/v1/tasks",
                f"/api/v1/tasks/{task}",
                "/api/v1/dead-letters",
                "/api/v1/schedules",
            ),
            *("/api/v1/dead-letters/export", f"/api/v1/tasks/{task}/runs", "/api/v1/throughput"),
            *("/api/v1/status", "/metrics"),
        ):
            assert shop.get(path).status_code == 200, path


def test_tokens_are_listed_under_any_date_style(
    dsn: str, db: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens.create(db, "one", "shop", ALL)
    with pytest.raises(SystemExit) as ended:
        main(["token", "list", "--json", "--database", make_conninfo(dsn, options=STYLE)])
    assert not ended.value.code
    [listed] = json.loads(capsys.readouterr().out)["tokens"]
    assert listed["name"] == "one"
