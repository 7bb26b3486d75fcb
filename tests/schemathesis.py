"""Gives every request that may succeed an idempotency key of its own."""

import uuid

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    headers = case.headers or {}
    name = "Idempotency-Key"
    if case.operation.method == "post" and name in headers and is_valid(headers[name]):
        headers[name] = uuid.uuid4().hex
