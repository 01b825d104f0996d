"""Reads a request of OTLP as the published classes of OpenTelemetry read it, and shows it as JSON.

Takes the request on its input; the folder of the library is its argument. What those classes do not know is an error.
"""

import sys

sys.path.insert(0, sys.argv[1])

from google.protobuf.json_format import MessageToJson  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: E402

body = sys.stdin.buffer.read()
request = ExportTraceServiceRequest()
request.ParseFromString(body)
request.DiscardUnknownFields()
if request.ByteSize() != len(body):
    sys.exit(f"{len(body) - request.ByteSize()} of {len(body)} bytes mean nothing to them")
print(MessageToJson(request))
