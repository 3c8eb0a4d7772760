"""From entries to answers: what became of every task, what waits, what is wrong (docs/spark.md).

Every step is a function from DataFrames to DataFrames that can be called alone; ``run`` puts them together and keeps
the tables.
"""
