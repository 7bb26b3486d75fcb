"""Gives every request that carries a well-formed idempotency key a key of its own."""

import re
import uuid

import schemathesis

KEY = "Idempotency-Key"


@schemathesis.hook
def before_call(context, case, kwargs):
    parameters = case.operation.definition.raw.get("parameters", [])
    for parameter in parameters:
        value = (case.headers or {}).get(KEY)
        if parameter["name"] == KEY and value and re.search(parameter["schema"]["pattern"], value):
            case.headers[KEY] = uuid.uuid4().hex
