"""A session whose workers cannot import the package is told so in one sentence."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from penstock.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_workers_without_the_package_ended_in_a_long_traceback(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "python"
    # Without site packages: Spark's own archive is all that it can import.
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    bare.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", str(bare))
        register(spark)
        with pytest.raises(PySparkException) as caught:
            spark.read.format("penstock").load(str(tmp_path))
    register(spark)
    lines = [line for line in str(caught.value).splitlines() if line.strip()]
    assert "Traceback" not in str(caught.value)
    assert "install 'penstock[spark]' there" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["SQLSTATE"]
