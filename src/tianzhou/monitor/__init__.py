"""What the web console and the pipelines share: their database.

Needs SQLAlchemy, and never Spark.
"""
