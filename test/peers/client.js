// Drives runs through the API and prints what it saw: one JSON object a line, 64-bit integers as strings.
//
// usage: client.js DESCRIPTOR_SET ADDRESS TOKEN_FILE RUN
'use strict';
const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const api = require('./api.js');

const [descriptorSet, address, tokenFile, runID] = process.argv.slice(2);
const definition = api.load(descriptorSet);
const { RunService, AuditService } = api.services(definition);
const Status = definition['google.rpc.Status'];
const ErrorInfo = definition['google.rpc.ErrorInfo'];

const credential = new grpc.Metadata();
credential.set('authorization', 'Bearer ' + fs.readFileSync(tokenFile, 'utf8').trim());
const runs = new RunService(address, grpc.credentials.createInsecure());
const audit = new AuditService(address, grpc.credentials.createInsecure());

const say = (step, seen) => console.log(JSON.stringify({ step, ...seen }));

const call = (method, request, metadata = credential) => new Promise((resolve, reject) => {
  runs[method](request, metadata, (error, response) => (error ? reject(error) : resolve(response)));
});

async function start(step, run) {
  const response = await call('StartRun', { run_id: run, agent: 'cashier', task: 'charge' });
  say(step, { run: response.run.run_id, already_started: response.already_started });
}

// follow says the events after a cursor one at a time, and gives the message of each; returning it cuts the stream.
async function* follow(cursor) {
  const stream = runs.StreamEvents({ run_id: runID, follow: true, after_cursor: cursor }, credential);
  try {
    for await (const message of stream) {
      const { event } = message;
      if (!event) continue; // it only says that the stream is alive
      say('event', { sequence: event.sequence, type: event.type, hash: event.hash.toString('hex') });
      yield message;
    }
  } finally {
    stream.on('error', () => {}); // it says that it was cancelled
    stream.cancel();
  }
}

async function sayRefusal(step, method, request, metadata) {
  try {
    await call(method, request, metadata);
    say(step, { code: 'OK' });
  } catch (error) {
    const rich = Status.deserialize(error.metadata.get('grpc-status-details-bin')[0]);
    const detail = rich.details.find((d) => d.type_url === 'type.googleapis.com/google.rpc.ErrorInfo');
    const info = ErrorInfo.deserialize(detail.value);
    say(step, { code: grpc.status[error.code], domain: info.domain, reason: info.reason });
  }
}

async function sayDone(step, run) {
  const response = await call('WaitRun', { run_id: run, until: 'WAIT_UNTIL_DONE', timeout: { seconds: 50 } });
  say(step, { timed_out: response.timed_out, state: response.run.state, stop_reason: response.run.stop_reason });
}

async function main() {
  await start('start', runID);
  await start('start again', runID);

  let stream = follow('');
  let seen;
  for (let i = 0; i < 3; i++) {
    seen = (await stream.next()).value;
  }
  await stream.return();
  say('cut');
  stream = follow(seen.cursor);
  while (seen.event.type !== 'tool_call_pending_approval') {
    seen = (await stream.next()).value;
  }

  const [approval] = (await call('ListApprovals', { run_id: runID })).approvals;
  say('list', { id: approval.approval_id, tool: approval.tool, arguments: approval.arguments_json });
  const answer = {
    run_id: runID, approval_id: approval.approval_id, verdict: 'APPROVAL_VERDICT_APPROVE',
    approval_digest: approval.argument_digest, // that of the arguments alone
  };
  await sayRefusal('approve without token', 'SubmitApproval', answer, new grpc.Metadata());
  await sayRefusal('approve something else', 'SubmitApproval', answer);
  answer.approval_digest = approval.approval_digest;
  const closed = (await call('SubmitApproval', answer)).approval;
  say('approve', { verdict: closed.verdict, via: closed.via });

  while (!(await stream.next()).done);
  say('end of stream');
  await sayDone('wait', runID);
  const { run } = await call('GetRun', { run_id: runID });
  say('get', { answer: run.final_answer.content, input_tokens: run.usage.input_tokens });

  const endless = runID + '-endless';
  await start('start endless', endless);
  await call('CancelRun', { run_id: endless, mode: 'CANCEL_MODE_ABORT', reason: 'enough' });
  await sayDone('cancel', endless);

  let summary;
  for await (const message of audit.VerifyAudit({ run_id: runID }, credential)) summary = message.summary ?? summary;
  say('audit', { ok: summary.ok, events: summary.verified.events, findings: summary.findings });
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
