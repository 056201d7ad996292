"""A decide service: it asks for one tool and answers with what the tool said."""
import json
import sys
from concurrent import futures

import grpc
from runnerd.v1 import decide_service_pb2 as pb
from runnerd.v1 import decide_service_pb2_grpc as rpc


class Brain(rpc.DecideServiceServicer):
    def Decide(self, request, context):
        if request.history:
            answer = pb.Answer(content="Words: " + request.history[-1].observation.text)
            yield pb.DecideResponse(decision=pb.Decision(answer=answer))
            return
        yield pb.DecideResponse(text_delta=pb.TextDelta(text="Let me count. "))
        call = pb.ToolCall(name="count_words", arguments_json=json.dumps({"text": request.task}))
        yield pb.DecideResponse(decision=pb.Decision(tool_calls=pb.ToolCalls(calls=[call])))


server = grpc.server(futures.ThreadPoolExecutor())
rpc.add_DecideServiceServicer_to_server(Brain(), server)
server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
