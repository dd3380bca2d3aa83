"""Standard pipelines: Spark jobs over topics whose results lie in a database.

    catalog   which pipelines there are        runner    runs one, and keeps a record of it
    tables    the database                     cluster   what only brokers can tell
    alarms    when an alarm opens, repeats, recovers     notifier  log, webhook, e-mail

A pipeline is a module with a frozen dataclass `Options` and a function `run(spark, options)`; both
may be used without the runner. Options are checked before Spark is started.
"""
