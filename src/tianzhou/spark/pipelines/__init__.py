"""Standard pipelines: Spark jobs over topics that write their results to a database.

    catalog        the list of pipelines            runner          runs one, and records the run
    tables         the tables of the database       cluster         queries of brokers
    alarms         when an alarm opens, repeats and recovers
    alarm_rounds   checks, alarms and events        alarm_delivery  log, webhook, e-mail

A pipeline is a module with a frozen dataclass `Options` and a function `run(spark, options)`; both
can be used without the runner. A `run` with the parameter `stop`, an event, returns when that is
set. Options are checked before Spark starts.
"""
