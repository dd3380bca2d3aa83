"""The web console: the cluster in the browser (extra `console`).

app.py       the route table, and the ASGI application made of it
server.py    start to stop: database, collectors, HTTP server
views/       one module a noun: what pages show          (how to add a page: views/__init__.py)
changes/     plans of changes and their execution
jobs/        long work with progress, one at a time
messages/    bodies, searches and tails of messages
web/         requests: who may, routing, rendering, tables, translations, OpenAPI
accounts/    people, passwords, sessions, tokens, OIDC, audit
collect/     snapshots of clusters, history, daily totals
"""
