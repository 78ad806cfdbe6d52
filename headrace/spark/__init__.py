"""The pipeline: change events as a Spark source, and tables that follow a collection; a client of the server.

    headrace.spark.pipeline(df, [{"$match": ...}, ...])     MongoDB's stages over a DataFrame
    headrace.spark.explain([...], source_options)           which stage runs where
    headrace.spark.Window, headrace.spark.StageRefused

Importing this package does not import Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["StageRefused", "Window", "explain", "pipeline"]

if TYPE_CHECKING:
    from headrace.spark.pipelines.explain import explain
    from headrace.spark.pipelines.refusals import StageRefused
    from headrace.spark.pipelines.run import pipeline
    from headrace.spark.pipelines.windows import Window

_MODULES = {"StageRefused": "refusals", "Window": "windows", "explain": "explain", "pipeline": "run"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'headrace.spark' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"headrace.spark.pipelines.{_MODULES[name]}"), name)
