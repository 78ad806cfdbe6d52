"""Spark sessions as Headrace starts them: `get_session`, or `register` for a session of your own."""

from __future__ import annotations

from headrace.spark.session.spark_session import ConnectRefused, get_session, in_this_process, register, warm

__all__ = ["ConnectRefused", "get_session", "in_this_process", "register", "warm"]
