"""One page about queues and their logs, made from the pipeline's tables. Needs no Spark and no network to be read."""

from __future__ import annotations

from penstock.spark.report.facts import Facts, SourceFacts
from penstock.spark.report.page import make_report

__all__ = ["Facts", "SourceFacts", "make_report"]
