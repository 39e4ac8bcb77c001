"""The one pipeline of a session whose client is of one server."""

from aiolocks._engine.context import Context
from aiolocks._redis.pipeline import Pipeline


def pipeline_in(context: Context) -> Pipeline:
    assert isinstance(context.pipeline, Pipeline)
    return context.pipeline
