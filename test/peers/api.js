// The API as the descriptor set tells it: 64-bit integers are strings, enums their names.
'use strict';
const fs = require('fs');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

exports.load = (descriptorSet) => loader.loadFileDescriptorSetFromBuffer(fs.readFileSync(descriptorSet), {
  keepCase: true, longs: String, enums: String, defaults: true, oneofs: true,
});
exports.services = (definition) => grpc.loadPackageDefinition(definition).runnerd.v1;
