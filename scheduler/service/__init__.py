"""The scheduler over HTTP: an extra (`leaseproof[http]`) that the core does not know.

`app.create_app` makes the application, `server.serve` runs it. `tokens` and `worker_metrics` stand
for themselves.
"""
