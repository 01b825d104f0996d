"""Media types that schemathesis does not know: lines of JSON, and mails."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson", "text/csv", "message/rfc822")
def write_lines(_context, value):
    if isinstance(value, str):
        return value.encode()
    return "\n".join(json.dumps(line) for line in (value if isinstance(value, list) else [value])).encode()


@schemathesis.deserializer("application/x-ndjson")
def read_lines(_context, response):
    """The last line of the answer to an import, which its schema describes; an export is a text."""
    lines = response.text.splitlines()
    last = json.loads(lines[-1]) if lines else None
    return last if isinstance(last, dict) and "lines" in last else response.text
