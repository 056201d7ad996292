"""Drives runs through the API and prints what it saw: one JSON object a line, 64-bit integers as strings.

usage: client.py ADDRESS TOKEN_FILE RUN
"""
import json
import sys

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from runnerd.v1 import approval_pb2, audit_service_pb2, audit_service_pb2_grpc, run_pb2
from runnerd.v1 import run_service_pb2 as pb, run_service_pb2_grpc

address, token_file, run_id = sys.argv[1:]
with open(token_file) as f:
    CREDENTIAL = [("authorization", "Bearer " + f.read().strip())]
channel = grpc.insecure_channel(address)
runs = run_service_pb2_grpc.RunServiceStub(channel)
audit = audit_service_pb2_grpc.AuditServiceStub(channel)


def say(step, **seen):
    print(json.dumps({"step": step, **seen}), flush=True)


def start(step, run):
    response = runs.StartRun(pb.StartRunRequest(run_id=run, agent="cashier", task="charge"), metadata=CREDENTIAL)
    say(step, run=response.run.run_id, already_started=response.already_started)


def follow(cursor):
    """Says the events after a cursor one at a time, and gives the message of each; closing it cuts the stream."""
    request = pb.StreamEventsRequest(run_id=run_id, follow=True, after_cursor=cursor)
    stream = runs.StreamEvents(request, metadata=CREDENTIAL)
    try:
        for message in stream:
            if message.HasField("event"):  # else it only says that the stream is alive
                event = message.event
                say("event", sequence=str(event.sequence), type=event.type, hash=event.hash.hex())
                yield message
    finally:
        stream.cancel()


def say_refusal(step, call, request, metadata=CREDENTIAL):
    try:
        call(request, metadata=metadata)
        say(step, code="OK")
    except grpc.RpcError as error:
        rich = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
        info = ErrorInfo()
        assert any(detail.Unpack(info) for detail in rich.details), rich
        say(step, code=error.code().name, domain=info.domain, reason=info.reason)


def say_done(step, run):
    request = pb.WaitRunRequest(run_id=run, until=pb.WAIT_UNTIL_DONE, timeout=Duration(seconds=50))
    response = runs.WaitRun(request, metadata=CREDENTIAL)
    say(step, timed_out=response.timed_out, state=run_pb2.RunState.Name(response.run.state),
        stop_reason=run_pb2.StopReason.Name(response.run.stop_reason))


start("start", run_id)
start("start again", run_id)

stream = follow("")
for _ in range(3):
    seen = next(stream)
stream.close()
say("cut")
stream = follow(seen.cursor)
while seen.event.type != "tool_call_pending_approval":
    seen = next(stream)

[approval] = runs.ListApprovals(pb.ListApprovalsRequest(run_id=run_id), metadata=CREDENTIAL).approvals
say("list", id=str(approval.approval_id), tool=approval.tool, arguments=approval.arguments_json)
answer = pb.SubmitApprovalRequest(
    run_id=run_id, approval_id=approval.approval_id, verdict=approval_pb2.APPROVAL_VERDICT_APPROVE,
    approval_digest=approval.argument_digest)  # that of the arguments alone
say_refusal("approve without token", runs.SubmitApproval, answer, metadata=None)
say_refusal("approve something else", runs.SubmitApproval, answer)
answer.approval_digest = approval.approval_digest
closed = runs.SubmitApproval(answer, metadata=CREDENTIAL).approval
say("approve", verdict=approval_pb2.ApprovalVerdict.Name(closed.verdict), via=approval_pb2.Via.Name(closed.via))

for _ in stream:
    pass
say("end of stream")
say_done("wait", run_id)
run = runs.GetRun(pb.GetRunRequest(run_id=run_id), metadata=CREDENTIAL).run
say("get", answer=run.final_answer.content, input_tokens=str(run.usage.input_tokens))

endless = run_id + "-endless"
start("start endless", endless)
runs.CancelRun(pb.CancelRunRequest(run_id=endless, mode=run_pb2.CANCEL_MODE_ABORT, reason="enough"), metadata=CREDENTIAL)
say_done("cancel", endless)

for message in audit.VerifyAudit(audit_service_pb2.VerifyAuditRequest(run_id=run_id), metadata=CREDENTIAL):
    if message.WhichOneof("event") == "summary":
        summary = message.summary
say("audit", ok=summary.ok, events=str(summary.verified.events), findings=str(summary.findings))
