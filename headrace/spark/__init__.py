"""The pipeline: change events as a Spark source, and tables that follow a collection. A client like any other.

    headrace.spark.pipeline(df, [{"$match": ...}, ...])     MongoDB's stages over a DataFrame
    headrace.spark.explain([...], source_options)           which stage runs where
    headrace.spark.Window, headrace.spark.StageRefused

Nothing of Spark is imported before one of them is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["StageRefused", "Window", "explain", "pipeline"]

if TYPE_CHECKING:
    from headrace.spark.pipelines.explain import explain
    from headrace.spark.pipelines.refusals import StageRefused
    from headrace.spark.pipelines.run import pipeline
    from headrace.spark.pipelines.windows import Window

_PLACES = {"StageRefused": "refusals", "Window": "windows", "explain": "explain", "pipeline": "run"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"headrace.spark.pipelines.{_PLACES[name]}"), name)
