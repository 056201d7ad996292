"""A tool host with one tool."""
import json
import sys
from concurrent import futures

import grpc
from runnerd.v1 import tool_host_service_pb2 as pb, tool_host_service_pb2_grpc as rpc, tool_pb2

SCHEMA = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
COUNT = tool_pb2.ToolDefinition(
    name="count_words", description="Counts the words of a text.", input_schema_json=json.dumps(SCHEMA),
    annotations=tool_pb2.Annotations(read_only=True))


class Hands(rpc.ToolHostServiceServicer):
    def ListTools(self, request, context):
        return pb.ToolHostServiceListToolsResponse(tools=[COUNT])

    def CallTool(self, request, context):
        words = json.loads(request.arguments_json)["text"].split()
        yield pb.CallToolResponse(result=tool_pb2.ToolResult(text=str(len(words))))


server = grpc.server(futures.ThreadPoolExecutor())
rpc.add_ToolHostServiceServicer_to_server(Hands(), server)
server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
