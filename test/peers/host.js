// A tool host with one tool, which tells what it was given. It says "listening" when it can be called.
//
// usage: host.js DESCRIPTOR_SET ADDRESS
'use strict';
const grpc = require('@grpc/grpc-js');
const api = require('./api.js');

const [descriptorSet, address] = process.argv.slice(2);
const charge = { name: 'charge', description: 'Charges an amount.', input_schema_json: '{"type":"object"}' };

const server = new grpc.Server();
server.addService(api.services(api.load(descriptorSet)).ToolHostService.service, {
  ListTools: (_, reply) => reply(null, { tools: [charge] }),
  CallTool: (stream) => {
    stream.write({ progress: { message: 'charging', fraction: 0.5 } });
    stream.write({ result: { text: 'charged ' + stream.request.arguments_json } });
    stream.end();
  },
});
server.bindAsync(address, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error;
  console.log('listening');
});
