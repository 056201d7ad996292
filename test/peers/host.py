"""A tool host with one tool, which tells what it was given. It says "listening" when it can be called.

usage: host.py ADDRESS
"""
import sys
from concurrent import futures

import grpc
from runnerd.v1 import tool_host_service_pb2 as pb, tool_host_service_pb2_grpc as rpc, tool_pb2

CHARGE = tool_pb2.ToolDefinition(name="charge", description="Charges an amount.", input_schema_json='{"type":"object"}')


class Till(rpc.ToolHostServiceServicer):
    def ListTools(self, request, context):
        return pb.ToolHostServiceListToolsResponse(tools=[CHARGE])

    def CallTool(self, request, context):
        yield pb.CallToolResponse(progress=pb.Progress(message="charging", fraction=0.5))
        yield pb.CallToolResponse(result=tool_pb2.ToolResult(text="charged " + request.arguments_json))


server = grpc.server(futures.ThreadPoolExecutor())
rpc.add_ToolHostServiceServicer_to_server(Till(), server)
server.add_insecure_port(sys.argv[1])
server.start()
print("listening", flush=True)
server.wait_for_termination()
